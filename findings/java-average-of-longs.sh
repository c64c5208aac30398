#!/usr/bin/env bash
# Java: the average of Long.MAX_VALUE twice is -1.0.
#
# Guess: `LongStream.average()` and `Collectors.averagingLong` are doubles, so they add doubles, as `averagingDouble` does with
# compensation.
# Seen with OpenJDK 17: both divide a long sum that wraps around; so does `LongSummaryStatistics`, whose average then is not between its
# minimum and its maximum. Averages of ints are right, since they add longs. Times in nanoseconds have sums beyond 2^63 from six values of
# today on. (Needs java.)
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
cat >Main.java <<'JAVA'
import java.util.LongSummaryStatistics;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import java.util.stream.LongStream;

public class Main {
    static void expect(String name, double seen, double expected) {
        System.out.println(name + ": " + seen);
        if (seen != expected) throw new AssertionError("expected " + expected);
    }

    public static void main(String[] arguments) {
        long[] largest = {Long.MAX_VALUE, Long.MAX_VALUE};
        expect("average of longs", LongStream.of(largest).average().getAsDouble(), -1);
        expect("averagingLong", LongStream.of(largest).boxed().collect(Collectors.averagingLong(x -> x)), -1);
        expect("averagingDouble", LongStream.of(largest).boxed().collect(Collectors.averagingDouble(x -> x)), 0x1p63);
        expect("average of ints", IntStream.of(Integer.MAX_VALUE, Integer.MAX_VALUE).average().getAsDouble(), Integer.MAX_VALUE);
        LongSummaryStatistics times = new LongSummaryStatistics();
        for (int i = 0; i < 6; i++) times.accept(1_750_000_000_000_000_000L);
        System.out.println("six times of 2025 in nanoseconds: " + times);
        if (times.getAverage() >= times.getMin()) throw new AssertionError("the average has not wrapped around");
    }
}
JAVA
java Main.java
