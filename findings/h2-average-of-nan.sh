#!/usr/bin/env bash
# H2: AVG and MEDIAN over a NaN are an error, and the variance of one NaN is 0.
#
# Guess: a DOUBLE that is NaN or infinite is averaged as IEEE 754 has it, as MAX, ORDER BY and GROUP BY take it.
# Seen with H2 2.3.232: AVG and MEDIAN divide exact decimals, which have no NaN and no infinity: "Data conversion error", so one such row
# fails a query. SUM is a DECFLOAT, whose NaN getDouble returns and getObject refuses. VAR_POP of one NaN is 0. (Needs java and mvn.)
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
while read -r name digest; do
    mvn --batch-mode --quiet -Dstyle.color=never org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy \
        -Dartifact="$name" -DoutputDirectory="$folder" </dev/null
    IFS=: read -r _ artifact version <<<"$name"
    echo "$digest  $artifact-$version.jar" | sha256sum --check --quiet
done <<'JARS'
com.h2database:h2:2.3.232 8dae62d22db8982c3dcb3826edb9c727c5d302063a67eef7d63d82de401f07d3
JARS
cat >Main.java <<'JAVA'
import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.ResultSet;
import java.sql.SQLException;

public class Main {
    static void expect(String name, Object seen, Object expected) {
        System.out.println(name + ": " + seen);
        if (!expected.equals(seen)) throw new AssertionError("expected " + expected);
    }

    static String value(Connection connection, String query) throws SQLException {
        try (ResultSet rows = connection.createStatement().executeQuery(query)) {
            rows.next();
            return "" + rows.getObject(1);
        } catch (SQLException error) {
            return "error " + error.getSQLState();
        }
    }

    public static void main(String[] arguments) throws SQLException {
        Connection connection = DriverManager.getConnection("jdbc:h2:mem:x", "SA", "");
        for (String number : new String[] {"NaN", "Infinity"}) {
            String one = "(SELECT CAST('" + number + "' AS DOUBLE PRECISION) AS x)";
            String two = "(SELECT x FROM " + one + " UNION ALL SELECT CAST(1 AS DOUBLE PRECISION))";
            expect("MAX", value(connection, "SELECT MAX(x) FROM " + two), number);
            expect("AVG", value(connection, "SELECT AVG(x) FROM " + two), "error 22018");
            expect("MEDIAN", value(connection, "SELECT MEDIAN(x) FROM " + two), "error 22018");
            expect("VAR_POP of two", value(connection, "SELECT VAR_POP(x) FROM " + two), "NaN");
            expect("VAR_POP of one", value(connection, "SELECT VAR_POP(x) FROM " + one), "0.0");
            expect("SUM as an object", value(connection, "SELECT SUM(x) FROM " + two), "error 22018");
            ResultSet rows = connection.createStatement().executeQuery("SELECT SUM(x) FROM " + two);
            rows.next();
            expect("SUM as a double", rows.getDouble(1), Double.valueOf(number));
        }
    }
}
JAVA
java -cp "$folder/*" Main.java
