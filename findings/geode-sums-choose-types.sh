#!/usr/bin/env bash
# Geode: in OQL, the SUM of two longs of 2^53 + 1 is 2^54, that of two BigDecimals a Float, and of 0.5 and 0.5 an Integer.
#
# Guess: the sum of longs is an exact long, that of decimals a decimal; the type of a result follows from the type of the values.
# Seen with Geode 1.15.1: SUM and AVG add doubles, and then give the smallest of Integer, Long, Float and Double for the value, so the type
# changes with the data, and 0.1 and 0.2 are a Float of 0.3. The average of 2^63 - 1 twice is 2^62, since their sum is held to the largest
# long. COUNT(DISTINCT) counts 1 as Integer, Long and Double three times, and MAX over them is a ClassCastException. (Needs java and mvn.)
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
export LC_ALL=C
cat >pom.xml <<'XML'
<project>
  <modelVersion>4.0.0</modelVersion><groupId>x</groupId><artifactId>x</artifactId><version>1</version>
  <dependencies>
    <dependency><groupId>org.apache.geode</groupId><artifactId>geode-core</artifactId><version>1.15.1</version></dependency>
  </dependencies>
</project>
XML
mvn --batch-mode --quiet -Dstyle.color=never org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies \
    -DoutputDirectory="$folder" </dev/null
cat ./*.jar | sha256sum --check --quiet <(echo "7a188554a53b0684185e7cc6facc3cd963e20718afac7700940f71d3e27b2fca  -")
cat >Main.java <<'JAVA'
import java.math.BigDecimal;
import org.apache.geode.cache.query.Aggregator;
import org.apache.geode.cache.query.internal.aggregate.Avg;
import org.apache.geode.cache.query.internal.aggregate.CountDistinct;
import org.apache.geode.cache.query.internal.aggregate.MaxMin;
import org.apache.geode.cache.query.internal.aggregate.Sum;

public class Main {
    static void expect(String what, Aggregator aggregator, String expected, Object... values) {
        String text;
        try {
            aggregator.init();
            for (Object value : values) aggregator.accumulate(value);
            Object result = aggregator.terminate();
            text = result + " " + result.getClass().getSimpleName();
        } catch (Exception error) {
            text = error.getClass().getSimpleName();
        }
        System.out.println(what + ": " + text);
        if (!text.equals(expected)) throw new AssertionError("expected " + expected);
    }

    public static void main(String[] arguments) {
        long large = (1L << 53) + 1;
        expect("sum of two longs of 2^53 + 1", new Sum(), "18014398509481984 Long", large, large);
        expect("sum of decimals", new Sum(), "0.3 Float", new BigDecimal("0.1"), new BigDecimal("0.2"));
        expect("sum of 0.5, 0.5", new Sum(), "1 Integer", 0.5, 0.5);
        expect("sum of 0.5, 1.0", new Sum(), "1.5 Float", 0.5, 1.0);
        expect("sum of the largest long twice", new Sum(), "9223372036854775807 Long", Long.MAX_VALUE, Long.MAX_VALUE);
        expect("average of the largest long twice", new Avg(), "4611686018427387904 Long", Long.MAX_VALUE, Long.MAX_VALUE);
        expect("count of distinct ones", new CountDistinct(), "3 Integer", 1, 1L, 1.0);
        expect("maximum of 1, 2L", new MaxMin(true), "ClassCastException", 1, 2L);
    }
}
JAVA
java -cp "$folder/*" Main.java 2>log || { tail -20 log; exit 1; }
