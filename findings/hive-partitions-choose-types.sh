#!/usr/bin/env bash
# pyarrow, Polars: the text "007" as a Hive partition comes back as the integer 7, and as a text once there is a partition "x".
#
# Guess: pyarrow, which writes the dataset with its schema, or the reader by the files' names, gives texts, so "007" joins with the "007" it
# was.
# Seen with pyarrow 26.0.1, polars 2.1.0 and duckdb 2.0.1: pyarrow and Polars infer a type from the names of all folders, so leading zeros
# are lost if all are numbers, and the type of the column changes with the partitions that exist. Polars makes 1e5 a float and "true" a
# boolean, which pyarrow and DuckDB do not. DuckDB keeps "007". A schema given for the partitioning keeps the texts.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet pyarrow==26.0.1 polars==2.1.0 duckdb==2.0.1
"$folder/venv/bin/python" - <<'PYTHON'
import tempfile

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds


def read(*texts):
    with tempfile.TemporaryDirectory() as folder:
        table = pa.table({"p": texts, "v": range(len(texts))})
        ds.write_dataset(table, folder, format="parquet", partitioning=["p"], partitioning_flavor="hive")
        files = f"{folder}/**/*.parquet"
        arrow = ds.dataset(folder, partitioning="hive").to_table().sort_by("v")
        given = ds.dataset(folder, partitioning=ds.partitioning(pa.schema([("p", pa.string())]), flavor="hive")).to_table().sort_by("v")
        assert given["p"].to_pylist() == list(texts)
        return {
            "pyarrow": arrow["p"].to_pylist(),
            "polars": pl.scan_parquet(files, hive_partitioning=True).sort("v").collect()["p"].to_list(),
            "duckdb": [row[0] for row in duckdb.sql(f"select p from read_parquet('{files}', hive_partitioning=true) order by v").fetchall()],
        }


for texts, pyarrow, polars in (
    (("007", "8"), [7, 8], [7, 8]),
    (("007", "x"), ["007", "x"], ["007", "x"]),
    (("1e5", "2"), ["1e5", "2"], [100000.0, 2.0]),
    (("true", "false"), ["true", "false"], [True, False]),
):
    seen = read(*texts)
    print(texts, seen)
    assert repr(seen["pyarrow"]) == repr(pyarrow) and repr(seen["polars"]) == repr(polars)
    if texts == ("007", "8"):
        assert [str(value) for value in seen["duckdb"]] == ["007", "8"]
PYTHON
