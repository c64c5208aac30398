#!/usr/bin/env bash
# prometheus_client: a histogram does not count a NaN that makes its sum NaN for good; a summary counts it.
#
# Guess: `observe(NaN)` goes into the bucket +Inf, as in the Go client, so the count of a histogram is the number of `observe` calls, as a summary's.
# Seen with prometheus-client 0.26.0: no bucket takes the NaN, and `_count` is the last bucket, so it is one too small, while `_sum` is NaN from then
# on, and so is each average of both. Likewise a counter takes `inc(NaN)`, and one of 2^53 or more no longer takes `inc()`.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet prometheus-client==0.26.0
"$folder/venv/bin/python" - <<'PYTHON'
import math

from prometheus_client import CollectorRegistry, Counter, Histogram, Summary

registry = CollectorRegistry()
histogram = Histogram("histogram", "seconds", buckets=[1, 2], registry=registry)
summary = Summary("summary", "seconds", registry=registry)
for metric in (histogram, summary):
    for value in (0.5, math.nan, 1.5):
        metric.observe(value)
large = Counter("large", "bytes", registry=registry)
large.inc(2**53)
large.inc()
broken = Counter("broken", "bytes", registry=registry)
broken.inc(math.nan)
broken.inc(1)


def sample(name, **labels):
    return registry.get_sample_value(name, labels)


print("of 3 observations, count of the histogram:", sample("histogram_count"), "of the summary:", sample("summary_count"))
print("bucket +Inf:", sample("histogram_bucket", le="+Inf"), "sums:", sample("histogram_sum"), sample("summary_sum"))
print("counter of 2^53, after inc():", sample("large_total"), "after inc(NaN) and inc(1):", sample("broken_total"))
assert sample("histogram_count") == sample("histogram_bucket", le="+Inf") == 2 and sample("summary_count") == 3
assert math.isnan(sample("histogram_sum")) and math.isnan(sample("summary_sum")) and math.isnan(sample("broken_total"))
assert sample("large_total") == 2**53
PYTHON
