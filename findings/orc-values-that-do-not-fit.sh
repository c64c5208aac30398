#!/usr/bin/env bash
# ORC in Java: 12345.6 as DECIMAL(5, 2) is NULL, 300 as TINYINT is 44, and 2^40 as INT is 2^40.
#
# Guess: a value that its column cannot have is an error of the writer.
# Seen with orc-core 2.1.2: there is no error in any case. A decimal with too many digits is NULL, and the statistics say that there is a
# NULL; one with too many decimals is rounded, and 999.995 thereby becomes NULL. Bytes wrap around. An INT or SMALLINT is written with all
# 64 bits, and a reader that has another buffer sees what it makes of them. (Needs java and mvn.)
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
import org.apache.hadoop.hive.ql.exec.vector.DecimalColumnVector;
import org.apache.hadoop.hive.ql.exec.vector.LongColumnVector;
import org.apache.hadoop.hive.ql.exec.vector.VectorizedRowBatch;
import org.apache.hadoop.hive.common.type.HiveDecimal;
import org.apache.orc.OrcFile;
import org.apache.orc.Reader;
import org.apache.orc.RecordReader;
import org.apache.orc.TypeDescription;
import org.apache.orc.Writer;

public class Main {
    static int files;


    static String roundTrip(String type, String... values) throws Exception {
        Configuration settings = new Configuration();
        Path path = new Path(System.getProperty("user.dir"), ++files + ".orc");
        TypeDescription schema = TypeDescription.fromString("struct<x:" + type + ">");
        VectorizedRowBatch batch = schema.createRowBatch();
        try (Writer writer = OrcFile.createWriter(path, OrcFile.writerOptions(settings).setSchema(schema))) {
            for (String value : values) {
                if (batch.cols[0] instanceof LongColumnVector column) column.vector[batch.size++] = Long.parseLong(value);
                if (batch.cols[0] instanceof DecimalColumnVector column) column.set(batch.size++, HiveDecimal.create(value));
            }
            writer.addRowBatch(batch);
        }
        List<String> seen = new ArrayList<>();
        try (Reader reader = OrcFile.createReader(path, OrcFile.readerOptions(settings)); RecordReader rows = reader.rows()) {
            while (rows.nextBatch(batch)) {
                for (int i = 0; i < batch.size; i++) {
                    StringBuilder text = new StringBuilder();
                    batch.cols[0].stringifyValue(text, i);
                    seen.add(text.toString());
                }
            }
        }
        return type + " " + seen;
    }

    public static void main(String[] arguments) throws Exception {
        List<String> seen = List.of(roundTrip("decimal(5,2)", "12345.6", "1.235", "999.995"), roundTrip("tinyint", "1", "300"),
                roundTrip("smallint", "1", "70000"), roundTrip("int", "1", "1099511627776"));
        System.out.println(seen);
        if (!seen.equals(List.of("decimal(5,2) [null, 1.24, null]", "tinyint [1, 44]", "smallint [1, 70000]", "int [1, 1099511627776]")))
            throw new AssertionError();
    }
}
JAVA
java -cp "$folder/*" Main.java 2>log || { tail -20 log; exit 1; }
