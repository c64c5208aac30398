#!/usr/bin/env bash
# Polars: `arg_max` of equal values is the first in memory and the last in the streaming engine.
#
# Guess: `collect(engine="streaming")` is a matter of memory and speed; the results are those of the other engine, where an order of rows is
# given.
# Seen with polars 2.1.0: of 5, 1, 5 the engine in memory has 0 and the streaming one 2; by group both have 0. So the "row of the maximum"
# changes with the engine.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet polars==2.1.0
"$folder/venv/bin/python" - <<'PYTHON'
import polars as pl

for values in ([5, 1, 5], [5.0, 5.0, 5.0]):
    frame = pl.LazyFrame({"k": [1] * 3, "x": values})
    places = {
        (engine, how): query.collect(engine=engine)["x"].item()
        for engine in ("in-memory", "streaming")
        for how, query in (
            ("column", frame.select(pl.col("x").arg_max())),
            ("group", frame.group_by("k").agg(pl.col("x").arg_max())),
        )
    }
    print(values, places)
    assert list(places.values()) == [0, 0, 2, 0]
PYTHON
