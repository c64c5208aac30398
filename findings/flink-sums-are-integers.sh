#!/usr/bin/env bash
# Flink: the SUM of the INTs 2147483647 and 1 is -2147483648, the AVG of 1 and 2 is 1, and their sample variance is 1.
#
# Guess: a sum of INT is a BIGINT, and an average and a variance of integers have decimals.
# Seen with Flink 2.1.1: SUM, AVG, VAR_POP and STDDEV_POP have the type of their argument, in both modes. Sums wrap around, quotients are
# cut, and a variance is negative once the squares do not fit. A query that was tested with small numbers changes its sign with the data.
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
        for (TableEnvironment environment : List.of(batch, stream)) {
            String rows = environment == batch ? "[+I[-2147483648]]" : "[+I[2147483647], -U[2147483647], +U[-2147483648]]";
            expect(environment, "SELECT SUM(x) FROM (VALUES (2147483647), (1)) AS t(x)", rows);
        }
        expect(batch, "SELECT AVG(x), VAR_POP(x), VAR_SAMP(x) FROM (VALUES (1), (2)) AS t(x)", "[+I[1, 0, 1]]");
        expect(batch, "SELECT AVG(x) FROM (VALUES (9223372036854775807), (1)) AS t(x)", "[+I[-4611686018427387904]]");
        expect(batch, "SELECT VAR_POP(x) FROM (VALUES (100000), (200000)) AS t(x)", "[+I[-721225472]]");
        System.exit(0);
    }
}
JAVA
java --add-opens=java.base/java.lang=ALL-UNNAMED --add-opens=java.base/java.util=ALL-UNNAMED --add-opens=java.base/java.nio=ALL-UNNAMED -cp "$folder/*" Main.java 2>log || { tail -20 log; exit 1; }
