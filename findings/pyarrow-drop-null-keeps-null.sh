#!/usr/bin/env bash
# pyarrow: `drop_null` keeps NULLs that `is_null` finds, and `count` does not count.
#
# Guess: `drop_null` of any array leaves the values for which `is_valid` is true, and afterwards `count` is the length.
# Seen with pyarrow 26.0.1: it looks for a validity bitmap only. A run-end encoded array has none, and a dictionary may have NULL among its
# values, as the format allows; there `drop_null` drops nothing, `null_count` is 0, and `fill_null` of the dictionary fills
# only the NULLs of the other kind. `group_by` makes two groups of NULL from the two kinds, and two groups of "a" from a dictionary with "a" twice,
# for which `equal` and `index_in` know one.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet pyarrow==26.0.1
"$folder/venv/bin/python" - <<'PYTHON'
import pyarrow as pa
import pyarrow.compute as pc

runs = pa.RunEndEncodedArray.from_arrays(pa.array([2, 5], pa.int32()), pa.array([1, None]))
words = pa.DictionaryArray.from_arrays(pa.array([0, 1, None]), pa.array(["a", None]))
for name, array, nulls, left in (
    ("run-end encoded", runs, [False, False, True, True, True], [1, 1, None, None, None]),
    ("dictionary", words, [False, True, True], ["a", None]),
):
    dropped = pa.table({"x": array}).drop_null()["x"].to_pylist()
    print(name, array.to_pylist(), "is_null", pc.is_null(array).to_pylist(), "null_count", array.null_count, "drop_null", dropped)
    assert pc.is_null(array).to_pylist() == nulls
    assert dropped == left == array.drop_null().to_pylist()
    assert array.null_count < sum(nulls)
assert pc.count(runs).as_py() == 2
print("fill_null", words.fill_null("z").to_pylist())
assert words.fill_null("z").to_pylist() == ["a", None, "z"]


def groups(keys):
    table = pa.table({"k": keys, "v": range(len(keys))}).group_by("k", use_threads=False).aggregate([("v", "count")])
    return sorted(table["k"].to_pylist(), key=str)


twice = pa.DictionaryArray.from_arrays(pa.array([0, 1, 0]), pa.array(["a", "a"]))
print("groups", groups(words), groups(twice))
assert groups(words) == [None, None, "a"] and groups(twice) == ["a", "a"]
assert pc.equal(twice, "a").to_pylist() == [True] * 3 and pc.index_in(twice, pa.array(["a"])).to_pylist() == [0] * 3
PYTHON
