#!/usr/bin/env bash
# Kafka Connect: the transform HoistField makes a tombstone a row.
#
# Guess: a value of null deletes its key, so transforms leave it as it is, as InsertField, ReplaceField and ExtractField do.
# Seen with Kafka 3.9.0: without a schema, null becomes {"field": null}, which is a value: a table downstream keeps the key, with NULL, and
# compaction never drops it. (Needs java and mvn.)
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
import java.util.HashMap;
import java.util.Map;
import org.apache.kafka.connect.source.SourceRecord;
import org.apache.kafka.connect.transforms.ExtractField;
import org.apache.kafka.connect.transforms.HoistField;
import org.apache.kafka.connect.transforms.InsertField;
import org.apache.kafka.connect.transforms.ReplaceField;
import org.apache.kafka.connect.transforms.Transformation;

public class Main {
    static void expect(String name, Object seen, Object expected) {
        System.out.println(name + ": " + seen);
        if (!expected.equals(seen)) throw new AssertionError("expected " + expected);
    }

    static SourceRecord record(Object value) {
        return new SourceRecord(Map.of(), Map.of(), "t", 0, null, null, null, value);
    }

    static String of(Transformation<SourceRecord> transform, Map<String, String> settings) {
        transform.configure(settings);
        return "" + transform.apply(record(null)).value();
    }

    public static void main(String[] arguments) {
        Map<String, String> insert = new HashMap<>(Map.of("static.field", "f", "static.value", "x"));
        expect("InsertField", of(new InsertField.Value<>(), insert), "null");
        expect("ReplaceField", of(new ReplaceField.Value<>(), Map.of("exclude", "f")), "null");
        expect("ExtractField", of(new ExtractField.Value<>(), Map.of("field", "f")), "null");
        expect("HoistField", of(new HoistField.Value<>(), Map.of("field", "f")), "{f=null}");
    }
}
JAVA
java -cp "$folder/*" Main.java
