#!/usr/bin/env bash
# Kafka Streams: a table keeps the record that came last, though it is older, and `count` skips records without a value.
#
# Guess: records have timestamps, so the newest is the row of a table, as windows go by them; and a count is the number of records.
# Seen with Kafka Streams 3.9.0: a table follows the offsets, so a late record of time 5 replaces that of time 10, and what is joined or
# summed from the table goes back. Only a versioned store drops it. The `count` of a grouped stream leaves out records whose value is
# null, which is what an event of a key alone is; `aggregate` and `reduce` do not see them, either. (Needs java and mvn.)
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
org.apache.kafka:kafka-streams:3.9.0 a84dfb37f451f4d659c2f808b6dbd7143a7528838490ce9a1b340fc914b9d366
org.apache.kafka:kafka-streams-test-utils:3.9.0 a4f05f4ccbdd6cf109cbef3c1a53595d8b8f42fd0bf02d2755fe5211d8e5df6c
org.rocksdb:rocksdbjni:7.9.2 0e0e886c44ef1a04104116a05c7e03e9b24069d7fbc6a0fb2cde2032fa92cb20
com.fasterxml.jackson.core:jackson-core:2.16.2 4f43e2f1430b2d2413e8e5a3d79138e57e891d6a961b18c28ac90859639d8664
com.fasterxml.jackson.core:jackson-databind:2.16.2 53b6025d98c357068296e4b134242443a248c2c582800879f1c4ea93b54bafa6
com.fasterxml.jackson.core:jackson-annotations:2.16.2 d1cdd269ebaa753d1842933194e17d61958f058952d63e03dbfb3d1d78a6926e
org.slf4j:slf4j-api:1.7.25 18c4a0095d5c1da6b817592e767bb23d29dd2f560ad74df75ff3961dbde25b79
JARS
cat >Main.java <<'JAVA'
import java.util.ArrayList;
import java.util.List;
import java.util.Properties;
import java.util.function.Consumer;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;
import org.apache.kafka.streams.KeyValue;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.TestInputTopic;
import org.apache.kafka.streams.TopologyTestDriver;

public class Main {
    static List<String> run(StreamsBuilder builder, Consumer<TestInputTopic<String, String>> records) {
        Properties settings = new Properties();
        settings.put("application.id", "a");
        settings.put("bootstrap.servers", "localhost:1");
        settings.put("state.dir", System.getProperty("user.dir"));
        settings.put("statestore.cache.max.bytes", "0");
        settings.put("default.key.serde", Serdes.StringSerde.class.getName());
        settings.put("default.value.serde", Serdes.StringSerde.class.getName());
        List<String> seen = new ArrayList<>();
        try (TopologyTestDriver driver = new TopologyTestDriver(builder.build(), settings)) {
            records.accept(driver.createInputTopic("in", new StringSerializer(), new StringSerializer()));
            var output = driver.createOutputTopic("out", new StringDeserializer(), new StringDeserializer());
            for (KeyValue<String, String> row : output.readKeyValuesToList()) seen.add(row.value);
        }
        System.out.println(seen);
        return seen;
    }

    public static void main(String[] arguments) {
        StreamsBuilder table = new StreamsBuilder();
        table.<String, String>table("in").toStream().to("out");
        List<String> rows = run(table, in -> {
            in.pipeInput("k", "of time 10", 10);
            in.pipeInput("k", "of time 5", 5);
        });
        StreamsBuilder count = new StreamsBuilder();
        count.<String, String>stream("in").groupByKey().count().toStream().mapValues(number -> "" + number).to("out");
        List<String> counts = run(count, in -> {
            in.pipeInput("k", "x");
            in.pipeInput("k", (String) null);
            in.pipeInput("k", "y");
        });
        if (!rows.equals(List.of("of time 10", "of time 5")) || !counts.equals(List.of("1", "2"))) throw new AssertionError();
    }
}
JAVA
java -cp "$folder/*" Main.java 2>log || { tail -20 log; exit 1; }
