#!/usr/bin/env bash
# ClickHouse: `quantileTDigest` of a column with one time, 07:08:09, is 07:08:48.
#
# Guess: of one value, or of equal ones, each quantile is this value; a t-digest is exact there.
# Seen with chdb 4.4.0 (ClickHouse 26.9): the centres are Float32, so times of today are multiples of 128 seconds and milliseconds since
# 1970 of more than two minutes, and 16,777,217 is 16,777,216. `quantile`, `quantileExact` and `quantileGK` are right. DateTime64 is
# refused, so that only the seconds are silently wrong.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet chdb==4.4.0 chdb-core==26.9.0
"$folder/venv/bin/python" - <<'PYTHON'
import chdb


def ask(sql):
    return str(chdb.query(sql, "TSV")).strip().split("\t")


names = ("quantileTDigest", "quantile", "quantileExact", "quantileGK(1000, 0.5)")
calls = ", ".join(f"{name}(t)" for name in names)
for kind, value in (("DateTime(\\'UTC\\')", "'2024-05-06 07:08:09'"), ("Int64", "1714979289123"), ("Int32", "16777217")):
    seen = ask(f"SELECT {calls} FROM values('t {kind}', {value})")
    print(dict(zip(names, seen, strict=True)))
    assert seen[1:] == [value.strip("'")] * 3 and seen[0] != seen[1]
assert ask("SELECT quantileTDigest(t) FROM values('t DateTime(\\'UTC\\')', '2024-05-06 07:08:09')") == ["2024-05-06 07:08:48"]
PYTHON
