#!/usr/bin/env bash
# Kafka Connect: TimestampConverter makes 1 microsecond before 1970 1970, but 1 ms before 1970 the DATE 1969-12-31.
#
# Guess: a time that loses digits is rounded down everywhere, so that times before 1970 keep their second and their day.
# Seen with Kafka 3.9.0: microseconds and nanoseconds, and seconds as an output, are rounded toward 1970; Date rounds down. A text with
# microseconds is another time: .123456 is read as 123456 milliseconds, two minutes later. (Needs java and mvn.)
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
import java.util.Date;
import java.util.HashMap;
import java.util.Map;
import org.apache.kafka.connect.source.SourceRecord;
import org.apache.kafka.connect.transforms.TimestampConverter;

public class Main {
    static void expect(String name, Object seen, Object expected) {
        System.out.println(name + ": " + seen);
        if (!expected.equals(seen)) throw new AssertionError("expected " + expected);
    }

    static SourceRecord record(Object value) {
        return new SourceRecord(Map.of(), Map.of(), "t", 0, null, null, null, value);
    }

    static Object convert(Object value, String type, String... settings) {
        Map<String, String> all = new HashMap<>(Map.of("target.type", type));
        if (settings.length > 0) all.put(settings[0], settings[1]);
        try (TimestampConverter.Value<SourceRecord> converter = new TimestampConverter.Value<>()) {
            converter.configure(all);
            Object result = converter.apply(record(value)).value();
            return result instanceof Date date ? date.toInstant().toString() : result;
        }
    }

    public static void main(String[] arguments) {
        String before = "1969-12-31T23:59:59.999Z";
        String format = "yyyy-MM-dd HH:mm:ss.SSS";
        String late = "2024-01-01 00:00:00.123456";
        expect("-1 ms", convert(-1L, "Timestamp", "unix.precision", "milliseconds"), before);
        expect("-1 us", convert(-1L, "Timestamp", "unix.precision", "microseconds"), "1970-01-01T00:00:00Z");
        expect("-1001 us", convert(-1001L, "Timestamp", "unix.precision", "microseconds"), before);
        expect("-1 ms in seconds", convert(new Date(-1), "unix", "unix.precision", "seconds"), 0L);
        expect("the day of -1 ms", convert(new Date(-1), "Date"), "1969-12-31T00:00:00Z");
        expect(late, convert(late, "Timestamp", "format", format), "2024-01-01T00:02:03.456Z");
    }
}
JAVA
java -cp "$folder/*" Main.java
