#!/usr/bin/env bash
# Flink: CAST(300 AS TINYINT) is 44, as TRY_CAST is; CAST('300' AS TINYINT) is an error, and a decimal that does not fit is NULL.
#
# Guess: CAST of a number that does not fit is an error, and TRY_CAST of it is NULL, as for texts.
# Seen with Flink 2.1.1: casts between numbers are Java's, so integers wrap around, 1e10 as INT is the largest INT and NaN is 0. TRY_CAST
# does the same. A text is checked. CAST to a DECIMAL never fails: 123.456 as DECIMAL(4, 2) is NULL, in a column that the planner holds
# for NOT NULL an error of the sink. (Needs java and mvn.)
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
        String table = " FROM (SELECT CAST(s AS INT) AS i, CAST(s AS DOUBLE) AS d, s FROM (VALUES ('300'), (CAST(NULL AS STRING))) AS t(s))";
        expect(batch, "SELECT CAST(i AS TINYINT), TRY_CAST(i AS TINYINT), TRY_CAST(s AS TINYINT)" + table, "[+I[44, 44, null], +I[null, null, null]]");
        expect(batch, "SELECT CAST(s AS TINYINT)" + table, "[For input string: '300'. Overflow.]");
        expect(batch, "SELECT CAST(d AS DECIMAL(4, 2)), CAST(d * 1e8 AS INT)" + table, "[+I[null, 2147483647], +I[null, null]]");
        expect(batch, "SELECT CAST(CAST('NaN' AS DOUBLE) AS INT)", "[+I[0]]");
        System.exit(0);
    }
}
JAVA
java --add-opens=java.base/java.lang=ALL-UNNAMED --add-opens=java.base/java.util=ALL-UNNAMED --add-opens=java.base/java.nio=ALL-UNNAMED -cp "$folder/*" Main.java 2>log || { tail -20 log; exit 1; }
