#!/usr/bin/env bash
# Calcite: `x = x` is true for a NaN, `x = y` of two NaNs is false, and `a.x = b.x` of a join true.
#
# Guess: an equality is the same in WHERE, in a join, in GROUP BY and in IN.
# Seen with Calcite 1.40.0 and its own engine: WHERE compares Java's primitive doubles, after the optimizer has made `x IS NOT NULL` of `x =
# x`; joins, groups, DISTINCT and IN over a query compare boxed ones. So -0.0 = 0 is found by WHERE, and is neither joined nor grouped with
# it. (Needs java and mvn.)
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
export LC_ALL=C
cat >pom.xml <<'XML'
<project>
  <modelVersion>4.0.0</modelVersion><groupId>x</groupId><artifactId>x</artifactId><version>1</version>
  <dependencies>
    <dependency><groupId>org.apache.calcite</groupId><artifactId>calcite-core</artifactId><version>1.40.0</version></dependency>
  </dependencies>
</project>
XML
mvn --batch-mode --quiet -Dstyle.color=never org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies \
    -DoutputDirectory="$folder" </dev/null
cat ./*.jar | sha256sum --check --quiet <(echo "5247bf84ddf731020b7e0cd978c6b218291540c7d0b2ba159986bbc4c48643f8  -")
cat >Main.java <<'JAVA'
import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.ResultSet;
import java.sql.SQLException;

public class Main {
    static Connection connection;

    static String value(String query) {
        try (ResultSet rows = connection.createStatement().executeQuery(query)) {
            StringBuilder text = new StringBuilder();
            for (; rows.next(); text.append("; ")) {
                for (int i = 1; i <= rows.getMetaData().getColumnCount(); i++) text.append(i > 1 ? ", " : "").append(rows.getString(i));
            }
            return text.substring(0, Math.max(0, text.length() - 2));
        } catch (SQLException error) {
            return "error";
        }
    }

    static void expect(String query, String expected) {
        String seen = value(query);
        System.out.println(query + ": " + seen);
        if (!seen.equals(expected)) throw new AssertionError("expected " + expected);
    }

    public static void main(String[] arguments) throws SQLException {
        connection = DriverManager.getConnection("jdbc:calcite:");
        String nan = "(SELECT SQRT(y * 1e0) AS x, SQRT(y * 2e0) AS z FROM (VALUES (-1), (-2)) AS t(y))";
        expect("SELECT COUNT(*) FROM " + nan + " WHERE x = x", "2");
        expect("SELECT COUNT(*) FROM " + nan + " WHERE x = z", "0");
        expect("SELECT COUNT(*) FROM " + nan + " a JOIN " + nan + " b ON a.x = b.z", "4");
        String zeros = "(SELECT y * 0e0 AS x FROM (VALUES (1), (-1)) AS t(y))";
        expect("SELECT COUNT(*) FROM " + zeros + " WHERE x = 0", "2");
        expect("SELECT COUNT(*) FROM " + zeros + " a JOIN " + zeros + " b ON a.x = b.x", "2");
        expect("SELECT COUNT(*) FROM " + zeros + " WHERE x IN (SELECT y * 0e0 FROM (VALUES (1), (2)) AS t(y))", "1");
        expect("SELECT COUNT(DISTINCT x) FROM " + zeros, "2");
    }
}
JAVA
java -cp "$folder/*" Main.java 2>log || { tail -20 log; exit 1; }
