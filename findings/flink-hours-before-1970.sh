#!/usr/bin/env bash
# Flink: the HOUR of 1968-03-05 10:11:12.5 is -13, its DAY is 6, and the YEAR of 1969-12-31 23:59:59.5 is 1970.
#
# Guess: EXTRACT of a time before 1970 is the field that the timestamp is printed with.
# Seen with Flink 2.1.1: EXTRACT divides milliseconds since 1970 and cuts towards zero, so hours, minutes and seconds are negative and
# days one too large. FLOOR to the hour is right, and FLOOR to the year of the last second of 1969 is 1970. Dates of birth that are kept
# as timestamps meet it. (Needs java and mvn.)
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
        String fields = "SELECT EXTRACT(YEAR FROM x), EXTRACT(DAY FROM x), EXTRACT(HOUR FROM x), EXTRACT(MINUTE FROM x), EXTRACT(SECOND FROM x)";
        String table = " FROM (SELECT CAST(s AS TIMESTAMP(3)) AS x FROM (VALUES ('1968-03-05 10:11:12.5')) AS t(s))";
        expect(batch, fields + table, "[+I[1968, 6, -13, -48, -47]]");
        expect(batch, fields + table.replace("1968-03-05 10:11:12", "1969-12-31 23:59:59"), "[+I[1970, 1, 0, 0, 0]]");
        expect(batch, "SELECT FLOOR(x TO HOUR), FLOOR(x TO DAY)" + table, "[+I[1968-03-05T10:00, 1968-03-05T00:00]]");
        expect(batch, "SELECT FLOOR(x TO YEAR)" + table.replace("1968-03-05 10:11:12", "1969-12-31 23:59:59"), "[+I[1970-01-01T00:00]]");
        System.exit(0);
    }
}
JAVA
java --add-opens=java.base/java.lang=ALL-UNNAMED --add-opens=java.base/java.util=ALL-UNNAMED --add-opens=java.base/java.nio=ALL-UNNAMED -cp "$folder/*" Main.java 2>log || { tail -20 log; exit 1; }
