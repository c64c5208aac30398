#!/usr/bin/env bash
# DataFusion: after one infinite, NaN or very large value, SUM and AVG over a sliding window stay wrong after that value has left.
#
# Guess: a window of two rows gives a result of these two rows. DuckDB, Polars and Spark do.
# Seen with datafusion 55.0.0: SUM and AVG subtract the rows that leave, in floating point. inf - inf and NaN - NaN are NaN for all later
# rows of the partition, and 1e300 absorbs the rows that were added beside it: a window of 2.0 and 3.0 sums to 0.0. MIN, MAX and MEDIAN of
# the same window are right, so a query can print a sum of 0.0 beside a median of 2.5. An integer column is not affected.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet datafusion==55.0.0 duckdb==2.0.1 pyarrow==26.0.1
cd "$folder"
"$folder/venv/bin/python" - <<'PYTHON'
import math

import datafusion
import duckdb
import pyarrow as pa

QUERY = """
SELECT SUM(x) OVER w AS total, MEDIAN(x) OVER w AS middle FROM t
WINDOW w AS (ORDER BY i ROWS BETWEEN 1 PRECEDING AND CURRENT ROW) ORDER BY i
"""

for value in (math.inf, math.nan, 1e300):
    rows = pa.table({"i": [0, 1, 2, 3, 4], "x": [1.0, value, 2.0, 3.0, 4.0]})
    context = datafusion.SessionContext()
    context.from_arrow(rows, name="t")
    result = context.sql(QUERY).to_pydict()
    connection = duckdb.connect()
    connection.register("t", rows)
    in_duckdb = [row[0] for row in connection.sql(QUERY).fetchall()]
    print(f"{value}: DataFusion {result['total']}, its medians {result['middle']}; DuckDB {in_duckdb}")
    assert in_duckdb[3:] == [5.0, 7.0]
    assert result["middle"][3:] == [2.5, 3.5]
    if value == 1e300:
        assert result["total"][3:] == [0.0, 2.0]
    else:
        assert all(math.isnan(total) for total in result["total"][3:])
PYTHON
