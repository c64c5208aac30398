"""The data of the demo and its comparison."""

from __future__ import annotations

import contextlib
from unittest import mock

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from examples import flights_stream
from foldflight.cli import demo as demo_module
from foldflight.cli import flights
from foldflight.cli.demo import EXIT_DIFFERENT, demo, differences, timed_warm, warm_copies
from foldflight.cli.local_session import StageCounts
from foldflight.errors import RejectedError
from foldflight.ext.compiler.programs import HOT_ROWS

ROWS = [{"key": "a", "value": 1}, {"key": None, "value": None}]


def test_equal_results_have_no_differences():
    """Order does not matter, and NULL equals NULL, as a key and as a value."""
    assert differences(ROWS, list(reversed(ROWS)), ["key"]) == []


def test_each_difference_is_named():
    """A wrong value, a missing group, an extra group and a repeated group have different texts."""
    assert differences(ROWS, [{"key": "a", "value": 2}, ROWS[1]], ["key"]) == ["group ('a',): value is 2, expected 1"]
    assert differences(ROWS, ROWS[:1], ["key"]) == ["group (None,) is missing"]
    assert differences(ROWS[:1], ROWS, ["key"]) == ["group (None,) is not expected"]
    assert differences(ROWS[:1], ROWS[:1] * 2, ["key"]) == ["1 groups appear twice"]


def test_results_without_keys_are_one_row():
    """The query over all rows is compared as one group."""
    assert differences([{"value": 1}], [{"value": 1}], []) == []
    assert differences([{"value": 1}], [], []) == ["group () is missing"]


def test_flights_are_those_of_2013():
    """The data set is complete and typed: 336,776 rows, 9,430 without an arrival delay, three origins."""
    table = flights.flights_table()
    assert table.num_rows == flights.FLIGHTS_ROWS
    assert table["arr_delay"].null_count == 9430
    assert str(table.schema.field("distance").type) == "int32"
    assert sorted(pc.unique(table["origin"]).to_pylist()) == ["EWR", "JFK", "LGA"]
    assert table["tailnum"].null_count == 2512


def test_scaled_flights_are_whole_copies(tmp_path):
    """Scale n writes n files with the same rows, which are hard links to one file."""
    assert flights.write_flights(tmp_path, 3) == 3 * flights.FLIGHTS_ROWS
    files = sorted(tmp_path.iterdir())
    assert [pq.ParquetFile(file).metadata.num_rows for file in files] == [flights.FLIGHTS_ROWS] * 3
    assert len({file.stat().st_ino for file in files}) == 1


def test_missing_data_says_what_to_install(monkeypatch):
    """Without the data package, the error names the extra to install."""
    monkeypatch.setattr(flights.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(RejectedError, match=r"foldflight\[demo\]"):
        flights.flights_table()


def test_progress_counts_a_stage_that_is_gone_as_done():
    """The number of finished tasks never decreases, and never exceeds the number of known tasks."""
    counts = StageCounts()
    assert counts.see({}) == (0, 0)
    assert counts.see({1: (1, 4)}) == (1, 4)
    assert counts.see({1: (3, 4), 2: (0, 2)}) == (3, 6)
    assert counts.see({2: (1, 2)}) == (5, 6)
    assert counts.see({}) == (6, 6)


@pytest.mark.parametrize(("rows", "workers"), [(336_776, 2), (336_776, 16), (336_776 * 50, 2)])
def test_warming_makes_functions_hot_in_every_worker(rows, workers):
    """Before a query is timed each worker has folded more rows than it interprets."""
    assert warm_copies(rows, workers) * rows / workers > HOT_ROWS


def test_a_query_is_timed_when_it_is_warm(monkeypatch):
    """It runs over copies of the data first, without timing; its result is the result of the data itself."""
    timed_runs = []
    monkeypatch.setattr(demo_module.time, "perf_counter", lambda: float(sum(timed_runs)))  # a second for each copy

    class Frame:
        def __init__(self, size):
            self.size = size

        def union(self, other):
            return Frame(self.size + other.size)

        def collect(self):
            timed_runs.append(self.size)
            return [mock.Mock(asDict=lambda: {"rows": self.size})]

    waits = []
    rows, seconds = timed_warm(lambda frame, keys: frame, Frame(1), 5, lambda: waits.append(list(timed_runs)))
    assert timed_runs == [5, 1]
    assert waits == [[5]]
    assert rows == [{"rows": 1}]
    assert seconds == 1.0


@pytest.mark.parametrize(("batch_is_equal", "stream_is_equal"), [(0, 0), (1, 0), (0, 1)])
def test_any_difference_is_the_exit_status(monkeypatch, batch_is_equal, stream_is_equal):
    """The demo exits with 0 if batches and streams equal Spark SQL, and with 1 if either differs."""
    nothing = mock.MagicMock()
    monkeypatch.setattr(flights_stream, "run", lambda *_: stream_is_equal)
    monkeypatch.setattr(demo_module, "local_spark", lambda *_: contextlib.nullcontext(nothing))
    monkeypatch.setattr(demo_module, "server_process", lambda _: contextlib.nullcontext("grpc://nowhere"))
    monkeypatch.setattr(demo_module, "_compare", lambda *_: batch_is_equal)
    monkeypatch.setattr(demo_module, "write_flights", lambda *_: 0)
    monkeypatch.setattr(demo_module.signal, "signal", lambda *_: None)
    result = CliRunner().invoke(demo)
    assert result.exception is None or isinstance(result.exception, SystemExit)
    assert result.exit_code == (EXIT_DIFFERENT if batch_is_equal or stream_is_equal else 0)
