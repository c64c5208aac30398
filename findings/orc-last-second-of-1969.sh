#!/usr/bin/env bash
# ORC in Java: 23:59:59.5 of 1969-12-31 is read as 1970-01-01 00:00:00.5, and the second before is read as it is.
#
# Guess: a timestamp comes back as it was written, to the nanosecond.
# Seen with orc-core 2.1.2: seconds and nanoseconds are two streams, and the seconds are counted from 2015 and cut towards zero. The
# reader corrects times before 1970 by one second if they have a fraction, which the last second of 1969 does not look like. The
# statistics of the file have the later time, too, so a search for the true one skips the file. (Needs java and mvn.)
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
import org.apache.hadoop.hive.ql.exec.vector.TimestampColumnVector;
import org.apache.hadoop.hive.ql.exec.vector.VectorizedRowBatch;
import org.apache.orc.OrcFile;
import org.apache.orc.Reader;
import org.apache.orc.RecordReader;
import org.apache.orc.TypeDescription;
import org.apache.orc.Writer;

public class Main {
    static int files;


    static List<String> roundTrip(String... times) throws Exception {
        Configuration settings = new Configuration();
        Path path = new Path(System.getProperty("user.dir"), ++files + ".orc");
        TypeDescription schema = TypeDescription.fromString("struct<x:timestamp>");
        VectorizedRowBatch batch = schema.createRowBatch();
        try (Writer writer = OrcFile.createWriter(path, OrcFile.writerOptions(settings).setSchema(schema))) {
            for (String time : times) ((TimestampColumnVector) batch.cols[0]).set(batch.size++, java.sql.Timestamp.valueOf(time));
            writer.addRowBatch(batch);
        }
        List<String> seen = new ArrayList<>();
        try (Reader reader = OrcFile.createReader(path, OrcFile.readerOptions(settings)); RecordReader rows = reader.rows()) {
            while (rows.nextBatch(batch)) {
                TimestampColumnVector column = (TimestampColumnVector) batch.cols[0];
                for (int i = 0; i < batch.size; i++) seen.add(column.asScratchTimestamp(column.isRepeating ? 0 : i).toString());
            }
            seen.add(reader.getStatistics()[1].toString().replaceAll(".*max: ", "max "));
        }
        return seen;
    }

    public static void main(String[] arguments) throws Exception {
        List<String> seen = roundTrip("1969-12-31 23:59:57.5", "1969-12-31 23:59:58.5", "1969-12-31 23:59:59.5", "1970-01-01 00:00:00.25");
        System.out.println(seen);
        if (!seen.equals(List.of("1969-12-31 23:59:57.5", "1969-12-31 23:59:58.5", "1970-01-01 00:00:00.5", "1970-01-01 00:00:00.25",
                "max 1970-01-01 00:00:00.5"))) throw new AssertionError();
    }
}
JAVA
java -Duser.timezone=UTC -cp "$folder/*" Main.java 2>log || { tail -20 log; exit 1; }
