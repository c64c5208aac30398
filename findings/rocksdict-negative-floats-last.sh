#!/usr/bin/env bash
# rocksdict: the keys -2, 1, 10 are in order, the keys -2.5, -1.5, 1.0 are not: negative floats come after the positive ones, backwards.
#
# Guess: keys are in the order of their values, for floats as for integers, so that `items(from_key=0.5)` is a scan of a range.
# Seen with rocksdict 0.3.29: a float is stored as its bits, without the change that makes them comparable, so the order is 1.0, 2.5, -1.5,
# -2.5, and a scan from 0.5 has the negative ones, too. 0.0 and -0.0 are two keys, and True is not 1, as it is in a dict.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet rocksdict==0.3.29
"$folder/venv/bin/python" - <<'PYTHON'
import tempfile

from rocksdict import Rdict

with tempfile.TemporaryDirectory() as folder:
    store = Rdict(folder)
    for key in (1, -2, 10, 2.5, -1.5, 1.0, -2.5, 0.0, -0.0):
        store[key] = "x"
    integers = [key for key in store.keys() if type(key) is int]
    floats = [key for key in store.keys() if type(key) is float]
    scan = list(store.keys(from_key=0.5))
    print("integers", integers, "floats", floats, "from 0.5", scan)
    assert integers == [-2, 1, 10]
    assert repr(floats) == "[0.0, 1.0, 2.5, -0.0, -1.5, -2.5]"
    assert repr(scan) == "[1.0, 2.5, -0.0, -1.5, -2.5]"
    assert store.get(True) is None
    store.close()
PYTHON
