#!/usr/bin/env bash
# HSQLDB: 0.0 and -0.0 are two groups, and do not join.
#
# Guess: -0.0 = 0.0 is true in SQL, so they are one group and one distinct value, as in H2 and Derby.
# Seen with HSQLDB 2.7.4: DOUBLEs are compared as Java's Double.compare does: -0.0 is less than 0.0, so x = 0 does not find it. A sum that
# ends in -0.0 is lost by a join. (Needs java and mvn.)
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
        connection.createStatement().execute("CREATE TABLE t (x DOUBLE)");
        connection.createStatement().execute("INSERT INTO t VALUES (0E0), (-0E0)");
        expect("SELECT COUNT(DISTINCT x) FROM t", "2");
        expect("SELECT COUNT(*) FROM (SELECT x FROM t GROUP BY x)", "2");
        expect("SELECT COUNT(*) FROM t WHERE x = 0E0", "1");
        expect("SELECT COUNT(*) FROM t WHERE x < 0E0", "1");
        expect("SELECT COUNT(*) FROM t a JOIN t b ON a.x = b.x", "2");
    }
}
JAVA
java -cp "$folder/hsqldb-2.7.4.jar" Main.java
