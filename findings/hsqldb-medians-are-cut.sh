#!/usr/bin/env bash
# HSQLDB: the median of 1 and 2 is 1, and the average of one day and two days is one day.
#
# Guess: AVG of integers may be an integer, as in the standard; the median of an even number of rows is the middle of two of them, 1.5, and
# the average of intervals is 1 day and 12 hours.
# Seen with HSQLDB 2.7.4: MEDIAN and AVG have their argument's type, without its missing digits: those of DECIMAL(4, 2) have two digits,
# which are cut, not rounded: the average of 0.01, 0.02 and 0.02 is 0.01. (Needs java and mvn.)
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
mvn --batch-mode --quiet -Dstyle.color=never org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy -Dartifact=org.hsqldb:hsqldb:2.7.4 -DoutputDirectory="$folder"
echo "5fab2bb4384ac06b762638c8fa2740c944b8d080e4796c0c6c2af8b90dd4e5ad  $folder/hsqldb-2.7.4.jar" | sha256sum --check --quiet
cat >Main.java <<'JAVA'
import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.ResultSet;
import java.sql.SQLException;

public class Main {
    static Connection connection;

    static String value(String query) throws SQLException {
        try (ResultSet rows = connection.createStatement().executeQuery(query)) {
            rows.next();
            return rows.getString(1);
        } catch (SQLException error) {
            return "error " + error.getSQLState();
        }
    }

    static void expect(String query, String expected) throws SQLException {
        String seen = value(query);
        System.out.println(query + ": " + seen);
        if (!seen.equals(expected)) throw new AssertionError("expected " + expected);
    }

    public static void main(String[] arguments) throws SQLException {
        connection = DriverManager.getConnection("jdbc:hsqldb:mem:x", "SA", "");
        connection.createStatement().execute("CREATE TABLE t (k INT, d DECIMAL(4, 2), i INTERVAL DAY)");
        connection.createStatement().execute("INSERT INTO t VALUES (1, 0.01, INTERVAL '1' DAY), (2, 0.02, INTERVAL '2' DAY)");
        expect("SELECT MEDIAN(k) FROM t", "1");
        expect("SELECT MEDIAN(CAST(k AS DOUBLE)) FROM t", "1.5E0");
        expect("SELECT MEDIAN(d) FROM t", "0.01");
        expect("SELECT AVG(i) FROM t", "1");
        connection.createStatement().execute("INSERT INTO t VALUES (2, 0.02, INTERVAL '2' DAY)");
        expect("SELECT AVG(d) FROM t", "0.01");
        expect("SELECT CAST(SUM(d) / 3.0000 AS DECIMAL(9, 4)) FROM t", "0.0166");
        expect("SELECT AVG(i) FROM t", "1");
    }
}
JAVA
java -cp "$folder/hsqldb-2.7.4.jar" Main.java
