#!/usr/bin/env bash
# OpenTelemetry in Java: an infinity is counted by one kind of histogram and not by the other, and a counter of longs gets negative.
#
# Guess: which aggregation a view chooses changes the buckets, not the count and the sum; a counter that only grows is never negative.
# Seen with the SDK 1.49.0: explicit buckets count an infinity, so their sum and mean are infinite from then on; exponential ones drop it,
# and both drop NaN and negative values. A counter adds longs that wrap around and reports the result as a monotonic sum. A histogram of
# longs keeps their sum as a double: 2^53 + 1 is 2^53. (Needs java and mvn.)
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
io.opentelemetry:opentelemetry-api:1.49.0 a813c9a92b82a4ffa3a62e88216a9e9ef9a407fcd41614fe596b2895167ed638
io.opentelemetry:opentelemetry-context:1.49.0 17de3c85b341240b3b216c43adbd244c9fbd39c9e5448306d56460f80599a76b
io.opentelemetry:opentelemetry-sdk:1.49.0 d6fdaf0f04724d5c9362db2f809fd21f36e95c9c039d22fe695692d606107bff
io.opentelemetry:opentelemetry-sdk-common:1.49.0 b06214ccf3cda749edcd426c1492483e201e1fcfadb9f9cba8ecb439ff5c5d0f
io.opentelemetry:opentelemetry-sdk-logs:1.49.0 edf7f2411d5180099efebc5a5e2f01378f647897671aa9819f2064e24b6f7e9f
io.opentelemetry:opentelemetry-sdk-metrics:1.49.0 cf28ea29fcfd4577a4a3bda388ac08cbbb86e4b1b534822848ea5c5554bfd603
io.opentelemetry:opentelemetry-sdk-testing:1.49.0 a40711f9c56e910731181dfa7d10d9aa6ba34375cd3ac14d44b4a0f13fe0c1ef
io.opentelemetry:opentelemetry-sdk-trace:1.49.0 483bf21dde1df1a2c9875ba7dff1e3c8c1a63789cd45ad58223ec64b5951318e
JARS
cat >Main.java <<'JAVA'
import io.opentelemetry.api.metrics.DoubleHistogram;
import io.opentelemetry.api.metrics.Meter;
import io.opentelemetry.sdk.metrics.Aggregation;
import io.opentelemetry.sdk.metrics.InstrumentSelector;
import io.opentelemetry.sdk.metrics.SdkMeterProvider;
import io.opentelemetry.sdk.metrics.View;
import io.opentelemetry.sdk.metrics.data.ExponentialHistogramPointData;
import io.opentelemetry.sdk.metrics.data.HistogramPointData;
import io.opentelemetry.sdk.metrics.data.LongPointData;
import io.opentelemetry.sdk.metrics.data.MetricData;
import io.opentelemetry.sdk.metrics.data.PointData;
import io.opentelemetry.sdk.testing.exporter.InMemoryMetricReader;
import java.util.Map;
import java.util.TreeMap;

public class Main {
    static String text(PointData point) {
        if (point instanceof HistogramPointData h) return h.getCount() + " values of sum " + h.getSum();
        if (point instanceof ExponentialHistogramPointData e) return e.getCount() + " values of sum " + e.getSum();
        return "" + ((LongPointData) point).getValue();
    }

    public static void main(String[] arguments) {
        InMemoryMetricReader reader = InMemoryMetricReader.create();
        Meter meter = SdkMeterProvider.builder().registerMetricReader(reader).registerView(
                InstrumentSelector.builder().setName("exponential").build(),
                View.builder().setAggregation(Aggregation.base2ExponentialBucketHistogram()).build()).build().get("x");
        for (String name : new String[] {"explicit", "exponential"}) {
            DoubleHistogram histogram = meter.histogramBuilder(name).build();
            for (double x : new double[] {1, 2, Double.NaN, -3, Double.POSITIVE_INFINITY}) histogram.record(x);
        }
        meter.histogramBuilder("longs").ofLongs().build().record((1L << 53) + 1);
        var counter = meter.counterBuilder("counter").build();
        counter.add(Long.MAX_VALUE);
        counter.add(1);
        Map<String, String> seen = new TreeMap<>();
        for (MetricData metric : reader.collectAllMetrics()) {
            seen.put(metric.getName(), text(metric.getData().getPoints().iterator().next()));
        }
        System.out.println(seen);
        Map<String, String> expected = Map.of("explicit", "3 values of sum Infinity", "exponential", "2 values of sum 3.0",
                "longs", "1 values of sum 9.007199254740992E15", "counter", "-9223372036854775808");
        if (!seen.equals(expected)) throw new AssertionError("expected " + expected);
    }
}
JAVA
java -cp "$folder/*" Main.java 2>log || { tail -20 log; exit 1; }
