#!/usr/bin/env bash
# ORC in Java: 0.0 and -0.0 are read as two times the first of them, unless another number is there.
#
# Guess: a double comes back bit by bit.
# Seen with orc-core 2.1.2: the reader marks a batch as repeating if all its values are equal to the first, and 0.0 equals -0.0. So the
# signs of zeros in a batch depend on whether one other number is in it, and 1 / x is infinity instead of -infinity. (Needs java and mvn.)
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
import org.apache.orc.OrcFile;
import org.apache.orc.Reader;
import org.apache.orc.RecordReader;
import org.apache.orc.TypeDescription;
import org.apache.orc.Writer;

public class Main {
    static int files;


    static String roundTrip(double... values) throws Exception {
        Configuration settings = new Configuration();
        Path path = new Path(System.getProperty("user.dir"), ++files + ".orc");
        TypeDescription schema = TypeDescription.fromString("struct<x:double>");
        VectorizedRowBatch batch = schema.createRowBatch();
        try (Writer writer = OrcFile.createWriter(path, OrcFile.writerOptions(settings).setSchema(schema))) {
            for (double value : values) ((DoubleColumnVector) batch.cols[0]).vector[batch.size++] = value;
            writer.addRowBatch(batch);
        }
        List<Double> seen = new ArrayList<>();
        try (Reader reader = OrcFile.createReader(path, OrcFile.readerOptions(settings)); RecordReader rows = reader.rows()) {
            while (rows.nextBatch(batch)) {
                DoubleColumnVector column = (DoubleColumnVector) batch.cols[0];
                for (int i = 0; i < batch.size; i++) seen.add(column.vector[column.isRepeating ? 0 : i]);
            }
            return seen.toString();
        }
    }

    public static void main(String[] arguments) throws Exception {
        List<String> seen = List.of(roundTrip(0.0, -0.0), roundTrip(-0.0, 0.0), roundTrip(0.0, -0.0, 1.0));
        System.out.println(seen);
        if (!seen.equals(List.of("[0.0, 0.0]", "[-0.0, -0.0]", "[0.0, -0.0, 1.0]"))) throw new AssertionError();
    }
}
JAVA
java -cp "$folder/*" Main.java 2>log || { tail -20 log; exit 1; }
