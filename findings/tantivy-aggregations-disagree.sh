#!/usr/bin/env bash
# Tantivy: 0.0 and -0.0 are one term and two distinct values, and half a second before 1970 is in the bucket of 1970.
#
# Guess: aggregations of one request agree: `cardinality` is the count of buckets that `terms` has for few values, `stats` counts what
# `value_count` counts, and a date is in the bucket of its day.
# Seen with tantivy 0.27.0 for Python: `cardinality` has two zeros, where `terms` has one. `stats` and `avg` take no booleans: their count
# is 0 and the average None, and `value_count` has them. Dates are cut to seconds towards zero, so 1969-12-31 23:59:59.5 is 1970-01-01 for
# `terms` and `date_histogram`. A NaN is in count, sum and average, and not in minimum and maximum.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet tantivy==0.27.0
"$folder/venv/bin/python" - <<'PYTHON'
import math
from datetime import datetime

import tantivy


def aggregate(kind, values, **aggregations):
    builder = tantivy.SchemaBuilder()
    getattr(builder, f"add_{kind}_field")("x", fast=True)
    index = tantivy.Index(builder.build())
    writer = index.writer(15_000_000, 1)
    for value in values:
        document = tantivy.Document()
        getattr(document, f"add_{kind}")("x", value)
        writer.add_document(document)
    writer.commit()
    index.reload()
    query = {name: {name: {"field": "x", **options}} for name, options in aggregations.items()}
    results = index.searcher().aggregate(tantivy.Query.all_query(), query)
    print(values, results)
    return results


zeros = aggregate("float", [0.0, -0.0], terms={}, cardinality={})
assert len(zeros["terms"]["buckets"]) == 1 and zeros["cardinality"]["value"] == 2
booleans = aggregate("boolean", [True, False], value_count={}, stats={}, avg={})
assert booleans["value_count"]["value"] == 2 and booleans["stats"]["count"] == 0 and booleans["avg"]["value"] is None
dates = aggregate("date", [datetime(1969, 12, 31, 23, 59, 59, 500000)], terms={}, date_histogram={"fixed_interval": "1d"})
assert dates["terms"]["buckets"][0]["key"] == "1970-01-01T00:00:00Z"
assert dates["date_histogram"]["buckets"][0]["key_as_string"] == "1970-01-01T00:00:00Z"
stats = aggregate("float", [1.0, math.nan, 3.0], stats={})["stats"]
assert (stats["count"], stats["min"], stats["max"]) == (3, 1, 3) and math.isnan(stats["avg"])
PYTHON
