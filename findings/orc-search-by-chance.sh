#!/usr/bin/env bash
# ORC in Java: a search for 0.0 skips files that have -0.0 only, and the statistics of 1, NaN, 3 and of NaN, 1, 3 differ.
#
# Guess: a file is skipped only if no value in it matches, and minimum and maximum do not depend on the order.
# Seen with orc-core 2.1.2: `x = 0.0` is compared with the bounds by the total order of Double.compareTo, so a file of -0.0 is skipped,
# though -0.0 = 0.0. Once there is a 0.0 the bounds are both 0.0, and a search for -0.0 skips the file. A NaN that is first is the minimum
# and the maximum; a later one is in neither. (Needs java and mvn.)
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
export LC_ALL=C
cat >pom.xml <<'XML'
<project>
  <modelVersion>4.0.0</modelVersion><groupId>x</groupId><artifactId>x</artifactId><version>1</version>
  <dependencies>
    <dependency><groupId>org.apache.orc</groupId><artifactId>orc-core</artifactId><version>2.1.2</version></dependency>
    <dependency><groupId>org.apache.hive</groupId><artifactId>hive-storage-api</artifactId><version>2.8.1</version></dependency>
    <dependency><groupId>com.google.protobuf</groupId><artifactId>protobuf-java</artifactId><version>3.25.5</version></dependency>
    <dependency><groupId>org.apache.hadoop</groupId><artifactId>hadoop-client-runtime</artifactId><version>3.4.1</version></dependency>
    <dependency><groupId>org.slf4j</groupId><artifactId>slf4j-nop</artifactId><version>2.0.16</version></dependency>
  </dependencies>
</project>
XML
mvn --batch-mode --quiet -Dstyle.color=never org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies \
    -DoutputDirectory="$folder" </dev/null
cat ./*.jar | sha256sum --check --quiet <(echo "e95180671b6c5d167544c4cb120e27fd70dc71329958cd8fbdcec3daad38c7a9  -")
cat >Main.java <<'JAVA'
import java.util.ArrayList;
import java.util.List;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.hive.ql.exec.vector.DoubleColumnVector;
import org.apache.hadoop.hive.ql.exec.vector.VectorizedRowBatch;
import org.apache.hadoop.hive.ql.io.sarg.PredicateLeaf;
import org.apache.hadoop.hive.ql.io.sarg.SearchArgumentFactory;
import org.apache.orc.OrcFile;
import org.apache.orc.Reader;
import org.apache.orc.RecordReader;
import org.apache.orc.TypeDescription;
import org.apache.orc.Writer;

public class Main {
    static int files;


    static String search(double zero, double... values) throws Exception {
        Configuration settings = new Configuration();
        Path path = new Path(System.getProperty("user.dir"), ++files + ".orc");
        TypeDescription schema = TypeDescription.fromString("struct<x:double>");
        VectorizedRowBatch batch = schema.createRowBatch();
        try (Writer writer = OrcFile.createWriter(path, OrcFile.writerOptions(settings).setSchema(schema))) {
            for (double value : values) ((DoubleColumnVector) batch.cols[0]).vector[batch.size++] = value;
            writer.addRowBatch(batch);
        }
        List<Double> seen = new ArrayList<>();
        try (Reader reader = OrcFile.createReader(path, OrcFile.readerOptions(settings)); RecordReader rows = reader.rows(
                reader.options().searchArgument(SearchArgumentFactory.newBuilder().equals("x", PredicateLeaf.Type.FLOAT, zero).build(),
                        new String[] {"x"}))) {
            while (rows.nextBatch(batch)) {
                DoubleColumnVector column = (DoubleColumnVector) batch.cols[0];
                for (int i = 0; i < batch.size; i++) seen.add(column.vector[column.isRepeating ? 0 : i]);
            }
            return seen + reader.getStatistics()[1].toString().replaceAll(".*(min.*) sum.*", " $1");
        }
    }

    public static void main(String[] arguments) throws Exception {
        double nan = Double.NaN;
        List<String> seen = List.of(search(0.0, -0.0), search(-0.0, 0.0), search(0.0, -1, -0.0, 1), search(2, 1, nan, 3), search(2, nan, 1, 3));
        seen.forEach(System.out::println);
        if (!seen.equals(List.of("[] min: -0.0 max: -0.0", "[] min: 0.0 max: 0.0", "[-1.0, -0.0, 1.0] min: -1.0 max: 1.0",
                "[1.0, NaN, 3.0] min: 1.0 max: 3.0", "[NaN, 1.0, 3.0] min: NaN max: NaN"))) throw new AssertionError();
    }
}
JAVA
java -cp "$folder/*" Main.java 2>log || { tail -20 log; exit 1; }
