#!/usr/bin/env bash
# Kryo: a transient field is in the copy and not in what is read; nanoseconds of a Timestamp are in neither.
#
# Guess: a copy has the fields that a serialized object has, and both have all digits of a java.sql.Timestamp.
# Seen with Kryo 5.6.2: `copy` takes transient fields along and keeps a list that two fields share one list; what is written and read has
# the transient field as the constructor leaves it, and two lists. So an engine that copies its state in memory, and one that writes it,
# hold different objects. A Timestamp is written and copied as milliseconds. (Needs java and mvn.)
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
org.objenesis:objenesis:3.4 95488102feaf2e2858adf6b299353677dac6c15294006f8ed1c5556f8e3cd251
JARS
cat >Main.java <<'JAVA'
import com.esotericsoftware.kryo.Kryo;
import com.esotericsoftware.kryo.io.Input;
import com.esotericsoftware.kryo.io.Output;
import java.sql.Timestamp;
import java.util.ArrayList;
import java.util.List;

public class Main {
    public static class State {
        transient int count = 1;
        ArrayList<String> first = new ArrayList<>();
        ArrayList<String> second = first;
        Timestamp time = Timestamp.valueOf("2024-01-01 00:00:00.123456789");
    }

    static List<Object> describe(State state) {
        return List.of(state.count, state.first == state.second, state.time.getNanos());
    }

    public static void main(String[] arguments) {
        Kryo kryo = new Kryo();
        for (Class<?> type : List.of(State.class, ArrayList.class, Timestamp.class)) kryo.register(type);
        State state = new State();
        state.count = 7;
        Output output = new Output(256);
        kryo.writeObject(output, state);
        State read = kryo.readObject(new Input(output.toBytes()), State.class);
        State copy = kryo.copy(state);
        System.out.println("transient field, one list, nanoseconds: " + describe(state) + ", copied " + describe(copy) + ", read " + describe(read));
        if (!describe(copy).equals(List.of(7, true, 123000000))) throw new AssertionError();
        if (!describe(read).equals(List.of(1, false, 123000000))) throw new AssertionError();
    }
}
JAVA
java -cp "$folder/*" Main.java 2>log || { tail -20 log; exit 1; }
