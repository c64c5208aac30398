#!/usr/bin/env bash
# Guava: `Stats.of(1, 1, 6, 0, 4, 2).sum()` is 13.999999999999998, and as a long 13.
#
# Guess: a sum of small integers is exact, and the mean of finite values is between them.
# Seen with Guava 33.4.0: `Stats` keeps a running mean, and its sum is the mean times the count. About one of eleven random lists of two
# to nine digits has a sum that is no integer; cast to a long it is one too small. The mean of the largest double and of its negative is
# -Infinity, as their difference is infinite. (Needs java and mvn.)
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
com.google.guava:failureaccess:1.0.2 8a8f81cf9b359e3f6dfa691a1e776985c061ef2f223c9b2c80753e1b458e8064
com.google.guava:guava:33.4.0-jre b918c98a7e44dbe94ebd9fe3e40cddaadb5a93e6a78eb6008b42df237241e538
JARS
cat >Main.java <<'JAVA'
import com.google.common.math.Stats;
import java.util.Arrays;
import java.util.Random;

public class Main {
    public static void main(String[] arguments) {
        double sum = Stats.of(1, 1, 6, 0, 4, 2).sum();
        double mean = Stats.of(Double.MAX_VALUE, -Double.MAX_VALUE).mean();
        Random random = new Random(1);
        int wrong = 0;
        for (int round = 0; round < 10000; round++) {
            int[] digits = random.ints(2 + random.nextInt(8), 0, 10).toArray();
            if (Stats.of(digits).sum() != Arrays.stream(digits).sum()) wrong++;
        }
        System.out.println("sum " + sum + ", as a long " + (long) sum + "; mean " + mean + "; wrong sums of 10000: " + wrong);
        if (sum != 13.999999999999998 || (long) sum != 13 || mean != Double.NEGATIVE_INFINITY || wrong < 500) throw new AssertionError();
    }
}
JAVA
java -cp "$folder/*" Main.java 2>log || { tail -20 log; exit 1; }
