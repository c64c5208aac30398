#!/usr/bin/env bash
# Kafka Connect: a NaN that JsonConverter writes it reads as 0.0, and the text "12" as the integer 0.
#
# Guess: with schemas, what JsonConverter writes it reads back, or one of the two is an error; a value that is not of its type is an error.
# Seen with Kafka 3.9.0: NaN and infinity are written as the texts "NaN" and "Infinity", and each text is 0.0 as a number, without a word.
# So is "12" 0 as int64, 2^40 as int32 0, "true" as boolean false and 5 as string null. (Needs java and mvn.)
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
org.apache.kafka:connect-json:3.9.0 89b870d9d3af94c0d88ff3e8c513afae3e39d6c1fc17356bcf60ed1b525a35ec
com.fasterxml.jackson.core:jackson-core:2.16.2 4f43e2f1430b2d2413e8e5a3d79138e57e891d6a961b18c28ac90859639d8664
com.fasterxml.jackson.core:jackson-databind:2.16.2 53b6025d98c357068296e4b134242443a248c2c582800879f1c4ea93b54bafa6
com.fasterxml.jackson.core:jackson-annotations:2.16.2 d1cdd269ebaa753d1842933194e17d61958f058952d63e03dbfb3d1d78a6926e
com.fasterxml.jackson.datatype:jackson-datatype-jdk8:2.16.2 3e9b1b59f638b487b5ae0e2f4190fc98f72b0bf661324e7dfc71a69f6b9d4e29
com.fasterxml.jackson.module:jackson-module-afterburner:2.16.2 fef507a195fe2597f0217caf591c90a7e56ca4db3b83ffcfba59ca49b4d14bfe
org.slf4j:slf4j-api:1.7.25 18c4a0095d5c1da6b817592e767bb23d29dd2f560ad74df75ff3961dbde25b79
JARS
cat >Main.java <<'JAVA'
import java.nio.charset.StandardCharsets;
import java.util.Map;
import org.apache.kafka.connect.data.Schema;
import org.apache.kafka.connect.json.JsonConverter;

public class Main {
    static void expect(String name, Object seen, Object expected) {
        System.out.println(name + ": " + seen);
        if (!expected.equals(seen)) throw new AssertionError("expected " + expected);
    }

    static JsonConverter converter(boolean schemas) {
        JsonConverter converter = new JsonConverter();
        converter.configure(Map.of("schemas.enable", "" + schemas, "converter.type", "value"));
        return converter;
    }

    static String read(String type, String payload) {
        String message = "{\"schema\": {\"type\": \"" + type + "\"}, \"payload\": " + payload + "}";
        return "" + converter(true).toConnectData("t", message.getBytes(StandardCharsets.UTF_8)).value();
    }

    public static void main(String[] arguments) {
        for (double number : new double[] {1.5, Double.NaN, Double.POSITIVE_INFINITY}) {
            byte[] written = converter(true).fromConnectData("t", Schema.FLOAT64_SCHEMA, number);
            Object seen = converter(true).toConnectData("t", written).value();
            expect(number + " written and read", seen, number == 1.5 ? 1.5 : 0.0);
        }
        expect("\"12\" as int64", read("int64", "\"12\""), "0");
        expect("2^40 as int32", read("int32", "1099511627776"), "0");
        expect("\"true\" as boolean", read("boolean", "\"true\""), "false");
        expect("5 as string", read("string", "5"), "null");
    }
}
JAVA
java -cp "$folder/*" Main.java
