#!/usr/bin/env bash
# Kafka Connect: the transform Cast makes 300 the int8 44, NaN the int32 0, and raises for the text "300".
#
# Guess: a number that is out of range is an error, as a text is: "was out of range for requested data type".
# Seen with Kafka 3.9.0: numbers are cast as Java casts them: integers lose their high bits, 2^40 as int32 is 0, NaN is 0, and 1e300 as
# int64 is 2^63 - 1. Only texts are checked. (Needs java and mvn.)
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
org.apache.kafka:kafka-clients:3.9.0 15c1e137f2c2c94398e27abc4060a03b6bde10bf9fac15e8f70c02320b202f18
org.apache.kafka:connect-api:3.9.0 402ab205ce9130ae95ec801546a81495e6acc9953d98ac34cee3ba501ad3f57d
org.apache.kafka:connect-transforms:3.9.0 d44cd7055bd00d96a816db79584962610113e59cf63ba224d1d6b40092e6c6bb
org.slf4j:slf4j-api:1.7.25 18c4a0095d5c1da6b817592e767bb23d29dd2f560ad74df75ff3961dbde25b79
JARS
cat >Main.java <<'JAVA'
import java.util.Map;
import org.apache.kafka.connect.source.SourceRecord;
import org.apache.kafka.connect.transforms.Cast;

public class Main {
    static void expect(String name, Object seen, Object expected) {
        System.out.println(name + ": " + seen);
        if (!expected.equals(seen)) throw new AssertionError("expected " + expected);
    }

    static SourceRecord record(Object value) {
        return new SourceRecord(Map.of(), Map.of(), "t", 0, null, null, null, value);
    }

    static Object cast(Object value, String type) {
        try (Cast.Value<SourceRecord> cast = new Cast.Value<>()) {
            cast.configure(Map.of("spec", type));
            return cast.apply(record(value)).value();
        } catch (RuntimeException error) {
            return error.getMessage();
        }
    }

    public static void main(String[] arguments) {
        expect("300 as int8", cast(300, "int8"), (byte) 44);
        expect("\"300\" as int8", cast("300", "int8"), "Value (300) was out of range for requested data type");
        expect("2^40 as int32", cast(1L << 40, "int32"), 0);
        expect("NaN as int32", cast(Double.NaN, "int32"), 0);
        expect("1e300 as int64", cast(1e300, "int64"), Long.MAX_VALUE);
    }
}
JAVA
java -cp "$folder/*" Main.java
