#!/usr/bin/env bash
# pyiceberg: of the rows 0.0 and -0.0 in a table that is partitioned by their column, four rows are written.
#
# Guess: one partition or two, and two rows.
# Seen with pyiceberg 0.12.0: the partitions are found with two zeros, and their rows by an equality that has one, so each partition gets
# both rows. `append` reports no error, and the count is 4, in the summary of the snapshot, too. A table without the partition has two rows.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet "pyiceberg[pyiceberg-core,sql-sqlite]==0.12.0" pyarrow==25.0.1
"$folder/venv/bin/python" - <<'PYTHON'
import tempfile

import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.transforms import IdentityTransform

rows = pa.table({"x": [0.0, -0.0, 1.5]})
with tempfile.TemporaryDirectory() as folder:
    catalog = SqlCatalog("catalog", uri="sqlite:///:memory:", warehouse=f"file://{folder}")
    catalog.create_namespace("n")
    counts = {}
    for name in ("plain", "partitioned"):
        table = catalog.create_table(f"n.{name}", rows.schema)
        if name == "partitioned":
            with table.update_spec() as update:
                update.add_field("x", IdentityTransform(), "p")
        table.append(rows)
        back = table.scan().to_arrow()["x"].to_pylist()
        counts[name] = len(back)
        print(name, back, table.current_snapshot().summary["total-records"])
        assert table.current_snapshot().summary["total-records"] == str(len(back))
assert counts == {"plain": 3, "partitioned": 5}
PYTHON
