#!/usr/bin/env bash
# cloudpickle: loading a class that the process already has resets its attributes, even in the process that pickled it.
#
# Guess: `loads(dumps(C))` in the same process is C itself, untouched (as for pickle), or a second class. Neither touches C.
# Seen with cloudpickle 3.1.3: it is C itself, and each attribute of C that the pickle has is set again, to its value at the time of
# `dumps`. Counters and caches of the class are lost, also for objects that exist already; attributes that were added since stay. So a
# cache on a class of a notebook lasts as long as the worker receives no other task with it, and a driver that looks into its own pickle
# changes the author's class.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet cloudpickle==3.1.3
cd "$folder"
"$folder/venv/bin/python" - <<'PYTHON'
import cloudpickle


class Model:
    calls = 0
    cache = {}

    def predict(self, x):
        type(self).calls += 1
        return self.cache.setdefault(x, x * 2)


pickled = cloudpickle.dumps(Model)
model, first_cache = Model(), Model.cache
model.predict(1)
Model.added_later = True
before = (Model.calls, dict(Model.cache))

loaded = cloudpickle.loads(pickled)
after = (model.calls, model.cache)
print("the same class:", loaded is Model, "before:", before, "after:", after, "attributes added later:", hasattr(Model, "added_later"))
assert loaded is Model
assert before == (1, {1: 2})
assert after == (0, {})
assert model.cache is not first_cache
assert Model.added_later
PYTHON
