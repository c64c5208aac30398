#!/usr/bin/env bash
# NumPy: of a NaT and 2 days, `nanmax` and `nanmedian` are 2 days, `nanmean` and `nansum` are NaT.
#
# Guess: the functions whose names begin with "nan" skip NaT, all or none of them, as all skip NaN.
# Seen with numpy 2.4.6: nanmin, nanmax and nanmedian skip it, nanmean, nansum and nancumsum do not, without a warning. pandas skips it in
# each of them.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet numpy==2.4.6
"$folder/venv/bin/python" - <<'PYTHON'
import numpy as np

x = np.array(["NaT", 2], "m8[D]")
skips = {name: not np.isnat(getattr(np, name)(x)) for name in ("nanmin", "nanmax", "nanmedian", "nanmean", "nansum")}
skips["nancumsum"] = not np.isnat(np.nancumsum(x)[-1])
print("skips NaT", skips)
assert skips == {"nanmin": True, "nanmax": True, "nanmedian": True, "nanmean": False, "nansum": False, "nancumsum": False}
PYTHON
