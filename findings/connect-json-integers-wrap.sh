#!/usr/bin/env bash
# Kafka Connect: the JSON number 9223372036854775808 is read as -9223372036854775808.
#
# Guess: without a schema, JsonConverter reads an integer beyond 64 bits as a BigInteger or a double, or raises.
# Seen with Kafka 3.9.0: it takes the lowest 64 bits, so a counter that passes 2^63 - 1 becomes negative. 9223372036854775808.0 is a double.
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

    static Object read(String json) {
        return converter(false).toConnectData("t", json.getBytes(StandardCharsets.UTF_8)).value();
    }

    public static void main(String[] arguments) {
        expect("2^63 - 1", read("9223372036854775807"), Long.MAX_VALUE);
        expect("2^63", read("9223372036854775808"), Long.MIN_VALUE);
        expect("2^64", read("18446744073709551616"), 0L);
        expect("2^63 as a float", read("9223372036854775808.0"), 0x1p63);
    }
}
JAVA
java -cp "$folder/*" Main.java
