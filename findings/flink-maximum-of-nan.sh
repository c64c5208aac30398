#!/usr/bin/env bash
# Flink: the MAX of 5, NaN, 7 is 7, that of NaN, 5, 7 is NaN, and in a table that changes NaN is the largest.
#
# Guess: MAX is one order of the values, whatever their order of arrival and whether rows are retracted.
# Seen with Flink 2.1.1: MAX and MIN over rows that are only added compare with >, so a NaN that is first stays both, and a later one is
# ignored. Over rows that change they keep the values sorted, NaN last. `x = x` is taken for true by the planner, so it does not filter a
# NaN; a NaN in a join matches nothing, and all NaNs are one group. (Needs java and mvn.)
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
        String table = " FROM (SELECT CAST(s AS DOUBLE) AS x FROM (VALUES ('5'), ('NaN'), ('7')) AS t(s))";
        expect(batch, "SELECT MAX(x), MIN(x)" + table, "[+I[7.0, 5.0]]");
        expect(batch, "SELECT MAX(x), MIN(x)" + table.replace("('5'), ('NaN')", "('NaN'), ('5')"), "[+I[NaN, NaN]]");
        String changes = " FROM (SELECT k, LAST_VALUE(x) AS x FROM (SELECT k, CAST(s AS DOUBLE) AS x FROM (VALUES (1, '5'), (2, 'NaN'), (3, '7')) AS t(k, s)) GROUP BY k)";
        expect(stream, "SELECT MAX(x)" + changes, "[+I[5.0], -U[5.0], +U[NaN], -U[NaN], +U[NaN]]");
        expect(batch, "SELECT COUNT(*)" + table + " WHERE x = x", "[+I[3]]");
        expect(batch, "SELECT COUNT(*) FROM (SELECT *" + table + ") a JOIN (SELECT *" + table + ") b ON a.x = b.x", "[+I[2]]");
        System.exit(0);
    }
}
JAVA
java --add-opens=java.base/java.lang=ALL-UNNAMED --add-opens=java.base/java.util=ALL-UNNAMED --add-opens=java.base/java.nio=ALL-UNNAMED -cp "$folder/*" Main.java 2>log || { tail -20 log; exit 1; }
