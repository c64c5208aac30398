#!/usr/bin/env bash
# Flink: UPPER('straße') is 'STRASS', and of a column 'STRASSE'.
#
# Guess: UPPER of a literal is UPPER of a column that has it.
# Seen with Flink 2.1.1: the type of UPPER is that of its argument, CHAR(6) for the literal. What is computed while planning is cut to six
# characters; what is computed from rows is not, though it has the same type, and is longer than it. (Needs java and mvn.)
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
        expect(batch, "SELECT UPPER('stra\u00dfe'), UPPER('\u00df')", "[+I[STRASS, S]]");
        expect(batch, "SELECT UPPER(x), CHAR_LENGTH(UPPER(x)) FROM (VALUES ('stra\u00dfe'), ('stra\u00dfa')) AS t(x)", "[+I[STRASSE, 7], +I[STRASSA, 7]]");
        System.exit(0);
    }
}
JAVA
java --add-opens=java.base/java.lang=ALL-UNNAMED --add-opens=java.base/java.util=ALL-UNNAMED --add-opens=java.base/java.nio=ALL-UNNAMED -Dfile.encoding=UTF-8 -cp "$folder/*" Main.java 2>log || { tail -20 log; exit 1; }
