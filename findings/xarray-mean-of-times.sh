#!/usr/bin/env bash
# xarray: once flox is installed, the mean of a group of one time and one NaT is a date of 1850.
#
# Guess: flox makes grouped aggregates of xarray faster and no different, and the mean skips NaT, as that of an array without groups does.
# Seen with xarray 2026.9.0 and flox 0.11.2: of 2024-01-01 and NaT, the mean of the group is in 1850, since NaT is taken as the integer -2^63; the count is
# 2, the last is NaT and the maximum is right. Without flox mean, count and last are right and the maximum is NaT, as is the minimum with both. Groups without
# NaT are right.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet xarray==2026.9.0 flox==0.11.2 numpy==2.4.6 pandas==2.3.3 numpy-groupies==0.16.0
"$folder/venv/bin/python" -W ignore - <<'PYTHON'
import numpy as np
import xarray

times = np.array(["2024-01-01", "NaT", "2024-01-03", "2024-01-03"], "datetime64[ns]")
array = xarray.DataArray(times, dims="row", coords={"key": ("row", ["a", "a", "b", "b"])})
whole = str(array.mean().values)[:10]
seen = {}
for flox in (True, False):
    with xarray.set_options(use_flox=flox):
        groups = array.groupby("key")
        for name in ("mean", "min", "max", "last", "count"):
            seen[flox, name] = [str(x)[:10] for x in getattr(groups, name)().values]
            print(f"{name} {'with' if flox else 'without'} flox: {seen[flox, name]}")
print("mean of all without groups:", whole)
assert whole == "2024-01-02"
assert seen[True, "mean"] == ["1850-11-11", "2024-01-03"] and seen[False, "mean"] == ["2024-01-01", "2024-01-03"]
assert seen[True, "count"] == ["2", "2"] and seen[False, "count"] == ["1", "2"]
assert (seen[True, "last"][0], seen[False, "last"][0]) == ("NaT", "2024-01-01")
assert (seen[True, "max"][0], seen[False, "max"][0]) == ("2024-01-01", "NaT")
assert seen[True, "min"][0] == seen[False, "min"][0] == "NaT"
PYTHON
