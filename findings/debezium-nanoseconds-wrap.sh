#!/usr/bin/env bash
# Debezium: in nanoseconds, 9999-12-31 is 1816-03-29, and 1600-01-01 is 2184-07-20.
#
# Guess: a time that does not fit 64 bits of nanoseconds is an error, or the greatest that does.
# Seen with Debezium 3.0.8: `NanoTimestamp` multiplies and wraps around, without a word. A column of TIMESTAMP with seven or more digits is
# sent so by `time.precision.mode=adaptive` and `nanoseconds`, and 9999-12-31 is what tables have for an end that is not known: valid until
# 9999 is over since 1816. Milliseconds and microseconds are right. (Needs java and mvn.)
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
io.debezium:debezium-core:3.0.8.Final a80472b7ef67a2a1450c2ad81ab3516a0e86f031f3758da0ae3ce6a5da6c1a9d
io.debezium:debezium-api:3.0.8.Final 9c60133bb8ba673632221f25f35fe885b5b9af31c4c7999d08bb142f9bd1c774
org.apache.kafka:connect-api:3.9.0 402ab205ce9130ae95ec801546a81495e6acc9953d98ac34cee3ba501ad3f57d
org.apache.kafka:kafka-clients:3.9.0 15c1e137f2c2c94398e27abc4060a03b6bde10bf9fac15e8f70c02320b202f18
org.slf4j:slf4j-api:1.7.36 d3ef575e3e4979678dc01bf1dcce51021493b4d11fb7f1be8ad982877c16a1c0
JARS
cat >Main.java <<'JAVA'
import io.debezium.time.MicroTimestamp;
import io.debezium.time.NanoTimestamp;
import java.time.Instant;
import java.time.LocalDateTime;
import java.time.ZoneOffset;

public class Main {
    static void expect(String name, Object seen, String expected) {
        System.out.println(name + ": " + seen);
        if (!seen.toString().equals(expected)) throw new AssertionError("expected " + expected);
    }

    static Object read(long nanoseconds) {
        return Instant.ofEpochSecond(Math.floorDiv(nanoseconds, 1_000_000_000L)).atOffset(ZoneOffset.UTC).toLocalDate();
    }

    public static void main(String[] arguments) {
        LocalDateTime end = LocalDateTime.parse("9999-12-31T00:00"), past = LocalDateTime.parse("1600-01-01T00:00");
        expect("9999-12-31 in microseconds", MicroTimestamp.toEpochMicros(end, null), "253402214400000000");
        expect("9999-12-31 in nanoseconds", NanoTimestamp.toEpochNanos(end, null), "-4852202631933722624");
        expect("read again", read(NanoTimestamp.toEpochNanos(end, null)), "1816-03-29");
        expect("1600-01-01 read again", read(NanoTimestamp.toEpochNanos(past, null)), "2184-07-20");
        expect("2024-01-01 read again", read(NanoTimestamp.toEpochNanos(LocalDateTime.parse("2024-01-01T00:00"), null)), "2024-01-01");
    }
}
JAVA
java -cp "$folder/*" Main.java 2>log || { tail -20 log; exit 1; }
