#!/usr/bin/env bash
# scikit-learn: a batch in which a feature is NaN throughout makes a scaler's state NaN for ever.
#
# Guess: scalers ignore NaN, as their documentation says, so `partial_fit` of a batch that is all NaN changes nothing.
# Seen with scikit-learn 1.7.2: StandardScaler's mean stays NaN if such a batch is the first, its variance if it is a later one. MinMaxScaler
# and MaxAbsScaler lose their state either way. In one call with the same rows, all are right.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet scikit-learn==1.7.2 numpy==2.4.6
"$folder/venv/bin/python" -W ignore - <<'PYTHON'
import math

from sklearn.preprocessing import MaxAbsScaler, MinMaxScaler, StandardScaler

nothing, values = [[math.nan]], [[1.0], [3.0]]


def states(*batches):
    result = []
    for scaler in (StandardScaler(), MinMaxScaler(), MaxAbsScaler()):
        for batch in batches:
            scaler.partial_fit(batch)
        result += [scaler.mean_[0], scaler.var_[0]] if isinstance(scaler, StandardScaler) else [scaler.scale_[0]]
    return [None if math.isnan(x) else float(x) for x in result]


whole, first, later = states(nothing + values), states(nothing, values), states(values, nothing)
print("mean, variance, two scales: in one batch", whole, "NaN first", first, "NaN later", later)
assert whole == [2, 1, 0.5, 3] and first == [None, 1, None, None] and later == [2, None, None, None]
PYTHON
