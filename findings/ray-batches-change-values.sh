#!/usr/bin/env bash
# Ray Data: a `map_batches` that returns its batch changes dates into datetimes, drops time zones, and takes 2^53 + 1 for 2^53.
#
# Guess: the identity leaves a dataset as it is, whatever the format of the batches is.
# Seen with ray 2.60.0: batches are NumPy arrays by default, so an integer column with one None becomes float64 and loses digits, a date is
# a datetime, and a time with a zone one without. With batch_format="pyarrow" all are kept. The type of the integers so depends on the batch
# that has the None.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export RAY_USAGE_STATS_ENABLED=0 RAY_TMPDIR="$folder"
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet "ray[data]==2.60.0" pyarrow==26.0.1 pandas==3.1.1 numpy==2.4.6
"$folder/venv/bin/python" - <<'PYTHON'
import datetime
import logging

import pyarrow as pa
import ray

options = {"include_dashboard": False, "log_to_driver": False, "logging_level": logging.ERROR}
ray.init(num_cpus=1, object_store_memory=100 * 2**20, _node_ip_address="127.0.0.1", **options)
ray.data.DataContext.get_current().enable_progress_bars = False
logging.getLogger("ray").setLevel(logging.ERROR)
day = datetime.date(2020, 1, 1)
moment = datetime.datetime(2020, 1, 1, tzinfo=datetime.timezone.utc)
try:
    rows = [{"i": 2**53 + 1, "d": day, "t": moment}, {"i": None, "d": day, "t": moment}]
    seen = {
        form: ray.data.from_arrow(pa.Table.from_pylist(rows)).map_batches(lambda batch: batch, batch_format=form).take(1)[0]
        for form in ("default", "pyarrow")
    }
finally:
    ray.shutdown()
for form, row in seen.items():
    print(form, row)
assert seen["default"]["i"] == float(2**53) and type(seen["default"]["i"]) is not int
assert seen["default"]["d"] == datetime.datetime(2020, 1, 1) and seen["default"]["t"] == moment.replace(tzinfo=None)
assert seen["pyarrow"] == rows[0]
PYTHON
