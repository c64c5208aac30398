#!/usr/bin/env bash
# cloudpickle: where a class is loaded, `__init_subclass__` runs before the class has any attribute.
#
# Guess: a registry of plug-ins by `__init_subclass__` works in a worker as it does in the driver: the hook runs when the class exists.
# Seen with cloudpickle 3.1.3: the class is made empty, which calls the hook, and its attributes and methods are set afterwards. A hook
# that checks `cls.name` raises only in the worker; one with a default registers the class under a wrong name, without an error.
# Keyword arguments of the class statement are not passed to the hook, either: here it registers version 1 of a class of version 2.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet cloudpickle==3.1.3
cd "$folder"
"$folder/venv/bin/python" - <<'PYTHON'
import subprocess
import sys
from pathlib import Path

import cloudpickle

seen = []


class Function:
    registry = {}

    def __init_subclass__(cls, version=1):
        cls.registry[getattr(cls, "name", "unnamed")] = version


class Median(Function, version=2):
    name = "median"

    def get_value(self):
        return 0.5


print("driver:", Function.registry)
assert Function.registry == {"median": 2}

Function.registry = {}
Path("median.pickle").write_bytes(cloudpickle.dumps(Median))
worker = "import pickle; c = pickle.load(open('median.pickle', 'rb')); print(c.registry, c.name, c().get_value())"
output = subprocess.run([sys.executable, "-c", worker], check=True, capture_output=True, text=True).stdout.strip()
print("worker:", output)
assert output == "{'unnamed': 1} median 0.5"
PYTHON
