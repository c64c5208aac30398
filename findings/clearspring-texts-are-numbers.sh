#!/usr/bin/env bash
# stream-lib: HyperLogLogPlus counts 1 and "1" once, HyperLogLog twice; a full LinearCounting estimates 2^63 - 1.
#
# Guess: the two HyperLogLogs of one library take the same values for different, and a sketch that is too small estimates too little.
# Seen with stream-lib 2.9.8: HyperLogLogPlus hashes the text of a value, so 1 and "1" are one value. HyperLogLog hashes numbers as
# numbers, and counts the int 1 and the long 1 once, too. An array of ints counts at each call, being printed by its address.
# LinearCounting with no free bit left returns Long.MAX_VALUE, which wraps around in the first sum. (Needs java and mvn.)
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
com.clearspring.analytics:stream:2.9.8 d18bf0abbc2f84f879172a50efd1e11b4fc0fa0b88e672c43fcc9e5501fd1c8b
it.unimi.dsi:fastutil:8.1.1 d9cdf8d69e1abde5d6ee509977340c29669f672ed9cc03ccff4d4f1981c071b1
JARS
cat >Main.java <<'JAVA'
import com.clearspring.analytics.stream.cardinality.HyperLogLog;
import com.clearspring.analytics.stream.cardinality.HyperLogLogPlus;
import com.clearspring.analytics.stream.cardinality.ICardinality;
import com.clearspring.analytics.stream.cardinality.LinearCounting;
import java.util.List;

public class Main {
    static long count(ICardinality sketch, Object... values) {
        for (Object value : values) sketch.offer(value);
        return sketch.cardinality();
    }

    public static void main(String[] arguments) {
        LinearCounting small = new LinearCounting(16);
        for (long x = 0; x < 10000; x++) small.offer(x);
        List<Long> seen = List.of(count(new HyperLogLogPlus(14, 25), 1, 1L, "1"), count(new HyperLogLog(14), 1, 1L, "1"),
                count(new HyperLogLogPlus(14, 25), new int[] {1}, new int[] {1}), small.cardinality());
        System.out.println("HyperLogLogPlus of 1, 1L and '1', HyperLogLog of them, two equal arrays, a full LinearCounting: " + seen);
        if (!seen.equals(List.of(1L, 2L, 2L, Long.MAX_VALUE))) throw new AssertionError();
    }
}
JAVA
java -cp "$folder/*" Main.java 2>log || { tail -20 log; exit 1; }
