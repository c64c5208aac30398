#!/usr/bin/env bash
# cloudpickle: a loaded function has lost its file, so its tracebacks show no source, even on the machine that has the file.
#
# Guess: an error in a function that was pickled by value shows file, line and source line where the file exists, as code objects
# contain the name of their file. That held up to 3.1.2.
# Seen with cloudpickle 3.1.3, a patch release: the name is "<dynamic-code>", for files as for cells of notebooks. The number of the line
# stays, of a file that nothing names; tracebacks have no source line, `inspect.getsource` fails, and debuggers and profilers show nothing.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
cat >job.py <<'PYTHON'
import inspect
import traceback

import cloudpickle


def ratio(x):
    return 1 / x


loaded = cloudpickle.loads(cloudpickle.dumps(ratio))
try:
    loaded(0)
except ZeroDivisionError as error:
    frame = traceback.extract_tb(error.__traceback__)[-1]
try:
    source = inspect.getsource(loaded)
except OSError:
    source = None
print(cloudpickle.__version__, [frame.filename.rpartition("/")[2], frame.lineno, frame.line, source is not None])
PYTHON
for version in 3.1.2 3.1.3; do
  python3 -m venv "$version"
  "$version/bin/pip" install --quiet --disable-pip-version-check "cloudpickle==$version"
  "$version/bin/python" job.py
done >seen
cat seen
diff seen - <<'SEEN'
3.1.2 ['job.py', 8, 'return 1 / x', True]
3.1.3 ['<dynamic-code>', 8, '', False]
SEEN
