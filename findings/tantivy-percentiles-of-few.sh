#!/usr/bin/env bash
# Tantivy: the 99th percentile of 100 and 200 is 100.49, and that of 5, 5, 5 is above 5.
#
# Guess: `percentiles` is Elasticsearch's aggregation, so over a few values it is exact or interpolates, the 99th percentile of two values
# is near the larger one, and none is outside of minimum and maximum.
# Seen with tantivy 0.27.0 for Python: a sketch gives the middle of a bucket of 2 %, for a rank that is cut off: the one of 99 % of two
# values is the first. So of 1, 2, 3, 100 all from the 75th to the 99th are 2.97, the median of 1 is 1.01, and of 5, 5, 5 it is 5.003. Only
# the percentiles 0 and 100 are exact.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet tantivy==0.27.0
"$folder/venv/bin/python" - <<'PYTHON'
import tantivy


def percentiles(values):
    builder = tantivy.SchemaBuilder()
    builder.add_float_field("x", fast=True)
    index = tantivy.Index(builder.build())
    writer = index.writer(15_000_000, 1)
    for value in values:
        document = tantivy.Document()
        document.add_float("x", float(value))
        writer.add_document(document)
    writer.commit()
    index.reload()
    query = {"result": {"percentiles": {"field": "x", "percents": [0, 50, 75, 99, 100]}}}
    results = index.searcher().aggregate(tantivy.Query.all_query(), query)["result"]["values"]
    rounded = [round(results[f"{percent}.0"], 3) for percent in (0, 50, 75, 99, 100)]
    print(values, "minimum, median, 75, 99, maximum:", rounded)
    return rounded


assert percentiles([100, 200]) == [100, 100.495, 100.495, 100.495, 200]
assert percentiles([1, 2, 3, 100]) == [1, 1.994, 2.974, 2.974, 100]
assert percentiles([5, 5, 5]) == [5, 5.003, 5.003, 5.003, 5]
assert percentiles([1]) == [1, 1.01, 1.01, 1.01, 1]
PYTHON
