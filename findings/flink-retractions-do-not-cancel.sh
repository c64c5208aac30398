#!/usr/bin/env bash
# Flink: after 1e300 was replaced by 1 the SUM of 5, 1, 1 is 2, after infinity NaN, and the variance of 5, 7, 6 is 18.7.
#
# Guess: a retraction takes a value out, so the result is that of the rows which are there.
# Seen with Flink 2.1.1: SUM, AVG and VAR_POP add and subtract doubles, without a compensation. What was lost when the large value came is
# lost for the life of the state, without a TTL for ever. An infinity makes the sum NaN. MAX and MIN, which keep all values, are right.
# (Needs java and mvn.)
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
export LC_ALL=C
cat >pom.xml <<'XML'
<project>
  <modelVersion>4.0.0</modelVersion><groupId>x</groupId><artifactId>x</artifactId><version>1</version>
  <dependencies>
    <dependency><groupId>org.apache.flink</groupId><artifactId>flink-table-planner-loader</artifactId><version>2.1.1</version></dependency>
    <dependency><groupId>org.apache.flink</groupId><artifactId>flink-table-runtime</artifactId><version>2.1.1</version></dependency>
    <dependency><groupId>org.apache.flink</groupId><artifactId>flink-clients</artifactId><version>2.1.1</version></dependency>
    <dependency><groupId>org.apache.flink</groupId><artifactId>flink-table-api-java-bridge</artifactId><version>2.1.1</version></dependency>
  </dependencies>
</project>
XML
mvn --batch-mode --quiet -Dstyle.color=never org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies \
    -DoutputDirectory="$folder" </dev/null
cat ./*.jar | sha256sum --check --quiet <(echo "7604aa273cd79e21e852b40ad91ad24c04c7a3e8759523d4fba0d10abeb5b28a  -")
cat >Main.java <<'JAVA'
import java.util.ArrayList;
import java.util.List;
import org.apache.flink.table.api.EnvironmentSettings;
import org.apache.flink.table.api.TableEnvironment;
import org.apache.flink.types.Row;
import org.apache.flink.util.CloseableIterator;

public class Main {
    static TableEnvironment batch = environment(EnvironmentSettings.inBatchMode());
    static TableEnvironment stream = environment(EnvironmentSettings.inStreamingMode());

    static TableEnvironment environment(EnvironmentSettings settings) {
        TableEnvironment environment = TableEnvironment.create(settings);
        environment.getConfig().set("parallelism.default", "1");
        return environment;
    }

    static void expect(TableEnvironment environment, String query, String expected) {
        List<String> rows = new ArrayList<>();
        try (CloseableIterator<Row> result = environment.executeSql(query).collect()) {
            while (result.hasNext()) rows.add(result.next().toString());
        } catch (Exception error) {
            Throwable cause = error;
            while (cause.getCause() != null) cause = cause.getCause();
            rows.add(cause.getMessage());
        }
        System.out.println((environment == batch ? "batch" : "stream") + ": " + query + ": " + rows);
        if (!rows.toString().equals(expected)) throw new AssertionError("expected " + expected);
    }

    public static void main(String[] arguments) {
        String table = " FROM (SELECT k, LAST_VALUE(CAST(s AS DOUBLE)) AS x FROM (VALUES (1, '5'), (2, '%s'), (2, '1'), (3, '1')) AS t(k, s) GROUP BY k)";
        expect(stream, "SELECT SUM(x)" + table.formatted("1e300"),
                "[+I[5.0], -U[5.0], +U[1.0E300], -U[1.0E300], +U[0.0], -U[0.0], +U[1.0], -U[1.0], +U[2.0]]");
        expect(stream, "SELECT SUM(x)" + table.formatted("Infinity"),
                "[+I[5.0], -U[5.0], +U[Infinity], -U[Infinity], +U[NaN], -U[NaN], +U[NaN], -U[NaN], +U[NaN]]");
        expect(stream, "SELECT MAX(x)" + table.formatted("1e300"), "[+I[5.0], -U[5.0], +U[1.0E300], -U[1.0E300], +U[5.0]]");
        expect(stream, "SELECT VAR_POP(x)" + table.formatted("1e9").replace("(2, '1'), (3, '1')", "(2, '6')").replace("(1, '5')", "(1, '5'), (3, '7')"),
                "[+I[0.0], -U[0.0], +U[1.0], -U[1.0], +U[2.22222219555555584E17], -U[2.22222219555555584E17], +U[28.0], -U[28.0], +U[18.666666666666668]]");
        System.exit(0);
    }
}
JAVA
java --add-opens=java.base/java.lang=ALL-UNNAMED --add-opens=java.base/java.util=ALL-UNNAMED --add-opens=java.base/java.nio=ALL-UNNAMED -cp "$folder/*" Main.java 2>log || { tail -20 log; exit 1; }
