#!/usr/bin/env bash
# DataFusion: by group, the maximum of 1, NaN, 0.5 is 0.5, and of NaN, 1, 0.5 it is 1; of the column it is NaN.
#
# Guess: NaN is the greatest value, as for MIN and MAX of a column, over a window and in ORDER BY, so a group of all rows has the minimum
# and maximum of the column.
# Seen with datafusion 55.0.0: with GROUP BY the first value is replaced by a smaller or greater one, and after a NaN by any that follows.
# So the order of the rows decides: the maximum can be less than another number of the group, and the minimum of 1, NaN is NaN, while that
# of NaN, 1 is 1.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet datafusion==55.0.0
"$folder/venv/bin/python" - <<'PYTHON'
import math

import datafusion

session = datafusion.SessionContext(datafusion.SessionConfig().with_target_partitions(1))


def ends(values, tail):
    rows = ", ".join(f"(1, '{value}'::double)" for value in values)
    (row,) = session.sql(f"select min(x) a, max(x) b from (values {rows}) t(k, x) {tail}").to_pylist()
    return row["a"], row["b"]


nan = math.nan
for values, low, high in (((1, nan, 0.5), 0.5, 0.5), ((nan, 1, 0.5), 0.5, 1), ((1, nan), nan, nan), ((nan, 1), 1, 1)):
    column, group = ends(values, ""), ends(values, "group by k")
    print(values, "column", column, "group", group)
    assert column[0] == min(value for value in values if value == value) and math.isnan(column[1])
    assert repr(group) == repr((float(low), float(high)))
PYTHON
