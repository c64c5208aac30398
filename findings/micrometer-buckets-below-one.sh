#!/usr/bin/env bash
# Micrometer: 0.2, 0.3 and 0.4 are not in the bucket of values up to 0.5, and are in that up to 1.
#
# Guess: a summary with the bounds 0.25, 0.5 and 1 counts each value at the bounds that are not below it.
# Seen with Micrometer 1.14.5: the histogram of fixed bounds rounds each value up to an integer before it looks for its bucket. Ratios,
# scores and seconds are all 1, so `histogram_quantile` in Prometheus has them between 0.5 and 1; the sum and the count are right. Once
# `publishPercentiles` is set, another histogram counts them as expected, but not for Prometheus. (Needs java and mvn.)
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
io.micrometer:micrometer-core:1.14.5 7c0c55ef7fe1bef5b89453655e768ee05fd35b381bd67f9d42cfe48362174ca5
io.micrometer:micrometer-commons:1.14.5 e98485ffecb7d8cc9af47cfe627ea8bf3897915dd0f34b3e3a190d6896875b4b
io.micrometer:micrometer-observation:1.14.5 7cfbf714abdf3779c820ff19712199ac9bae03d2f0e809ba8e74c3663c12128a
io.micrometer:micrometer-registry-prometheus:1.14.5 77c7732553e234644922143121b7d27cc23686def60348b8d6886fcd3edae247
io.prometheus:prometheus-metrics-config:1.3.6 32e6ecf39f3ab76eee94ee69102795f8ed80024d27fda0ba41d54f25ac887fad
io.prometheus:prometheus-metrics-core:1.3.6 681eb8f906dbd30e396bb69b1aeff711a652f1464e2c87b36813f895d124ac67
io.prometheus:prometheus-metrics-exposition-formats:1.3.6 527c5e21767934fa1d7fb0f4581f560254fe15fff5b86046eb3d669aec8ae000
io.prometheus:prometheus-metrics-exposition-textformats:1.3.6 2d9e03503c2bcd1c913f2a4f82d2ebef8b9df971c6f22de7993dfabe01d575f9
io.prometheus:prometheus-metrics-model:1.3.6 51a8da74c037ddd5c94dd6bfc828e60b748efede0dc3fae6f188d4e0bbeadd75
io.prometheus:prometheus-metrics-tracer-common:1.3.6 f74e318a30aafe29c169488c4535f4170714625cb50fcfd56c2854c3c5f66f09
org.hdrhistogram:HdrHistogram:2.2.2 22d1d4316c4ec13a68b559e98c8256d69071593731da96136640f864fa14fad8
org.latencyutils:LatencyUtils:2.0.3 a32a9ffa06b2f4e01c5360f8f9df7bc5d9454a5d373cd8f361347fa5a57165ec
JARS
cat >Main.java <<'JAVA'
import io.micrometer.core.instrument.DistributionSummary;
import io.micrometer.core.instrument.MeterRegistry;
import io.micrometer.core.instrument.distribution.CountAtBucket;
import io.micrometer.core.instrument.simple.SimpleMeterRegistry;
import io.micrometer.prometheusmetrics.PrometheusConfig;
import io.micrometer.prometheusmetrics.PrometheusMeterRegistry;

public class Main {
    static void expect(MeterRegistry registry, double[] percentiles, String expected) {
        DistributionSummary summary = DistributionSummary.builder("x").serviceLevelObjectives(0.25, 0.5, 1, 2)
                .publishPercentiles(percentiles).register(registry);
        for (double x : new double[] {0.2, 0.3, 0.4, 1.2}) summary.record(x);
        StringBuilder seen = new StringBuilder();
        for (CountAtBucket bucket : summary.takeSnapshot().histogramCounts()) {
            seen.append(String.format("up to %s: %.0f  ", bucket.bucket(), bucket.count()));
        }
        System.out.println(registry.getClass().getSimpleName() + " with " + percentiles.length + " percentiles: " + seen);
        if (!seen.toString().strip().equals(expected)) throw new AssertionError("expected " + expected);
    }

    public static void main(String[] arguments) {
        String wrong = "up to 0.25: 0  up to 0.5: 0  up to 1.0: 3  up to 2.0: 4";
        expect(new SimpleMeterRegistry(), new double[] {0.5}, "up to 0.25: 1  up to 0.5: 3  up to 1.0: 3  up to 2.0: 4");
        expect(new SimpleMeterRegistry(), new double[] {}, wrong);
        expect(new PrometheusMeterRegistry(PrometheusConfig.DEFAULT), new double[] {}, wrong);
        expect(new PrometheusMeterRegistry(PrometheusConfig.DEFAULT), new double[] {0.5}, wrong);
    }
}
JAVA
java -cp "$folder/*" Main.java 2>log || { tail -20 log; exit 1; }
