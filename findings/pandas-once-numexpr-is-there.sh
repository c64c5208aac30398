#!/usr/bin/env bash
# pandas: once numexpr is installed, `a - b` of uint8 in `eval` is -1 instead of 255, and a sum in more than a million rows loses digits.
#
# Guess: an engine that pandas takes by itself because a package is there gives the same values, whatever the number of rows.
# Seen with pandas 3.0.3 and numexpr 2.14.2: `eval` and `query` compute small integers as int32 and uint64 as int64: 2^63 + 1 is negative.
# Over a million rows, plain operators take numexpr, too: int64 plus float32 is float32 instead of float64, so 2^24 + 1 is 2^24, and 2 ** -1
# of integers is 0 instead of an error.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet pandas==3.0.3 numexpr==2.14.2 numpy==2.4.6
"$folder/venv/bin/python" -W ignore - <<'PYTHON'
import numpy as np
import pandas as pd


def evaluated(expression, engine, **columns):
    frame = pd.DataFrame({name: np.array([value], dtype) for name, (value, dtype) in columns.items()})
    return int(frame.eval(expression, engine=engine).iloc[0])


seen = {}
for engine in ("python", None):
    seen[engine] = (
        evaluated("a - b", engine, a=(1, "uint8"), b=(2, "uint8")),
        evaluated("a + b", engine, a=(100, "int8"), b=(100, "int8")),
        evaluated("a + 1", engine, a=(2**63, "uint64")),
    )
    print(f"eval by {engine or 'default'}: 1 - 2, 100 + 100, 2^63 + 1 are {seen[engine]}")
assert seen == {"python": (255, -56, 2**63 + 1), None: (-1, 200, -(2**63))}, seen


def added(rows):
    total = pd.Series(np.full(rows, 2**24 + 1)) + pd.Series(np.zeros(rows, "float32"))
    return int(total.iloc[0]), str(total.dtype)


def power(rows):
    try:
        return int((pd.Series(np.full(rows, 2)) ** pd.Series(np.full(rows, -1))).iloc[0])
    except ValueError:
        return "ValueError"


for rows, expected in ((10, (2**24 + 1, "float64", "ValueError")), (1_000_001, (2**24, "float32", 0))):
    print(f"{rows} rows: 2^24 + 1 plus 0 is {added(rows)}, 2 ** -1 is {power(rows)}")
    assert (*added(rows), power(rows)) == expected
PYTHON
