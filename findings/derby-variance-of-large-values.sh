#!/usr/bin/env bash
# Derby: the variance of 1000000001, 1000000002, 1000000003 is 0, and a SUM of SMALLINT is an error from 32768 on.
#
# Guess: VAR_POP is computed by a stable way, so it is 2/3, as in H2 and HSQLDB. SUM of SMALLINT is wider than its argument.
# Seen with Derby 10.16.1.1: VAR_POP, VAR_SAMP and the deviations come from the sum of squares, so they have no digit left for a small
# spread of large values: 0. A SUM has its argument's type: two rows of 32767 are an error. (Needs java and mvn.)
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
mvn --batch-mode --quiet -Dstyle.color=never org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy -Dartifact=org.apache.derby:derby:10.16.1.1 -DoutputDirectory="$folder"
echo "ede804cb04e871d7c52d2414e952ab939f9ef243abb7bd0ce7dbeb6e1e28bd0b  $folder/derby-10.16.1.1.jar" | sha256sum --check --quiet
mvn --batch-mode --quiet -Dstyle.color=never org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy -Dartifact=org.apache.derby:derbyshared:10.16.1.1 -DoutputDirectory="$folder"
echo "27d4be683a45f6c15940167277ce39bb7e26b9f6dc0bc05efbcf813cac5d2b8f  $folder/derbyshared-10.16.1.1.jar" | sha256sum --check --quiet
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
        connection = DriverManager.getConnection("jdbc:derby:memory:x;create=true");
        connection.createStatement().execute("CREATE TABLE t (x DOUBLE, s SMALLINT)");
        connection.createStatement().execute("INSERT INTO t VALUES (1000000001, 32767), (1000000002, 32767), (1000000003, 0)");
        expect("SELECT VAR_POP(x - 1000000000) FROM t", "0.666666666666667");
        expect("SELECT VAR_POP(x) FROM t", "0.0");
        expect("SELECT VAR_SAMP(x) FROM t", "0.0");
        expect("SELECT STDDEV_SAMP(x) FROM t", "0.0");
        expect("SELECT SUM(s) FROM t", "error 22003");
        expect("SELECT SUM(CAST(s AS INT)) FROM t", "65534");
    }
}
JAVA
java -cp "$folder/derby-10.16.1.1.jar:$folder/derbyshared-10.16.1.1.jar" Main.java
