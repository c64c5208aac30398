#!/usr/bin/env bash
# Avro in Java: the decimal 1.25 that was written with scale 2 is 0.125 for a reader whose schema has scale 3.
#
# Guess: schema resolution scales the number, or refuses schemas of different scales, as the specification says that they do not match.
# Seen with Avro 1.12.0: only the bytes are resolved, and the reader's scale is put to them, so a column whose scale has grown has all its
# old amounts divided by ten. `SchemaCompatibility` finds the two schemas compatible. (A registry that asks it lets the new schema in.)
# (Needs java and mvn.)
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
while read -r name digest; do
    mvn --batch-mode --quiet -Dstyle.color=never org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy \
        -Dartifact="$name" -DoutputDirectory="$folder" </dev/null
    IFS=: read -r _ artifact version <<<"$name"
    echo "$digest  $artifact-$version.jar" | sha256sum --check --quiet
done <<'JARS'
org.apache.avro:avro:1.12.0 1f5fbfff9b7427d6832cc3031a3c81413d3e21d9e2551847d9231c28493f9492
com.fasterxml.jackson.core:jackson-core:2.17.2 721a189241dab0525d9e858e5cb604d3ecc0ede081e2de77d6f34fa5779a5b46
com.fasterxml.jackson.core:jackson-databind:2.17.2 c04993f33c0f845342653784f14f38373d005280e6359db5f808701cfae73c0c
com.fasterxml.jackson.core:jackson-annotations:2.17.2 873a606e23507969f9bbbea939d5e19274a88775ea5a169ba7e2d795aa5156e1
org.slf4j:slf4j-api:2.0.13 e7c2a48e8515ba1f49fa637d57b4e2f590b3f5bd97407ac699c3aa5efb1204a9
org.apache.commons:commons-compress:1.26.2 9168a03141d8fc7eda21a2360d83cc0412bcbb1d6204d992bd48c2573cb3c6b8
JARS
cat >Main.java <<'JAVA'
import java.io.ByteArrayOutputStream;
import java.math.BigDecimal;
import org.apache.avro.Conversions;
import org.apache.avro.LogicalTypes;
import org.apache.avro.Schema;
import org.apache.avro.SchemaCompatibility;
import org.apache.avro.generic.GenericData;
import org.apache.avro.generic.GenericDatumReader;
import org.apache.avro.generic.GenericDatumWriter;
import org.apache.avro.io.BinaryEncoder;
import org.apache.avro.io.DecoderFactory;
import org.apache.avro.io.EncoderFactory;

public class Main {
    static void expect(String name, Object seen, String expected) {
        System.out.println(name + ": " + seen);
        if (!seen.toString().equals(expected)) throw new AssertionError("expected " + expected);
    }

    static Schema decimal(int precision, int scale) {
        return LogicalTypes.decimal(precision, scale).addToSchema(Schema.create(Schema.Type.BYTES));
    }

    static Object read(byte[] bytes, Schema writer, Schema reader) throws Exception {
        return new GenericDatumReader<>(writer, reader).read(null, DecoderFactory.get().binaryDecoder(bytes, null));
    }

    public static void main(String[] arguments) throws Exception {
        GenericData.get().addLogicalTypeConversion(new Conversions.DecimalConversion());
        Schema two = decimal(9, 2), three = decimal(9, 3), one = decimal(9, 1);
        ByteArrayOutputStream bytes = new ByteArrayOutputStream();
        BinaryEncoder encoder = EncoderFactory.get().binaryEncoder(bytes, null);
        new GenericDatumWriter<BigDecimal>(two).write(new BigDecimal("1.25"), encoder);
        encoder.flush();
        expect("1.25 read with scale 2", read(bytes.toByteArray(), two, two), "1.25");
        expect("1.25 read with scale 3", read(bytes.toByteArray(), two, three), "0.125");
        expect("1.25 read with scale 1", read(bytes.toByteArray(), two, one), "12.5");
        expect("compatible", SchemaCompatibility.checkReaderWriterCompatibility(three, two).getType(), "COMPATIBLE");
    }
}
JAVA
java -cp "$folder/*" Main.java 2>log || { tail -20 log; exit 1; }
