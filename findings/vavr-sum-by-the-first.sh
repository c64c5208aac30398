#!/usr/bin/env bash
# Vavr: the sum of 1 and 2.5 is 3, and the sum of 2.5 and 1 is 3.5.
#
# Guess: the sum of a list of numbers does not depend on their order; at worst another class than that of the first is an error.
# Seen with Vavr 0.10.6: `sum` and `product` look at the class of the first element: if it is an integer, all are cut to longs, which wrap
# around; if it is none of Java's number classes, all are doubles. `average` is right in either order. (Needs java and mvn.)
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
io.vavr:vavr:0.10.6 d1822fbee1770fabe2f95501b433c2021af350321ebb0d3e70d02cc30d7f571e
io.vavr:vavr-match:0.10.6 f9faf0cef3afd8b03a98330aa4116cf333808e3d91a4943089a799ee05675b28
JARS
cat >Main.java <<'JAVA'
import io.vavr.collection.List;
import java.util.concurrent.atomic.AtomicLong;

public class Main {
    static void expect(String name, Object seen, Object expected) {
        System.out.println(name + ": " + seen);
        if (!seen.equals(expected)) throw new AssertionError("expected " + expected);
    }

    public static void main(String[] arguments) {
        expect("sum of 1 and 2.5", List.<Number>of(1, 2.5).sum(), 3L);
        expect("sum of 2.5 and 1", List.<Number>of(2.5, 1).sum(), 3.5);
        expect("average of 1 and 2.5", List.<Number>of(1, 2.5).average().get(), 1.75);
        expect("product of 2 and 0.5", List.<Number>of(2, 0.5).product(), 0L);
        expect("product of 0.5 and 2", List.<Number>of(0.5, 2).product(), 1.0);
        expect("product of 2^62 and 4", List.of(1L << 62, 4L).product(), 0L);
        expect("sum of AtomicLong 2^53 + 1", List.of(new AtomicLong((1L << 53) + 1)).sum(), 0x1p53);
    }
}
JAVA
java -cp "$folder/*" Main.java
