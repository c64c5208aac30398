#!/usr/bin/env bash
# pandas: the rolling maximum of 2^53 + 1 and 1 is 2^53, a number that is not in the column.
#
# Guess: a rolling maximum or minimum of integers is one of them, as `cummax` and `groupby(...).max()` are; with Int64 the type stays.
# Seen with pandas 3.1.1: each column is made float64 first, Int64 and Arrow's int64, too, so identifiers, hashes and nanoseconds lose their
# last digits, and so does a rolling sum that would fit. Joined back to the rows, the maximum finds no row.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet pandas==3.1.1 pyarrow==26.0.1 numpy==2.4.6
"$folder/venv/bin/python" - <<'PYTHON'
import pandas as pd

for kind in ("int64", "Int64", "int64[pyarrow]"):
    x = pd.Series([2**53 + 1, 1], dtype=kind)
    largest, total = int(x.rolling(2).max().iloc[1]), int(x.rolling(2).sum().iloc[1])
    print(kind, "rolling max - 2^53:", largest - 2**53, "rolling sum - 2^53:", total - 2**53)
    assert largest == 2**53 and total != 2**53 + 2
    assert x.cummax().iloc[1] == x.groupby([1, 1]).max().item() == 2**53 + 1
PYTHON
