#!/usr/bin/env bash
# Calcite: the population variance of 100000 and 200000 as INTEGER is -721225472, and their sample deviation 0.
#
# Guess: variances and averages of integers are decimals or floats, and a sum that does not fit its type is wider or an error.
# Seen with Calcite 1.40.0 and its own engine: SUM, AVG and VAR_POP of INTEGER are INTEGER, and what they compute on the way is, too:
# squares wrap around, means are cut. The variance of 1, 2, 4 is 1. A sum of INTEGER wraps, one of TINYINT is an error. All engines with
# Calcite's default type system take over these types. (Needs java and mvn.)
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
        expect("SELECT VAR_POP(x), STDDEV_SAMP(x) FROM (VALUES (100000), (200000)) AS t(x)", "-721225472, 0");
        expect("SELECT VAR_POP(x), STDDEV_SAMP(x) FROM (VALUES (100000e0), (200000e0)) AS t(x)", "2.5E9, 70710.67811865476");
        expect("SELECT VAR_POP(x), AVG(x) FROM (VALUES (1), (2), (4)) AS t(x)", "1, 2");
        expect("SELECT VAR_POP(x) FROM (VALUES (1.5), (2.5)) AS t(x)", "0.2");
        expect("SELECT SUM(x), AVG(x) FROM (VALUES (2147483647), (1)) AS t(x)", "-2147483648, -1073741824");
        expect("SELECT SUM(x) FROM (VALUES (CAST(127 AS TINYINT)), (CAST(1 AS TINYINT))) AS t(x)", "error");
    }
}
JAVA
java -cp "$folder/*" Main.java 2>log || { tail -20 log; exit 1; }
