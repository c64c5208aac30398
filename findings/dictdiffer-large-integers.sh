#!/usr/bin/env bash
# dictdiffer: the integers 2^53 and 2^53 + 1 do not differ, and neither do two times in nanoseconds within 388 ns.
#
# Guess: the tolerance for floats is for floats; integers differ if they are not equal.
# Seen with dictdiffer 0.10.0: each two numbers that differ by less than 2.2e-16 of them are equal, and so a patch of the changes does not
# bring the new state about. 0 and False, and 1 and 1.0, do not differ either, in dictdiffer and in jsondiff 2.2.1; jsonpatch 1.48 finds all
# of these changes.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet dictdiffer==0.10.0 jsondiff==2.2.1 jsonpatch==1.48
"$folder/venv/bin/python" -W ignore - <<'PYTHON'
import dictdiffer
import jsondiff
import jsonpatch

time = 1_750_000_000_000_000_000
pairs = {
    "2^53 and 2^53 + 1": (2**53, 2**53 + 1),
    "t and t + 300 ns": (time, time + 300),
    "t and t + 500 ns": (time, time + 500),
    "0 and False": (0, False),
    "1 and 1.0": (1, 1.0),
}
seen = {}
for label, (old, new) in pairs.items():
    changes = list(dictdiffer.diff({"x": old}, {"x": new})), jsondiff.diff({"x": old}, {"x": new}), list(jsonpatch.make_patch({"x": old}, {"x": new}))
    seen[label] = "".join("1" if change else "0" for change in changes)
    print(label, "differ for dictdiffer, jsondiff, jsonpatch:", seen[label])
assert list(seen.values()) == ["011", "011", "111", "001", "001"]
PYTHON
