#!/usr/bin/env bash
# DataFusion: an aggregate function in Python is not asked for its result over an empty window frame, but is over an empty table.
#
# Guess: the result over no rows is `evaluate()` of a new accumulator, everywhere. Here it is 0, as COUNT's is.
# Seen with datafusion 55.0.0: over an empty table and for a FILTER that selects nothing it is 0. Over an empty frame it is NULL, and
# `evaluate` is not called; a frame of one NULL gives 0 again. COUNT itself gives 0 over the empty frame.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet datafusion==55.0.0 pyarrow==26.0.1
cd "$folder"
"$folder/venv/bin/python" - <<'PYTHON'
import pyarrow as pa
import pyarrow.compute as pc
from datafusion import Accumulator, SessionContext, udaf


class Total(Accumulator):
    def __init__(self):
        self.total = 0

    def update(self, values):
        self.total += pc.sum(values, min_count=0).as_py()

    def retract_batch(self, values):
        self.total -= pc.sum(values, min_count=0).as_py()

    def supports_retract_batch(self):
        return True

    def merge(self, states):
        self.total += pc.sum(states[0], min_count=0).as_py()

    def state(self):
        return [pa.scalar(self.total)]

    def evaluate(self):
        return pa.scalar(self.total)


context = SessionContext()
context.register_udaf(udaf(Total, [pa.int64()], pa.int64(), [pa.int64()], "immutable", name="total"))
context.from_arrow(pa.table({"i": [1, 2, 3], "x": pa.array([1, 2, None], pa.int64())}), name="t")

empty = context.sql("SELECT total(x) AS r FROM t WHERE i > 9").to_pydict()["r"]
unselected = context.sql("SELECT total(x) FILTER (WHERE i > 9) AS r FROM t").to_pydict()["r"]
frame = "OVER (ORDER BY i ROWS BETWEEN 1 FOLLOWING AND 1 FOLLOWING)"
result = context.sql(f"SELECT total(x) {frame} AS total, COUNT(x) {frame} AS n FROM t ORDER BY i").to_pydict()
print("empty table:", empty, "FILTER:", unselected, "frames of 2, NULL and nothing:", result)
assert empty == unselected == [0]
assert result == {"total": [2, 0, None], "n": [1, 0, 0]}
PYTHON
