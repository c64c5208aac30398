#!/usr/bin/env bash
# Jackson: the number 1e400 that is read as a tree is written as the text "Infinity".
#
# Guess: JSON that is read as a tree and written is the same JSON, or at least numbers stay numbers.
# Seen with Jackson 2.18.3: numbers with a point are read as doubles; one beyond their range becomes infinite, and is written in quotes,
# which the next reader takes for a text. 9007199254740993.0 as a long is 9007199254740992; as a boolean, 2 is true. (Needs java and mvn.)
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
com.fasterxml.jackson.core:jackson-core:2.18.3 056bc4d3e5e53ce821450fa97b3f9e0f8dde125cf6da6884353bb1f09582e1d9
com.fasterxml.jackson.core:jackson-databind:2.18.3 510bdda75a7a6186c5bf33b851239488a1450906ae5757121f2e1cc48a7e108f
com.fasterxml.jackson.core:jackson-annotations:2.18.3 8aa5740d80b5a5025508b41bbadbaa1fb3772267c628b2e30681a4f45f8b8931
JARS
cat >Main.java <<'JAVA'
import com.fasterxml.jackson.databind.ObjectMapper;

public class Main {
    static void expect(String name, Object seen, String expected) {
        System.out.println(name + ": " + seen);
        if (!seen.toString().equals(expected)) throw new AssertionError("expected " + expected);
    }

    public static void main(String[] arguments) throws Exception {
        ObjectMapper mapper = new ObjectMapper();
        String written = mapper.writeValueAsString(mapper.readTree("{\"x\": 1e400}"));
        expect("1e400 read and written", written, "{\"x\":\"Infinity\"}");
        expect("and read again", mapper.readTree(written).get("x").getNodeType(), "STRING");
        expect("0.12345678901234567890 read and written", mapper.readTree("0.12345678901234567890"), "0.12345678901234568");
        expect("9007199254740993.0 as long", mapper.readValue("9007199254740993.0", long.class), "9007199254740992");
        expect("2 as boolean", mapper.readValue("2", boolean.class), "true");
    }
}
JAVA
java -cp "$folder/*" Main.java 2>log || { tail -20 log; exit 1; }
