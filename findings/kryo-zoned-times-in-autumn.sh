#!/usr/bin/env bash
# Kryo, Fory: 02:30 after the clocks were set back comes back as 02:30 before, one hour earlier.
#
# Guess: a ZonedDateTime that is serialized and read again is the same instant.
# Seen with Kryo 5.6.2, which keeps types in Flink's state that Flink does not know, and Fory 0.11.2: both write the local time and the
# zone, without the offset. The hour that there is twice is read as its first pass, so events of the second pass are an hour early.
# java.time's own serialization keeps the offset. (Needs java and mvn.)
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
com.esotericsoftware:kryo:5.6.2 4e8b1d2f4977187af8a51a957329722dc1cdc56a7c94fbb5a791e82897629cff
com.esotericsoftware:minlog:1.3.1 5d4d632cfbebfe0a7644501cc303570b691406181bee65e9916b921c767d7c72
com.esotericsoftware:reflectasm:1.11.9 712b44da79a5b7f47a28cbfcb3d8ecfc872fae349c48aa4d3e38a5d69956afce
org.apache.fory:fory-core:0.11.2 f6053f2479e91b0ec7b9696aee8f1706722e8a6620f603678455fb76acf15126
org.objenesis:objenesis:3.4 95488102feaf2e2858adf6b299353677dac6c15294006f8ed1c5556f8e3cd251
com.google.guava:guava:32.0.1-jre bd7fa227591fb8509677d0d1122cf95158f3b8a9f45653f58281d879f6dc48c5
com.google.guava:failureaccess:1.0.1 a171ee4c734dd2da837e4b16be9df4661afab72a41adaf31eb84dfdaf936ca26
org.slf4j:slf4j-api:1.7.36 d3ef575e3e4979678dc01bf1dcce51021493b4d11fb7f1be8ad982877c16a1c0
JARS
cat >Main.java <<'JAVA'
import com.esotericsoftware.kryo.Kryo;
import com.esotericsoftware.kryo.io.Input;
import com.esotericsoftware.kryo.io.Output;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.ObjectInputStream;
import java.io.ObjectOutputStream;
import java.time.Instant;
import java.time.ZonedDateTime;
import org.apache.fory.Fory;

public class Main {
    public static void main(String[] arguments) throws Exception {
        ZonedDateTime time = ZonedDateTime.parse("2024-10-27T02:30+01:00[Europe/Berlin]");
        Kryo kryo = new Kryo();
        kryo.register(ZonedDateTime.class);
        Output output = new Output(256);
        kryo.writeObject(output, time);
        Instant ofKryo = kryo.readObject(new Input(output.toBytes()), ZonedDateTime.class).toInstant();
        Fory fory = Fory.builder().build();
        Instant ofFory = ((ZonedDateTime) fory.deserialize(fory.serialize(time))).toInstant();
        ByteArrayOutputStream bytes = new ByteArrayOutputStream();
        new ObjectOutputStream(bytes).writeObject(time);
        Object ofJava = new ObjectInputStream(new ByteArrayInputStream(bytes.toByteArray())).readObject();
        System.out.println(time.toInstant() + ": Kryo " + ofKryo + ", Fory " + ofFory + ", Java " + ((ZonedDateTime) ofJava).toInstant());
        if (!ofKryo.equals(time.toInstant().minusSeconds(3600))) throw new AssertionError();
        if (!ofFory.equals(time.toInstant().minusSeconds(3600))) throw new AssertionError();
        if (!ofJava.equals(time)) throw new AssertionError();
    }
}
JAVA
java -cp "$folder/*" Main.java 2>log || { tail -20 log; exit 1; }
