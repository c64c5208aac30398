#!/usr/bin/env bash
# Calcite: the minimum of an infinity is 1.7976931348623157E308, but infinity in a group of its own.
#
# Guess: the minimum is one of the values, with and without GROUP BY.
# Seen with Calcite 1.40.0 and its own engine: without GROUP BY, and over a window, MIN begins with the largest finite DOUBLE and MAX with
# the smallest, so infinities at the wrong end are lost, and so is a NaN: MAX of NaN is NaN, MIN is 1.8E308. By group the first value
# begins. (Needs java and mvn.)
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
        String table = " FROM (SELECT y, y * 1e300 * 1e300 AS x FROM (VALUES (1), (-1)) AS t(y))";
        String largest = "1.7976931348623157E308", infinity = "Infinity";
        expect("SELECT MIN(x), MAX(x)" + table, "-Infinity, Infinity");
        expect("SELECT MIN(x), MAX(x)" + table + " WHERE y = 1", largest + ", " + infinity);
        expect("SELECT MIN(x), MAX(x)" + table + " WHERE y = -1", "-" + infinity + ", -" + largest);
        expect("SELECT MIN(x), MAX(x)" + table + " WHERE y = 1 GROUP BY y", infinity + ", " + infinity);
        expect("SELECT MIN(x) OVER (PARTITION BY y)" + table + " WHERE y = 1", largest);
        expect("SELECT MIN(x), MAX(x) FROM (SELECT SQRT(y * 1e0) AS x FROM (VALUES (-1), (-2)) AS t(y))", largest + ", NaN");
    }
}
JAVA
java -cp "$folder/*" Main.java 2>log || { tail -20 log; exit 1; }
