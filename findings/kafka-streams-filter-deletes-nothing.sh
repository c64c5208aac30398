#!/usr/bin/env bash
# Kafka Streams: a filter of a table sends deletes of keys that never passed it.
#
# Guess: a key that did not pass the filter before and does not now changes nothing downstream, so nothing is sent.
# Seen with Kafka 3.9.0: each update of a row that does not pass is a tombstone, and so is a delete of a key that never was. Of a filter
# that keeps 1 row in 1000, the change stream is deletes for the most part. (Needs java and mvn.)
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
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;
import org.apache.kafka.streams.KeyValue;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.TopologyTestDriver;

public class Main {
    public static void main(String[] arguments) {
        StreamsBuilder builder = new StreamsBuilder();
        builder.<String, String>table("in").filter((k, v) -> v.equals("yes")).toStream().to("out");
        Properties settings = new Properties();
        settings.put("application.id", "a");
        settings.put("bootstrap.servers", "localhost:1");
        settings.put("state.dir", System.getProperty("user.dir"));
        settings.put("statestore.cache.max.bytes", "0");
        settings.put("default.key.serde", Serdes.StringSerde.class.getName());
        settings.put("default.value.serde", Serdes.StringSerde.class.getName());
        List<String> seen = new ArrayList<>();
        try (TopologyTestDriver driver = new TopologyTestDriver(builder.build(), settings)) {
            var input = driver.createInputTopic("in", new StringSerializer(), new StringSerializer());
            var output = driver.createOutputTopic("out", new StringDeserializer(), new StringDeserializer());
            input.pipeInput("a", "no", 1);
            input.pipeInput("a", "no", 2);
            input.pipeInput("b", "yes", 3);
            input.pipeInput("c", null, 4);
            for (KeyValue<String, String> row : output.readKeyValuesToList()) seen.add(row.key + " " + row.value);
        }
        System.out.println(seen);
        if (!seen.equals(List.of("a null", "a null", "b yes", "c null"))) throw new AssertionError();
    }
}
JAVA
java -cp "$folder/*" Main.java
