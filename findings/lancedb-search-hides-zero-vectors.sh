#!/usr/bin/env bash
# LanceDB: a search by cosine distance does not return rows whose vector is zero, however many rows are asked for.
#
# Guess: the distance to a zero vector is 1, as in usearch, or NaN and last; a limit beyond the number of rows returns all rows.
# Seen with lancedb 0.40.0: the distance is NaN and the row is dropped, and a query by a zero vector, as an empty text may have, finds
# nothing in a full table, without an error. By l2 and dot all rows are returned.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet lancedb==0.40.0 pyarrow==26.0.1 usearch==2.26.6 numpy==2.4.6
"$folder/venv/bin/python" - <<'PYTHON'
import tempfile

import lancedb
import numpy as np
import pyarrow as pa
from usearch.index import Index

vectors = np.array([[0, 0], [1, 0], [0, 1]], np.float32)
index = Index(ndim=2, metric="cos", dtype="f32")
index.add(np.arange(3), vectors)
others = sorted(index.search(np.array([1, 0], np.float32), 3).keys.tolist())
with tempfile.TemporaryDirectory() as folder:
    rows = pa.table({"vector": pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), 2), "i": [0, 1, 2]})
    table = lancedb.connect(folder).create_table("t", rows)

    def found(query, metric):
        return sorted(row["i"] for row in table.search(query).distance_type(metric).limit(10).to_list())

    seen = {metric: found([1, 0], metric) for metric in ("cosine", "l2", "dot")}
    nothing = found([0, 0], "cosine")
print("lancedb", seen, "for a zero query", nothing, "usearch", others)
assert seen == {"cosine": [1, 2], "l2": [0, 1, 2], "dot": [0, 1, 2]}
assert nothing == [] and others == [0, 1, 2]
PYTHON
