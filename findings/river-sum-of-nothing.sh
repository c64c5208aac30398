#!/usr/bin/env bash
# river: two empty means cannot be added, a removed weight of 0 neither, while one empty mean can.
#
# Guess: `a + b` unites the states of two partitions, and two empty ones make an empty one, whose mean is 0 as that of each of them.
# Seen with river 0.26.1: Mean() + Mean() and Var() + Var() raise ZeroDivisionError, and so does the first update by a weight of 0. With one
# value on either side the sum is right, so a merge over partitions works until a key has two empty ones.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet river==0.26.1
"$folder/venv/bin/python" - <<'PYTHON'
from river import stats

one = stats.Mean()
one.update(5)
assert (stats.Mean() + one).get() == (one + stats.Mean()).get() == 5
assert stats.Mean().get() == stats.Var().get() == 0
for name, act in (
    ("Mean() + Mean()", lambda: stats.Mean() + stats.Mean()),
    ("Var() + Var()", lambda: stats.Var() + stats.Var()),
    ("update by 0", lambda: stats.Mean().update(1, w=0)),
):
    try:
        act()
    except ZeroDivisionError as error:
        print(name, "raises ZeroDivisionError:", error)
    else:
        raise AssertionError(name)
PYTHON
