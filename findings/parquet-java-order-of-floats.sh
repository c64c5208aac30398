#!/usr/bin/env bash
# Parquet in Java: `x > 5` finds a NaN, `x = 0.0` does not find -0.0, and `x < 0.0` does.
#
# Guess: a filter compares doubles as Java and SQL do: nothing is greater than 5 and NaN, and the zeros are equal.
# Seen with parquet-hadoop 1.16.0: the bounds of a column are widened to both zeros so that no file is skipped wrongly, but rows are
# compared by Double.compare, where -0.0 is less than 0.0 and NaN is the largest. So what the reader drops for good an engine above cannot
# find again. (Needs java and mvn.)
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
export LC_ALL=C
cat >pom.xml <<'XML'
<project>
  <modelVersion>4.0.0</modelVersion><groupId>x</groupId><artifactId>x</artifactId><version>1</version>
  <dependencies>
    <dependency><groupId>org.apache.parquet</groupId><artifactId>parquet-hadoop</artifactId><version>1.16.0</version></dependency>
    <dependency><groupId>org.apache.hadoop</groupId><artifactId>hadoop-client-runtime</artifactId><version>3.4.1</version></dependency>
    <dependency><groupId>org.slf4j</groupId><artifactId>slf4j-nop</artifactId><version>1.7.36</version></dependency>
  </dependencies>
</project>
XML
mvn --batch-mode --quiet -Dstyle.color=never org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies \
    -DoutputDirectory="$folder" </dev/null
cat ./*.jar | sha256sum --check --quiet <(echo "2233177b1e2194ae1bb27a6a15d7a8b0cd9632fc7ed669d3e38faa1f097436a2  -")
cat >Main.java <<'JAVA'
import static org.apache.parquet.filter2.predicate.FilterApi.*;

import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import org.apache.parquet.conf.PlainParquetConfiguration;
import org.apache.parquet.example.data.Group;
import org.apache.parquet.example.data.simple.SimpleGroup;
import org.apache.parquet.filter2.compat.FilterCompat;
import org.apache.parquet.filter2.predicate.FilterPredicate;
import org.apache.parquet.hadoop.ParquetReader;
import org.apache.parquet.hadoop.ParquetWriter;
import org.apache.parquet.hadoop.api.ReadSupport;
import org.apache.parquet.hadoop.example.ExampleParquetWriter;
import org.apache.parquet.hadoop.example.GroupReadSupport;
import org.apache.parquet.io.InputFile;
import org.apache.parquet.io.LocalInputFile;
import org.apache.parquet.io.LocalOutputFile;
import org.apache.parquet.schema.MessageType;
import org.apache.parquet.schema.MessageTypeParser;

public class Main {
    static int files;

    static class Builder extends ParquetReader.Builder<Group> {
        Builder(InputFile file) {
            super(file, new PlainParquetConfiguration());
        }

        @Override
        protected ReadSupport<Group> getReadSupport() {
            return new GroupReadSupport();
        }
    }

    static List<String> find(FilterPredicate filter, String column, Object... values) throws Exception {
        Path path = Path.of(System.getProperty("user.dir"), ++files + ".parquet");
        MessageType schema = MessageTypeParser.parseMessageType("message m { optional " + column + "; }");
        try (ParquetWriter<Group> writer = ExampleParquetWriter.builder(new LocalOutputFile(path)).withType(schema).build()) {
            for (Object value : values) {
                Group row = new SimpleGroup(schema);
                if (value instanceof Long number) row.add(0, number);
                if (value instanceof Double number) row.add(0, number);
                writer.write(row);
            }
        }
        List<String> seen = new ArrayList<>();
        try (ParquetReader<Group> reader = new Builder(new LocalInputFile(path)).withFilter(FilterCompat.get(filter)).build()) {
            for (Group row = reader.read(); row != null; row = reader.read()) seen.add(row.toString().strip());
        }
        System.out.println(filter + " of " + java.util.Arrays.toString(values) + " in " + column + ": " + seen);
        return seen;
    }

    public static void main(String[] arguments) throws Exception {

        if (!find(gt(doubleColumn("x"), 5.0), "double x", 1.0, Double.NaN, 3.0).equals(List.of("x: NaN"))) throw new AssertionError();
        if (!find(eq(doubleColumn("x"), 0.0), "double x", -0.0, 0.0).equals(List.of("x: 0.0"))) throw new AssertionError();
        if (!find(lt(doubleColumn("x"), 0.0), "double x", -0.0, 0.0).equals(List.of("x: -0.0"))) throw new AssertionError();
        if (!find(gtEq(doubleColumn("x"), 0.0), "double x", -0.0, 1.0).equals(List.of("x: 1.0"))) throw new AssertionError();
    }
}
JAVA
java -cp "$folder/*" Main.java 2>log || { tail -20 log; exit 1; }
