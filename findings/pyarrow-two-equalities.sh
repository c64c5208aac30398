#!/usr/bin/env bash
# pyarrow: some functions know one zero and one NaN, others two zeros and as many NaNs as there are bit patterns.
#
# Guess: one library has one notion of equal values, whichever it is, so grouping, joining, counting and ranking agree.
# Seen with pyarrow 26.0.1: `equal`, `rank` and `mode` compare numbers (NaN equals NaN in the last two), while `unique`, `count_distinct`,
# `is_in`, `group_by` and `join` compare bits. A NaN that was computed (inf - inf) has other bits than float("nan") on x86.
# `is_in` even contradicts `equal` for one value: -0.0 equals 0.0, but is not in [0.0].
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet pyarrow==26.0.1
cd "$folder"
"$folder/venv/bin/python" - <<'PYTHON'
import struct

import pyarrow as pa
import pyarrow.compute as pc

negative_nan = struct.unpack("<d", struct.pack("<Q", 0xFFF8000000000000))[0]
values = pa.array([0.0, -0.0, float("nan"), negative_nan])
rows = pa.table({"k": values})
seen = {
    "equal to 0.0": pc.sum(pc.equal(values, 0.0)).as_py(),
    "is in [0.0]": pc.sum(pc.is_in(values, value_set=pa.array([0.0]))).as_py(),
    "dense ranks": pc.max(pc.rank(values, tiebreaker="dense")).as_py(),
    "modes": len(pc.mode(values, n=9)),
    "unique": len(pc.unique(values)),
    "count_distinct": pc.count_distinct(values).as_py(),
    "groups": rows.group_by("k").aggregate([]).num_rows,
    "rows joined with 0.0 and NaN": rows.join(pa.table({"k": [0.0, float("nan")]}), "k", join_type="inner").num_rows,
}
print(seen)
assert seen == {
    "equal to 0.0": 2,
    "is in [0.0]": 1,
    "dense ranks": 2,
    "modes": 2,
    "unique": 4,
    "count_distinct": 4,
    "groups": 4,
    "rows joined with 0.0 and NaN": 2,
}
PYTHON
