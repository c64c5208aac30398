"""Recordings of exchanges: their content, how it is bounded, masked, signed and read, and what replays find."""

from __future__ import annotations

import datetime
import importlib
import json
import os
import random
import resource
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result

from foldflight import Recordings, connect
from foldflight.cli.main import cli
from foldflight.errors import CorruptError, FunctionError, RejectedError
from foldflight.exchange.encoding import encode_open, read_batch
from foldflight.exchange.frames import Barrier, Chunk, Open, Results, Returns, States
from foldflight.exchange.ipc import write_batch
from foldflight.ext.recording import recorder as recorder_module
from foldflight.ext.recording.code import functions_for
from foldflight.ext.recording.file import (
    ABOUT,
    GROUPS,
    MAGIC,
    OPEN,
    Pair,
    Recording,
    RecordingPart,
    parts_in,
    read_recording,
    write_recording,
)
from foldflight.ext.recording.recorder import Masks
from foldflight.ext.recording.replay import fold_again
from foldflight.ext.recording.shrink import shrink
from foldflight.ext.recording.testfile import test_text as text_of_test
from foldflight.fold.aggregate.fold import Fold
from foldflight.functions import Call, Registry
from foldflight.functions.query.call import Step, StepArgument
from foldflight.functions.types.arrow import JSON
from foldflight.testing import run_epochs, run_over
from tests.java_classes import jar
from tests.unit import recorded_functions
from tests.unit.recorded_functions import Answered, Longest, Pickled, PickledTexts, Ratio
from tests.wire.kit import end_epoch
from tests.wire.view_functions import CountDifferent

KEY = "a key for recordings"
PLACE = "tests.unit.recorded_functions"
ROWS = [{"customer": f"c{place % 5}", "price": place, "qty": 1 + place % 4} for place in range(60)]
BAD = {"customer": "c3", "price": 7, "qty": 0}


def record(folder: Path, *epochs: Any, function: Any = Ratio, columns: Any = ("price", "qty"), **more: Any) -> str:
    """Run epochs with a recorder; return the text of the error."""
    functions = connect(function, record=Recordings(str(folder), **more))
    try:
        run_epochs({"result": functions(*columns)}, epochs, keys=["customer"])
    except FunctionError as error:
        return str(error)
    return ""


def files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.recording"), key=lambda path: path.stat().st_mtime_ns)


def the_file(folder: Path) -> Path:
    (path,) = files(folder)
    return path


def rows_in(recording: Recording) -> int:
    return sum(pair.frame.batch.num_rows for pair in recording.pairs if isinstance(pair.frame, Chunk))


def in_python(arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *arguments.split()]
    return subprocess.run(command, input=stdin, capture_output=True, text=True, check=False)


def assert_names_are_right(test: Path) -> None:
    """A written test imports what it uses, and nothing else."""
    run = in_python(f"-m ruff check --isolated --select E9,F {test}")
    assert run.returncode == 0, run.stdout + run.stderr


def replay(path: Path, *options: str) -> Result:
    return CliRunner().invoke(cli, ["replay", str(path), *options], env={"COLUMNS": "200"})


def test_an_error_is_recorded_and_named(tmp_path: Path) -> None:
    """Only the epoch that failed is kept, and the error says how to replay it; nothing is kept without an error."""
    assert record(tmp_path, ROWS) == ""
    assert files(tmp_path) == []
    text = record(tmp_path, ROWS[:30], [*ROWS[30:], BAD])
    path = the_file(tmp_path)
    assert f"recorded: {path} (by embedded), replay with: foldflight replay {path} --function {PLACE}:Ratio" in text
    recording = read_recording(path)
    assert [type(pair.frame).__name__ for pair in recording.pairs] == ["States", "Chunk"]
    assert recording.about["functions"][0]["version"] == "1"
    assert {group["customer"] for group in recording.groups.values()} == {"c0", "c1", "c2", "c3", "c4"}
    run = replay(path, "--function", f"{PLACE}:Ratio")
    assert run.exit_code == 1
    assert "ZeroDivisionError" in run.output
    assert "group: customer='c3'" in run.output
    assert "differs from the recorded code" not in run.output


def test_a_corrected_class_is_compared(tmp_path: Path) -> None:
    """A class of another name is folded in place of the recorded one, and exit code 0 says that nothing is left."""
    record(tmp_path, ROWS[:30], [*ROWS[30:], BAD])
    run = replay(the_file(tmp_path), "--function", f"{PLACE}:Mended")
    assert run.exit_code == 0, run.output
    assert "now no function raises" in run.output
    assert (
        "ratio: folded with tests.unit.recorded_functions:Mended, whose code differs from the recorded code"
        in run.output
    )


def test_differing_groups_are_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`of="all"` records each epoch, and a class with other results gives a table of them; --group chooses."""
    record(tmp_path, ROWS, of="all")
    path = the_file(tmp_path)
    assert replay(path, "--function", f"{PLACE}:Ratio").exit_code == 0
    monkeypatch.setattr(Ratio, "get_value", lambda self, sums: sums.total + (sums.total % 5 == 1))
    run = replay(path, "--function", f"{PLACE}:Ratio")
    assert run.exit_code == 1
    changed_lines = [row for row in run.output.splitlines() if "epoch 1" in row]
    assert 0 < len(changed_lines) < 5
    group = changed_lines[0].split("'")[1]
    assert f"customer='{group}'" in replay(path, "--function", f"{PLACE}:Ratio", "--group", f"customer={group}").output
    sound = next(name for name in ("c0", "c1", "c2", "c3", "c4") if not any(name in row for row in changed_lines))
    assert replay(path, "--function", f"{PLACE}:Ratio", "--group", f"customer={sound}").exit_code == 0
    twice = replay(path, "--function", f"{PLACE}:Ratio", "--group", "customer=c1", "--group", "customer=c2")
    assert "give each key once" in twice.output
    missing_group = replay(path, "--function", f"{PLACE}:Ratio", "--group", "customer=zoe")
    assert (
        "no group customer=zoe; it has customer=c0, customer=c1, customer=c2, customer=c3, customer=c4"
        in missing_group.output
    )
    assert "..." not in missing_group.output


def test_a_message_with_brackets_is_printed_as_it_is(tmp_path: Path) -> None:
    """The words of an author's exception are no markup of the console."""
    texts = [("[b]first", 1), ("second", None), ("[/b]", 3)]
    rows = [{"customer": "c1", "text": text, "number": number} for text, number in texts]
    record(tmp_path, rows, function=Longest, columns=("text", "number"))
    run = replay(the_file(tmp_path), "--function", f"{PLACE}:Longest")
    assert "recorded error: USER_CODE: accumulate raised LookupError: [/b]" in run.output


def test_code_without_a_digest_is_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers of Spark have no source of a class that was sent to them, so its digest is empty."""
    monkeypatch.setattr("foldflight.ext.recording.code._digest_of", lambda _: "")
    record(tmp_path, [*ROWS, BAD])
    run = replay(the_file(tmp_path), "--function", f"{PLACE}:Ratio")
    assert f"ratio: folded with {PLACE}:Ratio; whether its code has changed since is not known" in run.output
    assert "differs from the recorded code" not in run.output


def test_a_replay_of_another_group_is_not_called_a_change(tmp_path: Path) -> None:
    """That it does not fail is not said to be a change."""
    record(tmp_path, [*ROWS, BAD])
    run = replay(the_file(tmp_path), "--function", f"{PLACE}:Ratio", "--group", "customer=c1")
    assert run.exit_code == 0
    assert "no function raises here (the recorded error is of the group customer='c3')" in run.output


def test_selected_groups_are_recorded(tmp_path: Path) -> None:
    """With a mapping of keys, rows and answers of other groups are not in the file."""
    record(tmp_path, ROWS, of={"customer": ["c1", "c2"]})
    recording = read_recording(the_file(tmp_path))
    assert {group["customer"] for group in recording.groups.values()} == {"c1", "c2"}
    rows = [pair.frame.batch for pair in recording.pairs if isinstance(pair.frame, Chunk)]
    assert sum(batch.num_rows for batch in rows) == 24
    results = [answer for pair in recording.pairs for answer in pair.answers if isinstance(answer, Results)]
    assert sum(answer.batch.num_rows for answer in results) == 2
    assert replay(the_file(tmp_path), "--function", f"{PLACE}:Ratio").exit_code == 0


def test_selected_groups_of_over_are_recorded(tmp_path: Path) -> None:
    """The answers of OVER have numbers of rows in place of slots: the answers of the chosen rows are recorded."""
    frame = connect(Ratio, record=Recordings(str(tmp_path), of={"customer": ["c1", "c3"]}))("price", "qty").rows(
        None, 0
    )
    run_over({"running": frame}, ROWS, keys=["customer"], order_by=["price"])
    assert rows_in(read_recording(the_file(tmp_path))) == 24
    for options in ((), ("--group", "customer=c3")):
        run = replay(the_file(tmp_path), "--function", f"{PLACE}:Ratio", *options)
        assert "all recorded answers are the same (1)" in run.output, run.output


def test_calls_of_selected_groups_are_recorded(tmp_path: Path) -> None:
    """What async functions were answered for other groups is not in the file."""
    rows = [{"customer": name, "x": number} for number, name in enumerate("abc")]
    record(tmp_path, rows, function=Answered, columns=("x",), of={"customer": ["b"]})
    recording = read_recording(the_file(tmp_path))
    (recorded_call,) = recording.calls.values()
    assert len(recorded_call) == 1
    assert "all recorded answers are the same" in replay(the_file(tmp_path), "--function", f"{PLACE}:Answered").output


def test_equal_calls_have_their_own_answers(tmp_path: Path) -> None:
    """Groups with equal states have one id, and may be answered otherwise; a replay gives each its own answer."""
    record(tmp_path, [{"customer": name, "x": 1} for name in "abc"], function=Answered, columns=("x",), of="all")
    (answers,) = read_recording(the_file(tmp_path)).calls.values()
    assert len({value for value, _ in answers}) == 3
    assert "all recorded answers are the same" in replay(the_file(tmp_path), "--function", f"{PLACE}:Answered").output


def test_an_epoch_without_the_selected_group_is_read(tmp_path: Path) -> None:
    """The states of the other groups are left out, and with them the answers to these states."""
    rows = [{"customer": name, "price": 4, "qty": 2} for name in "ab"]
    functions = connect(Ratio, record=Recordings(str(tmp_path), of={"customer": ["a"]}))
    retracted_row = ("-D", rows[0])
    run_epochs({"r": functions("price", "qty")}, [rows, [rows[1]], [rows[1], retracted_row]], keys=["customer"])
    for path in files(tmp_path):
        assert "all recorded answers are the same" in replay(path, "--function", f"{PLACE}:Ratio").output


def test_exchanges_without_the_selected_group_are_not_recorded(tmp_path: Path) -> None:
    """Files without rows would take the room of those with rows."""
    for customer in "ab":
        record(tmp_path, [{"customer": customer, "price": 4, "qty": 2}], of={"customer": ["a"]})
    assert rows_in(read_recording(the_file(tmp_path))) == 1


def test_the_debugger_stops_at_the_row(tmp_path: Path) -> None:
    """--break stops in the frame of the method that raised, with its variables."""
    record(tmp_path, [*ROWS, BAD])
    path = the_file(tmp_path)
    run = in_python(f"-m foldflight.cli.main replay {path} --break --function {PLACE}:Ratio", "p price, quantity\nq\n")
    assert "(7, 0)" in run.stdout, run.stderr
    assert "-> sums.total += 100 // quantity * price" in run.stdout


def test_rows_that_are_needed_together_are_found() -> None:
    """Of many rows of many groups those three remain that make the function fail, in their epochs."""
    functions = connect(Longest)
    rng = random.Random(7)
    rows = [{"k": rng.randrange(20), "text": "x", "number": 1} for _ in range(3000)]
    rows[1500] = {"k": 4, "text": "x", "number": None}
    rows[2900] = {"k": 4, "text": "y", "number": 2}
    chunk = pa.RecordBatch.from_pydict(
        {
            "slot": pa.array([row["k"] for row in rows], pa.int32()),
            "text": [row["text"] for row in rows],
            "number": [row["number"] for row in rows],
        }
    )
    call = functions("text", "number")
    recording = Recording(
        {"functions": []},
        Open((Call(call.function.name, ("text", "number")), Call("count")), chunk.schema),
        tuple(Pair(frame) for frame in (Chunk(chunk.slice(0, 2000)), Barrier(5), Chunk(chunk.slice(2000)))),
    )
    shrunk = shrink(recording, Registry.load([Longest]))
    assert rows_in(shrunk.recording) == 3
    assert shrunk.is_minimal
    assert [each.function for each in shrunk.recording.open_request.calls] == ["longest"]
    left = [
        row for pair in shrunk.recording.pairs if isinstance(pair.frame, Chunk) for row in pair.frame.batch.to_pylist()
    ]
    assert [(row["slot"], row["text"], row["number"]) for row in left] == [(4, "x", 1), (4, "x", None), (4, "y", 2)]


def test_calls_and_columns_that_are_not_needed_are_removed(tmp_path: Path) -> None:
    """Of two calls with states the failing one stays, with its columns; columns that may be NULL are told."""
    functions = connect(Ratio, record=Recordings(str(tmp_path)))
    calls = {"count": functions["count"]("note"), "ratio": functions("price", "qty")}
    rows = [{**row, "note": "paid"} for row in ROWS]
    with pytest.raises(FunctionError):
        run_epochs(calls, [rows[:30], [*rows[30:], {**BAD, "note": "zebra"}]], keys=["customer"])
    path = the_file(tmp_path)
    (call,) = shrink(read_recording(path), Registry.load([Ratio])).recording.open_request.calls
    assert call.function == "ratio"
    run = replay(path, "--function", f"{PLACE}:Ratio", "--shrink")
    assert "the error is the same if these columns are NULL: price\n" in run.output
    assert [word in run.output for word in ("qty", "note", "zebra")] == [True, False, False]
    assert "row: price=7, qty=0" in run.output


def test_another_mistake_does_not_take_the_place_of_the_recorded_one(tmp_path: Path) -> None:
    """A later row raises the same exception at another line; the row that is left raises at the recorded line."""
    rows = [{"customer": "c1", "text": "x", "number": place} for place in range(20)]
    rows[9:9] = [{"customer": "c1", "text": "x", "number": None}]
    rows.append({"customer": "c1", "text": None, "number": 2})
    function = recorded_functions.TwoMistakes
    record(tmp_path, rows, function=function, columns=("text", "number"))
    shrunk = shrink(read_recording(the_file(tmp_path)), Registry.load([function]))
    assert "unsupported operand" in shrunk.error.message
    assert rows_in(shrunk.recording) == 1
    assert shrunk.unused_columns == ("number",)


def test_a_state_that_fails_tells_no_columns(tmp_path: Path) -> None:
    """DISTINCT folds the values of merged states when it answers: no row has them, so no column is named."""
    columns = pa.schema([("slot", pa.int32()), ("price", pa.int64()), ("qty", pa.int64())])
    calls = (Call("ratio", ("price", "qty"), distinct=True),)
    transport = connect(Ratio, record=Recordings(str(tmp_path))).transport
    with transport.open(Open(calls, columns, returns=Returns(outputs=False))) as exchange:
        exchange.chunk(pa.RecordBatch.from_pylist([{"slot": 0, "price": 7, "qty": 0}], columns))
        states = end_epoch(exchange, 1)
    with transport.open(Open(calls, columns, returns=Returns(states=False))) as exchange:
        exchange.states(states.select(["slot", "state_0"]).combine_chunks().to_batches()[0])
        with pytest.raises(FunctionError, match="recorded: "):
            end_epoch(exchange, 1)
    shrunk = shrink(read_recording(the_file(tmp_path)), Registry.load([Ratio]))
    assert isinstance(shrunk.recording.pairs[0].frame, States)
    assert shrunk.unused_columns == ()


def test_times_are_printed_in_full(tmp_path: Path) -> None:
    """A timestamp with its zone is not cut in the table of rows."""
    when = datetime.datetime(2030, 1, 2, 3, 4, 5, 678901, datetime.UTC)
    record(tmp_path, [{"customer": "c1", "at": when}], function=recorded_functions.Refuses, columns=("at",))
    run = replay(the_file(tmp_path), "--function", f"{PLACE}:Refuses", "--shrink")
    assert f"│ {when} │" in run.output, run.output


def test_a_recording_without_keys_tells_the_slots(tmp_path: Path) -> None:
    """A server knows no keys, so --group says that slots are to be given, and which one failed."""
    record(tmp_path, [*ROWS, BAD])
    path = the_file(tmp_path)
    with path.open("rb") as file:
        parts = [part for part in parts_in(file, len(MAGIC)) if part.kind not in (GROUPS, b"Z")]
    with path.open("wb") as file:
        write_recording(file, parts, None)
    run = replay(path, "--function", f"{PLACE}:Ratio", "--group", "customer=c3")
    assert "Servers know no keys, so their recordings have slots only: give --group slot=N" in run.output
    slot = run.output.split("the recorded error is of slot=")[1].split()[0]
    alone = replay(path, "--function", f"{PLACE}:Ratio", "--group", f"slot={slot}")
    assert "raised in frame 1 of 1, as it was recorded" in alone.output


def test_a_row_stays_with_its_retraction(tmp_path: Path) -> None:
    """Shrinking never leaves a retraction without its row: the rows stay possible."""
    epoch = [("+I", dict(BAD, qty=5)), *[("+I", row) for row in ROWS], ("-D", dict(BAD, qty=5)), ("+I", BAD)]
    record(tmp_path, epoch)
    shrunk = shrink(read_recording(the_file(tmp_path)), Registry.load([Ratio]))
    assert rows_in(shrunk.recording) == 1
    assert "│ +I " in replay(the_file(tmp_path), "--function", f"{PLACE}:Ratio", "--shrink").output


MODULE = """
from foldflight import udaf


class Sums:
    total: int = 0


@udaf(input_types=["BIGINT", "BIGINT", "VARCHAR"], result_type="BIGINT")
class Rated:
    def create_accumulator(self) -> Sums:
        return Sums()

    def accumulate(self, sums: Sums, price, quantity, note):
        sums.total += 100 // (quantity DEFAULT) * price

    def get_value(self, sums: Sums):
        return sums.total
"""


def test_a_written_test_fails_and_passes_with_the_corrected_class(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The test fails with the recorded error, and passes when the class is mended."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    Path("rated.py").write_text(MODULE.replace("DEFAULT", ""))
    bad = {"customer": 'o\'hara "x" é', "price": 7, "qty": 0, "note": "long " * 30}
    rows = [{"customer": "b", "price": place, "qty": 1, "note": None} for place in range(50)]
    rated_class = importlib.import_module("rated").Rated
    assert "ZeroDivisionError" in record(
        tmp_path, rows, [*rows, bad], function=rated_class, columns=("price", "qty", "note")
    )
    test = Path("tests", "test_bug.py")
    test.parent.mkdir()
    options = ("--function", "rated:Rated", "--to-test", str(test))
    assert f"python -m pytest {test}" in replay(the_file(tmp_path), *options).output
    assert_names_are_right(test)
    failed_run = in_python(f"-m pytest -q -p no:cacheprovider {test}")
    assert failed_run.returncode == 1
    assert "accumulate raised ZeroDivisionError" in failed_run.stdout
    Path("rated.py").write_text(MODULE.replace("DEFAULT", "or 100"))
    passed_run = in_python(f"-m pytest -q -p no:cacheprovider {test}")
    assert passed_run.returncode == 0, passed_run.stdout
    assert "exists already" in replay(the_file(tmp_path), *options).output


def test_a_scalar_function_is_recorded_and_tested(tmp_path: Path) -> None:
    """Of steps each chunk is an exchange of its own, and a written test calls the function."""
    transport = connect(recorded_functions.initial, record=Recordings(str(tmp_path))).transport
    columns = pa.schema([("name", pa.string())])
    open_request = Open((), columns, steps=(Step("initial", (StepArgument(column="name"),)),), outputs=(0,))
    with transport.open(open_request) as exchange:
        exchange.chunk(pa.RecordBatch.from_pydict({"name": ["ann", "bob"]}))
        exchange.step_outputs()
        with pytest.raises(FunctionError, match="recorded: "):
            exchange.chunk(pa.RecordBatch.from_pydict({"name": ["cid", "", "dan"]}))
    assert len(read_recording(the_file(tmp_path)).pairs) == 1
    test = tmp_path / "test_initial.py"
    run = replay(the_file(tmp_path), "--function", f"{PLACE}:initial", "--to-test", str(test))
    assert "rows = [('',)]" in test.read_text(), run.output


def test_isolated_errors_are_recorded(tmp_path: Path) -> None:
    """A recording is kept if an answer has an error, and replays with the same errors."""
    transport = connect(Ratio, record=Recordings(str(tmp_path))).transport
    columns = pa.schema([("slot", pa.int32()), ("price", pa.int64()), ("qty", pa.int64())])
    with transport.open(Open((Call("ratio", ("price", "qty")),), columns, isolate_errors=True)) as exchange:
        exchange.chunk(pa.RecordBatch.from_pylist([{"slot": s, "price": 1, "qty": s} for s in range(3)], columns))
        exchange.barrier(1)
        assert exchange.results(1).num_rows == 3
    assert replay(the_file(tmp_path), "--function", f"{PLACE}:Ratio").exit_code == 0
    shrunk = replay(the_file(tmp_path), "--function", f"{PLACE}:Ratio", "--shrink")
    assert "rows that still fail: 1" in shrunk.output


def test_the_oldest_recordings_are_removed(tmp_path: Path) -> None:
    """The folder stays within its bound, and the newest recording is always there."""
    record(tmp_path, [*ROWS, BAD], bytes_max=40_000)
    size = the_file(tmp_path).stat().st_size
    seen = [the_file(tmp_path)]
    for _ in range(5):
        record(tmp_path, [*ROWS, BAD], bytes_max=5 * size)
        seen.append(files(tmp_path)[-1])
    assert files(tmp_path) == seen[-2:]


def test_an_exchange_beyond_the_bound_is_not_recorded(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The error says why it is not recorded, and the memory of the bound is given back."""
    for _ in range(2):
        assert "recorded: no: the exchanges that are open at once have more than 500 bytes" in record(
            tmp_path, [*ROWS, BAD], bytes_max=1000
        )
    assert files(tmp_path) == []
    assert "recorded: no" not in record(tmp_path, [*ROWS, BAD])
    assert len(files(tmp_path)) == 1


@pytest.mark.parametrize("bytes_in_memory", [recorder_module._UNWRITTEN_BYTES_MAX, 0])
def test_a_folder_that_is_gone_does_not_fail_the_query(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, bytes_in_memory: int
) -> None:
    """A problem of the file system is logged, at the end of the exchange or before, and the query has its results."""
    monkeypatch.setattr(recorder_module, "_UNWRITTEN_BYTES_MAX", bytes_in_memory)
    functions = connect(Ratio, record=Recordings(str(tmp_path / "gone"), of="all"))
    (tmp_path / "gone").rmdir()
    (tmp_path / "gone").touch()
    (first,) = run_epochs({"result": functions("price", "qty")}, [ROWS], keys=["customer"])
    assert len(first.changelog) == 5
    problem = f"cannot write into {tmp_path}/gone: the folder of recordings, {tmp_path}/gone, cannot be created: "
    assert f'exchange not recorded problem="{problem}File exists"' in caplog.text


@contextmanager
def files_up_to(most: int) -> Iterator[None]:
    """Limit files to some bytes, beyond which writing fails as on a full disk."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_a_full_disk_does_not_fail_the_query(tmp_path: Path) -> None:
    """Results arrive wherever in a recording the room ends, also where only its last bytes have none."""
    most = (1 << 20) + (1 << 16)  # smaller recordings of open exchanges are in memory
    with files_up_to(most):
        for length in range(most - 1600, most, 400):
            rows = [{"customer": "ann", "text": "x" * length, "number": 1}]
            assert record(tmp_path, rows, function=Longest, columns=("text", "number")) == ""
    assert files(tmp_path) == []


def test_an_error_says_why_its_recording_was_not_kept(tmp_path: Path) -> None:
    """A recording that was in memory until the error may have no room in the folder."""
    with files_up_to(100):
        text = record(tmp_path, [*ROWS, BAD])
    assert f"recorded: no: cannot write into {tmp_path}: " in text
    assert list(tmp_path.iterdir()) == []


def test_texts_are_masked(tmp_path: Path) -> None:
    """No text of the data is in the file; masks are equal and ordered as the texts, and numbers stay."""
    names = ["zoe", "ann", "mia", "ann", ""]
    rows = [{"customer": name, "text": f"secret {name}", "number": place} for place, name in enumerate(names)]
    bad = [{"customer": "mia", "text": text, "number": number} for text, number in (("x1", None), ("secret y", 3))]
    text = record(tmp_path, [*rows, *bad], function=Longest, columns=("text", "number"), mask=True)
    assert "LookupError: secret y" in text  # the error of the query itself is not masked
    data = the_file(tmp_path).read_bytes()
    for word in (b"secret", b"zoe", b"ann", b"mia"):
        assert word not in data
    recording = read_recording(the_file(tmp_path))
    assert recording.error is not None
    assert recording.error.message == "accumulate raised LookupError"
    batch = next(pair.frame.batch for pair in recording.pairs if isinstance(pair.frame, Chunk))
    masked_texts = batch.column("text").to_pylist()
    texts = [row["text"] for row in [*rows, *bad]]
    assert [masked_texts.index(each) for each in masked_texts] == [texts.index(each) for each in texts]
    order = sorted(range(len(texts)), key=lambda place: texts[place])
    assert [masked_texts[place] for place in order] == sorted(masked_texts)
    keys = {slot: group["customer"] for slot, group in recording.groups.items()}
    in_order = [
        keys[slot] for slot, _ in sorted({0: "zoe", 1: "ann", 2: "mia", 3: ""}.items(), key=lambda pair: pair[1])
    ]
    assert in_order == sorted(in_order)
    assert in_order[0] == ""
    assert "rows that still fail: 3" in replay(the_file(tmp_path), "--function", f"{PLACE}:Longest", "--shrink").output


@pytest.mark.parametrize(
    "array",
    [
        pa.array(["a", None, ""]),
        pa.array([["a", None], None, [], ["c"]]),
        pa.array([{"x": "a", "y": ["b"]}, None, {"x": None, "y": None}]),
        pa.array([[("a", "b")], None, []], pa.map_(pa.string(), pa.string())),
        pa.array([["a", "b"], None], pa.list_(pa.string(), 2)),
        pa.array([["a"], None], pa.large_list(pa.large_string())),
        pa.array([{}, None], pa.struct([])),
        pa.array([1, None]),
        pa.array([], pa.list_(pa.string())),
    ],
    ids=lambda array: str(array.type),
)
def test_masks_keep_the_form_of_values(array: pa.Array) -> None:
    """Only texts change, at any depth; NULLs and lengths stay."""
    part = RecordingPart(GROUPS, b"", write_batch(pa.RecordBatch.from_pydict({"column": array})))
    masks = Masks.of([part])
    (masked_column,) = read_batch(masks.mask_part(part).batch, "").columns
    masked_column.validate(full=True)
    assert masked_column.type == array.type
    result = repr(masked_column.to_pylist())
    for text in sorted(texts_of(array.to_pylist()), reverse=True):
        place = sorted(texts_of(array.to_pylist())).index(text)
        result = result.replace(f"'text{place}'", repr(text))
    assert result == repr(array.to_pylist())


@pytest.mark.skipif(JSON is None, reason="Arrow has JSON since 19")
def test_masked_json_is_null() -> None:
    """JSON is text to Arrow, and a mask would be no JSON."""
    array = pa.ExtensionArray.from_storage(JSON, pa.array(['{"name": "ann"}', None]))
    part = RecordingPart(
        GROUPS, b"", write_batch(pa.RecordBatch.from_pydict({"column": pa.StructArray.from_arrays([array], ["a"])}))
    )
    (masked_column,) = read_batch(Masks.of([part]).mask_part(part).batch, "").columns
    assert masked_column.to_pylist() == [{"a": None}, {"a": None}]


def test_masked_maps_with_bytes_as_keys_are_null() -> None:
    """Keys cannot be NULL, as other bytes are, so their map is."""
    array = pa.array([[(b"ann", 1)], None], pa.map_(pa.binary(), pa.int64()))
    nested_array = pa.array([[[(b"ann", 1)], None], None], pa.list_(array.type))
    part = RecordingPart(
        GROUPS, b"", write_batch(pa.RecordBatch.from_pydict({"column": array, "nested": nested_array}))
    )
    masked_batch = read_batch(Masks.of([part]).mask_part(part).batch, "")
    assert masked_batch.to_pydict() == {"column": [None, None], "nested": [[None, None], None]}


def texts_of(value: Any) -> set[str]:
    if isinstance(value, str):
        return {value}
    if isinstance(value, dict):
        value = list(value.values())
    return set().union(*map(texts_of, value)) if isinstance(value, (list, tuple)) else set()


def test_exchanges_of_over_and_views_are_recorded(tmp_path: Path) -> None:
    """Exchanges of OVER, with outputs after each row, and of views, replay as they were."""
    functions = connect([Ratio, CountDifferent], record=Recordings(str(tmp_path / "over"), of="all"))
    frame = functions["ratio"]("price", "qty").rows(None, 0)
    run_over(
        {"running": frame, "last": functions["ratio"]("price", "qty").rows(-2, 0)},
        ROWS,
        keys=["customer"],
        order_by=["price"],
    )
    views = connect(CountDifferent, record=Recordings(str(tmp_path / "views"), of="all"))
    words = [{"k": place % 3, "word": f"w{place % 7}"} for place in range(30)]
    run_epochs({"n": views("word")}, [words[:9], words], keys=["k"])
    for folder, place in (("over", f"{PLACE}:Ratio"), ("views", "tests.wire.view_functions:CountDifferent")):
        assert files(tmp_path / folder)
        for path in files(tmp_path / folder):
            run = replay(path, "--function", place)
            assert run.exit_code == 0, run.output
    failing_functions = connect(Ratio, record=Recordings(str(tmp_path / "bad")))
    with pytest.raises(FunctionError, match="recorded: "):
        run_over(
            {"running": failing_functions("price", "qty").rows(None, 0)},
            [*ROWS, BAD],
            keys=["customer"],
            order_by=["price"],
        )
    run = replay(the_file(tmp_path / "bad"), "--function", f"{PLACE}:Ratio", "--shrink")
    assert "rows that still fail: 1" in run.output, run.output


def test_one_call_of_over_is_left(tmp_path: Path) -> None:
    """The column of OVER that tells which rows have outputs stays in the recording, and is not in the test."""
    call = connect(Ratio, record=Recordings(str(tmp_path)))("price", "qty")
    with pytest.raises(FunctionError):
        run_over({"a": call, "b": call.where("ok")}, [{**BAD, "ok": True}], keys=["customer"], order_by=["price"])
    test = tmp_path / "test_over.py"
    run = replay(the_file(tmp_path), "--function", f"{PLACE}:Ratio", "--to-test", str(test))
    assert "wrote" in run.output, run.output
    header = next(line for line in run.output.splitlines() if "epoch" in line)
    assert [name.strip() for name in header.strip("┃ \n").split("┃")] == ["epoch", "group", "qty"], "and no emit"
    assert "'emit'" not in test.read_text()
    assert "'ok'" not in test.read_text()


JAVA = """
package com.acme;

public class Ratio {
  public static class State { public long total; }
  public State createAccumulator() { return new State(); }
  public void accumulate(State state, long price, long qty) { state.total += 100 / DIVISOR * price; }
  public Long getValue(State state) { return state.total; }
}
"""


def test_another_mistake_of_a_class_in_java_does_not_take_the_place(tmp_path: Path) -> None:
    """A later row raises the same exception in another method; the row that is left raises in the recorded one."""
    source = JAVA.replace("100 / DIVISOR * price", "half(price) + 100 / qty")
    source = source.replace("public Long", "static long half(long price) { return 50 / price; }\n  public Long")
    broken_class = f"{jar(tmp_path, source)}::com.acme.Ratio"
    function = connect("embedded:", java=[broken_class], record=Recordings(str(tmp_path)))["ratio"]
    rows = [{"customer": "c1", "price": price, "qty": qty} for price, qty in ((1, 1), (2, 0), (0, 3))]
    with pytest.raises(FunctionError):
        run_epochs({"result": function("price", "qty")}, [rows], keys=["customer"])
    assert "row: price=2, qty=0" in replay(the_file(tmp_path), "--function", broken_class, "--shrink").output


def test_a_class_in_java_is_replayed(tmp_path: Path) -> None:
    """It is told by its jar, compared with the class of another jar, shrunk, and tested."""
    broken_class = f"{jar(tmp_path / 'old', JAVA.replace('DIVISOR', 'qty'))}::com.acme.Ratio"
    mended_class = f"{jar(tmp_path / 'new', JAVA.replace('DIVISOR', '(qty == 0 ? 100 : qty)'))}::com.acme.Ratio"
    function = connect("embedded:", java=[broken_class], record=Recordings(str(tmp_path)))["ratio"]
    with pytest.raises(FunctionError, match=r"--function functions\.jar::com\.acme\.Ratio"):
        run_epochs({"result": function("price", "qty")}, [[*ROWS, BAD]], keys=["customer"])
    path, test = the_file(tmp_path), tmp_path / "test_java.py"
    run = replay(path, "--function", broken_class, "--shrink", "--to-test", str(test))
    assert "rows that still fail: 1" in run.output, run.output
    assert "which differs" not in run.output
    assert "java=['functions.jar::com.acme.Ratio'])['ratio'](" in test.read_text()
    run = replay(path, "--function", mended_class)
    assert (run.exit_code, "whose code differs from the recorded code" in run.output) == (0, True), run.output


def test_a_batch_that_needs_a_state_gets_an_error_with_a_remedy() -> None:
    """The last task of a batch has states only; the rows are in its dead letters."""
    columns = pa.schema([("slot", pa.int32()), ("price", pa.int64()), ("qty", pa.int64())])
    states = States(pa.RecordBatch.from_pydict({"slot": pa.array([0], pa.int32()), "state_0": [None]}))
    for returns, remedy in ((Returns(states=False), "on_error='isolate'"), (Returns(), "Record the stream")):
        recording = Recording({}, Open((Call("ratio", ("price", "qty")),), columns, returns=returns), (Pair(states),))
        with pytest.raises(RejectedError, match=remedy):
            text_of_test(recording, Registry.load([Ratio]), shows=FunctionError("USER_CODE", "get_value raised"))


def test_only_recordings_signed_with_the_key_are_read(tmp_path: Path) -> None:
    """With a key only a recording that is signed with it is read."""
    record(tmp_path / "signed", [BAD], key=KEY)
    record(tmp_path / "unsigned", [BAD])
    assert read_recording(the_file(tmp_path / "signed"), key=KEY).pairs
    for path, key in (("signed", KEY + "!"), ("unsigned", KEY)):
        with pytest.raises(RejectedError, match="is not signed with the given key") as excinfo:
            read_recording(the_file(tmp_path / path), key=key)
        assert excinfo.value.code == "UNAUTHENTICATED"


def test_pickled_states_are_not_unpickled_without_consent(tmp_path: Path) -> None:
    """Only --state-key or --unpickle lets a recording's pickles be read: they may be anything.

    A signature does not: a server signs recordings of states that it refused, of an engine that it does not trust.
    """
    rows = [{"customer": "a", "v": 1}]
    record(tmp_path, rows, [*rows, {"customer": "a", "v": 0}], function=Pickled, columns=("v",), key=KEY)
    for options in ([], ["--recording-key", KEY]):
        refused_replay = replay(the_file(tmp_path), "--function", f"{PLACE}:Pickled", *options)
        assert "STATE_MISMATCH" in refused_replay.output
        assert "--unpickle" in refused_replay.output
    assert "ZeroDivisionError" in replay(the_file(tmp_path), "--function", f"{PLACE}:Pickled", "--unpickle").output


def test_a_pickled_state_with_a_secret_is_not_replayed_and_says_why(tmp_path: Path, monkeypatch: Any) -> None:
    """The recording has asterisks for it, so no key fits, and the error does not ask for one; another group replays."""
    key = "sk-0123456789abcdef"
    monkeypatch.setenv("MODEL_KEY", key)
    rows = [{"customer": "a", "text": f"with {key}"}, {"customer": "b", "text": "without"}]
    bad = [{"customer": name, "text": ""} for name in "ab"]
    record(tmp_path, rows, bad, function=PickledTexts, columns=("text",), of="all")
    path = files(tmp_path)[-1]
    assert key.encode() not in path.read_bytes()
    options = ("--function", f"{PLACE}:PickledTexts", "--unpickle")
    output = " ".join(replay(path, *options).output.split())
    assert "in the place of a secret of the environment" in output
    assert "so no key fits. Leave such groups out with --group" in output
    assert "--state-key" not in output
    assert "an empty text" in replay(path, *options, "--group", "customer=b").output


def test_code_is_not_found_by_the_recording(tmp_path: Path) -> None:
    """Without a function of the user nothing is imported, and the error says what to give."""
    record(tmp_path, [BAD])
    run = replay(the_file(tmp_path))
    assert "UNKNOWN_FUNCTION" in run.output
    assert f"--function {PLACE}:Ratio" in run.output
    with pytest.raises(RejectedError, match="UNKNOWN_FUNCTION"):
        functions_for(read_recording(the_file(tmp_path)), [])


def test_damaged_and_truncated_files_are_refused(tmp_path: Path) -> None:
    """Each truncation and each changed byte is a clear error with the file's name, and never another exception."""
    record(tmp_path, [*ROWS[:3], BAD])
    path = the_file(tmp_path)
    data = path.read_bytes()
    other = tmp_path / "other"
    for end in range(0, len(data), 7):
        other.write_bytes(data[:end])
        with pytest.raises(RejectedError, match="other: ") as excinfo:
            read_recording(other)
        assert excinfo.value.code == "BAD_FRAME"
    for place in range(0, len(data), 5):
        changed_bytes = bytearray(data)
        changed_bytes[place] ^= 0x55
        other.write_bytes(changed_bytes)
        with pytest.raises(RejectedError) as excinfo:
            read_recording(other)
        assert excinfo.value.code == "BAD_FRAME"
    with pytest.raises(RejectedError, match="cannot read"):
        read_recording(tmp_path / "missing")


def test_no_bytes_of_a_recording_break_its_reader(tmp_path: Path) -> None:
    """Whoever changes a recording can write a digest that fits: parts of any content are a clear error, or are read."""
    record(tmp_path, ROWS[:3], [*ROWS[:3], BAD], of="all")
    rng = random.Random(11)
    other, refused_count = tmp_path / "other", 0
    for path in files(tmp_path):
        with path.open("rb") as file:
            *parts, _ = parts_in(file, len(MAGIC))
        for _ in range(150):
            place = rng.randrange(len(parts))
            changed_members = {name: bytearray(getattr(parts[place], name)) for name in ("message", "batch")}
            data = changed_members[rng.choice([name for name in changed_members if changed_members[name]])]
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
            changed_parts = [
                *parts[:place],
                RecordingPart(parts[place].kind, **{k: bytes(v) for k, v in changed_members.items()}),
            ]
            with other.open("wb") as file:
                write_recording(file, [*changed_parts, *parts[place + 1 :]], None)
            run = replay(other, "--function", f"{PLACE}:Ratio", "--shrink")
            assert run.exception is None or isinstance(run.exception, SystemExit), run.exception
            refused_count += "BAD_FRAME" in run.output
    assert refused_count


def test_a_state_of_no_call_is_refused(tmp_path: Path) -> None:
    """The names of columns in a recording may be any, so none is read as a number."""
    record(tmp_path, ROWS[:3], [*ROWS[:3], BAD])
    recording = read_recording(the_file(tmp_path))
    states = recording.pairs[0].frame
    assert isinstance(states, States)
    names = [name.replace("_0", "_ ") for name in states.batch.schema.names]
    renamed_states = States(pa.RecordBatch.from_arrays(states.batch.columns, names=names))
    with pytest.raises(RejectedError, match="the states have no column state_0"):
        fold_again(replace(recording, pairs=(Pair(renamed_states), *recording.pairs[1:])), Registry.load([Ratio]))


def test_one_number_of_a_recording_does_not_take_all_memory() -> None:
    """Accumulators take memory up to the largest slot, so a slot far beyond the number of rows is refused."""
    chunk = pa.RecordBatch.from_pydict({"slot": pa.array([0, 1 << 28], pa.int32()), "price": [1, 2], "qty": [1, 2]})
    open_request = Open((Call("ratio", ("price", "qty")),), chunk.schema)
    recording = Recording({"functions": []}, open_request, (Pair(Chunk(chunk)), Pair(Barrier(1))))
    with pytest.raises(RejectedError, match="LIMIT: slot 268435456 is out of bounds"):
        fold_again(recording, Registry.load([Ratio]))


def test_two_columns_of_one_name_are_refused(tmp_path: Path) -> None:
    """Names choose the columns of a recording, so they must be different."""
    path, groups = tmp_path / "other", pa.record_batch([pa.array([0], pa.int32())] * 2, names=["slot", "slot"])
    facts = {"at": "", "server": "", "foldflight": "", "is_masked": False, "functions": []}
    open_request = encode_open(Open((Call("count"),), pa.schema([])))
    parts = [
        RecordingPart(ABOUT, json.dumps(facts).encode()),
        RecordingPart(OPEN, open_request),
        RecordingPart(GROUPS, b"", write_batch(groups)),
    ]
    with path.open("wb") as file:
        write_recording(file, parts, None)
    with pytest.raises(RejectedError, match="two columns of one name"):
        read_recording(path)


@pytest.mark.parametrize("head", [b"E" + b"\xff" * 12, b"E\x00\x00\x00\x00" + b"\xff" * 8, b"?" + b"\0" * 12, b"E"])
def test_a_part_that_claims_too_much_is_refused(head: bytes, tmp_path: Path) -> None:
    """No memory is taken for bytes that are not there."""
    path = tmp_path / "other"
    path.write_bytes(MAGIC + head)
    with pytest.raises(RejectedError) as excinfo:
        read_recording(path)
    assert excinfo.value.code == "BAD_FRAME"


def test_dead_letters_are_replayed(tmp_path: Path) -> None:
    """Parquet files of `dead_letters` fail as the query did, and pass with the mended class."""
    letters = [
        {
            "key": {"customer": "c1"},
            "code": "USER_CODE",
            "function": "ratio",
            "message": "accumulate raised ZeroDivisionError: by zero",
            "trace": "",
            "at": "price=1, qty=0",
            "row_kind": "+I",
            "row": {"price": place, "qty": place % 3},
        }
        for place in range(5)
    ]
    path = tmp_path / "letters.parquet"
    pq.write_table(pa.Table.from_pylist(letters), path)
    failed_replay = replay(path, "--function", f"{PLACE}:Ratio", "--shrink")
    assert "rows that still fail: 1" in failed_replay.output
    assert "customer='c1'" in failed_replay.output
    mended_replay = replay(path, "--function", f"{PLACE}:Mended")
    assert "ZeroDivisionError" not in mended_replay.output.replace(
        "recorded error: USER_CODE: accumulate raised ZeroDiv", ""
    )
    assert "takes the columns" not in mended_replay.output
    assert (
        "does not take the columns price" in replay(path, "--function", f"{PLACE}:Ratio", "--arguments", "price").output
    )


def test_dead_letters_need_the_direct_arguments_of_the_query(tmp_path: Path) -> None:
    """Letters do not have them, so they are given; a written test has them, too."""
    path, test = tmp_path / "letters.parquet", tmp_path / "test_shares.py"
    letter = {"code": "USER_CODE", "function": "shares", "message": "accumulate raised ZeroDivisionError"}
    rows = [{"value": value} for value in (1, 0, 2)]
    pq.write_table(pa.Table.from_pylist([{**letter, "row_kind": "+I", "row": row} for row in rows]), path)
    function = ("--function", f"{PLACE}:Shares")
    assert "give it as in the query with --set whole=..." in replay(path, *function).output
    run = replay(path, *function, "--set", "whole=12", "--to-test", str(test))
    assert "rows that still fail: 1" in run.output
    assert "connect(Shares)('value', whole=12)" in test.read_text()
    assert "NAME=VALUE" in replay(path, *function, "--set", "whole").output


def test_dead_letters_of_groups_without_rows_are_refused(tmp_path: Path) -> None:
    """A group that failed without a row has a letter whose row is NULL, so there is nothing to fold."""
    path = tmp_path / "letters.parquet"
    letter = {"code": "USER_CODE", "function": "ratio", "message": "get_value raised ValueError", "row_kind": None}
    row = pa.array([None], pa.struct([("price", pa.int64()), ("qty", pa.int64())]))
    pq.write_table(pa.table({**{name: [value] for name, value in letter.items()}, "row": row}), path)
    run = replay(path, "--function", f"{PLACE}:Ratio")
    assert "have no rows to replay: its groups failed without one" in run.output, run.exception


def test_files_that_are_no_dead_letters_are_refused(tmp_path: Path) -> None:
    """The error says what is there instead."""
    assert "there is no such file or folder" in replay(tmp_path / "missing.parquet").output
    columns = {name: ["text"] for name in ("code", "function", "message", "row_kind", "row")}
    pq.write_table(pa.table(columns), tmp_path / "other.parquet")
    assert "its column row is no struct" in replay(tmp_path / "other.parquet").output
    record(tmp_path, [BAD])
    assert "is a folder of recordings; give one of its files" in replay(tmp_path).output


def test_bad_options_are_refused(tmp_path: Path) -> None:
    """Options that make no sense are errors when `connect` is called."""
    for options in ({"of": "some"}, {"of": {}}, {"of": {"k": "ann"}}, {"key": "short"}, {"bytes_max": 0}):
        with pytest.raises(RejectedError):
            Recordings(str(tmp_path), **options)  # type: ignore[arg-type]
    with pytest.raises(RejectedError, match="Recordings"):
        connect(Ratio, record="errors")  # type: ignore[arg-type]
    with pytest.raises(RejectedError, match="--record DIR"):
        connect("grpc://127.0.0.1:1", record=Recordings(str(tmp_path)))
    (tmp_path / "file").touch()
    with pytest.raises(RejectedError, match="cannot be created"):
        connect(Ratio, record=Recordings(str(tmp_path / "file" / "folder")))


def test_the_outcome_of_a_fold_has_its_answers(tmp_path: Path) -> None:
    """The answers of a replay equal the recording's, frame by frame."""
    record(tmp_path, ROWS, of="all")
    recording = read_recording(the_file(tmp_path))
    outcome = fold_again(recording, Registry.load([Ratio]))
    assert outcome.error is None
    assert len(outcome.answers) == len(recording.pairs)


def test_only_the_owner_reads_recordings(tmp_path: Path) -> None:
    """Whatever the umask is: recordings have rows of the query."""
    before = os.umask(0)
    try:
        record(tmp_path / "new", [*ROWS, BAD])
    finally:
        os.umask(before)
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o700
    assert the_file(tmp_path / "new").stat().st_mode & 0o777 == 0o600


def test_the_command_is_quoted(tmp_path: Path) -> None:
    """A shell reads the words of the printed command as they were meant, also with blanks in the path."""
    folder = tmp_path / "a folder"
    command = record(folder, [*ROWS, BAD]).split("replay with: ")[1].splitlines()[0]
    assert shlex.split(command) == ["foldflight", "replay", str(the_file(folder)), "--function", f"{PLACE}:Ratio"]


SCRIPT = """
from foldflight import Recordings, connect, udaf
from foldflight.testing import run_epochs


@udaf(input_types=["BIGINT"], result_type="BIGINT")
class Tenths:
    def create_accumulator(self) -> list[int]:
        return [0]

    def accumulate(self, sums: list[int], value):
        sums[0] += 10 // value

    def get_value(self, sums: list[int]):
        return sums[0]


GUARD
    functions = connect(Tenths, record=Recordings("recordings"))
    run_epochs({"n": functions("value")}, [[{"value": 1}, {"value": 0}]])
"""


def test_a_class_of_a_script_is_replayed(tmp_path: Path) -> None:
    """Its module `__main__` is another one for `replay`, so the command has the file, which is not run as a program."""
    script = tmp_path / "job.py"
    script.write_text(SCRIPT.replace("GUARD", 'if __name__ == "__main__":'))
    process = subprocess.run([sys.executable, script], cwd=tmp_path, capture_output=True, text=True, check=False)
    command = process.stderr.split("replay with: ")[1].splitlines()[0]
    assert f"--function {script}:Tenths" in command
    run = CliRunner().invoke(cli, shlex.split(command)[1:])
    assert "ZeroDivisionError" in run.output
    assert "differs from the recorded code" not in run.output
    script.write_text(SCRIPT.replace("GUARD", "if True:"))
    result = CliRunner().invoke(cli, shlex.split(command)[1:])
    assert result.exit_code == 1
    assert "that may run it as a program" in result.output


def test_other_errors_are_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Errors of a query and internal errors are recorded, too."""
    transport = connect(Pickled, record=Recordings(str(tmp_path))).transport
    columns = pa.schema([("kind", pa.int8()), ("value", pa.int64())])
    with transport.open(Open((Call("pickled", ("value",)),), columns)) as exchange:
        exchange.chunk(pa.RecordBatch.from_pylist([{"kind": 0, "value": 1}], columns))
        with pytest.raises(RejectedError, match="CANNOT_RETRACT") as excinfo:
            exchange.chunk(pa.RecordBatch.from_pylist([{"kind": 3, "value": 1}], columns))
    path = the_file(tmp_path)
    assert f"replay {path}" in str(excinfo.value)
    run = replay(path, "--function", f"{PLACE}:Pickled")
    assert run.exit_code == 1
    assert "raised in frame 2 of 2, as it was recorded" in run.output
    path.unlink()
    monkeypatch.setattr(Fold, "fold", lambda *_: {}["missing"])
    with (
        transport.open(Open((Call("pickled", ("value",)),), columns)) as exchange,
        pytest.raises(CorruptError) as corrupt_error,
    ):
        exchange.chunk(pa.RecordBatch.from_pylist([{"kind": 0, "value": 1}], columns))
    assert f"recorded: {the_file(tmp_path)}" in str(corrupt_error.value)
    assert replay(the_file(tmp_path), "--function", f"{PLACE}:Pickled").output.count("INVARIANT: ") == 2


def test_slots_that_are_refused_are_recorded(tmp_path: Path) -> None:
    """A recording does not change the error for damaged slots, and is replayed."""
    transport = connect(Pickled, record=Recordings(str(tmp_path))).transport
    columns = pa.schema([("slot", pa.int32()), ("value", pa.int64())])
    for slot in (-1, None):
        with transport.open(Open((Call("pickled", ("value",)),), columns)) as exchange, pytest.raises(RejectedError):
            exchange.chunk(pa.RecordBatch.from_pylist([{"slot": each, "value": 1} for each in (5, slot, 4)], columns))
    assert len(files(tmp_path)) == 2
    for path in files(tmp_path):
        assert "rows that still fail: 1" in replay(path, "--function", f"{PLACE}:Pickled", "--shrink").output
        assert replay(path, "--function", f"{PLACE}:Pickled", "--group", "slot=4").exit_code == 0


def test_an_epoch_without_groups_is_replayed(tmp_path: Path) -> None:
    """The results of an epoch may have no rows."""
    transport = connect(Pickled, record=Recordings(str(tmp_path), of="all")).transport
    columns = pa.schema([("slot", pa.int32()), ("value", pa.int64())])
    with transport.open(Open((Call("pickled", ("value",)),), columns)) as exchange:
        exchange.chunk(pa.RecordBatch.from_pylist([{"slot": 0, "value": 5}], columns))
        assert [end_epoch(exchange, epoch).num_rows for epoch in (1, 2)] == [1, 0]
    run = replay(the_file(tmp_path), "--function", f"{PLACE}:Pickled")
    assert "all recorded answers are the same (2)" in run.output


@pytest.mark.parametrize(
    "about", [{}, [], {"functions": [{"name": 1}]}, {"functions": [1]}, {"functions": [], "at": "2030"}]
)
def test_a_recording_of_another_program_needs_the_facts(about: Any, tmp_path: Path) -> None:
    """Facts that are missing, or have another form, are an error of the file."""
    path = tmp_path / "other.recording"
    with path.open("wb") as file:
        open_request = encode_open(Open((Call("count"),), pa.schema([])))
        write_recording(
            file, [RecordingPart(ABOUT, json.dumps(about).encode()), RecordingPart(OPEN, open_request)], None
        )
    with pytest.raises(RejectedError, match="the part A of the recording is not the JSON that it must be"):
        read_recording(path)


def test_a_masked_text_that_no_longer_fails_is_told(tmp_path: Path) -> None:
    """The same class does not raise for masked texts: that is no success. A mended one may be."""
    rows = [{"customer": "c1", "text": text} for text in ("ann", "bob")]
    record(tmp_path, rows, function=recorded_functions.Initials, columns=("text",), mask=True)
    run = replay(the_file(tmp_path), "--function", f"{PLACE}:Initials")
    assert run.exit_code == 1
    assert "the answers differ because of the masks" in run.output
    mended_replay = replay(the_file(tmp_path), "--function", f"{PLACE}:InitialsMended")
    assert mended_replay.exit_code == 0
    assert "only if the recorded class raises for them" in mended_replay.output


def test_control_characters_are_escaped(tmp_path: Path) -> None:
    """Texts of a recording of others give the terminal no commands."""
    rows = [{"customer": "c", "text": text, "number": n} for text, n in (("a", 1), ("b", None), ("\x1b[2J\x9b", 3))]
    record(tmp_path, rows, function=Longest, columns=("text", "number"))
    for options in ((), ("--shrink",), ("--break",)):
        output = replay(the_file(tmp_path), "--function", f"{PLACE}:Longest", *options).output
        assert "\\x1b[2J\\x9b" in output
        assert "\x1b" not in output
        assert "\x9b" not in output
    path = tmp_path / "\x1b.recording"
    path.write_text("no recording")
    assert "\x1b" not in replay(path).output


def test_a_difference_becomes_a_test(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A class that answers otherwise than the recorded one gives a test of the first group that differs."""
    record(tmp_path, ROWS[:40], ROWS[40:], of="all")
    first = files(tmp_path)[0]
    test = tmp_path / "test_ratio.py"
    monkeypatch.setattr(Ratio, "get_value", lambda self, sums: sums.total + 1)
    run = replay(first, "--function", f"{PLACE}:Ratio", "--to-test", str(test))
    assert "it fails until the function answers as it was recorded" in run.output
    assert run.exit_code == 1
    assert_names_are_right(test)
    test_text = test.read_text()
    assert test_text.count("'customer': 'c0'") == 8
    scope: dict[str, Any] = {}
    exec(test_text, scope)
    with pytest.raises(AssertionError):
        scope["test_ratio_answers_recorded_rows"]()
    monkeypatch.undo()
    scope["test_ratio_answers_recorded_rows"]()


@pytest.mark.parametrize("value", [float("nan"), -0.0])
def test_a_difference_of_nan_or_of_zeros_becomes_a_test(
    value: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NaN equals nothing, and 0.0 equals -0.0, so the test compares how the values are written."""
    parts = recorded_functions.Parts
    record(tmp_path, [{"customer": "a", "v": value}] * 9, function=parts, columns=("v",), of="all")
    test = tmp_path / "test_parts.py"
    monkeypatch.setattr(parts, "get_value", lambda self, parts: {"sum": sum(parts), "parts": [0.0] * len(parts)})
    assert "wrote" in replay(the_file(tmp_path), "--function", f"{PLACE}:Parts", "--to-test", str(test)).output
    assert_names_are_right(test)
    scope: dict[str, Any] = {}
    exec(test.read_text(), scope)
    with pytest.raises(AssertionError):
        scope["test_parts_answers_recorded_rows"]()
    monkeypatch.undo()
    scope["test_parts_answers_recorded_rows"]()


def test_a_test_has_intervals_as_tuples(tmp_path: Path) -> None:
    """An interval of months has no literal of its own."""
    rows = [{"customer": "a", "v": pa.MonthDayNano([1, -2, 3])}]
    record(tmp_path, rows, function=recorded_functions.Spans, columns=("v",))
    test = tmp_path / "test_spans.py"
    run = replay(the_file(tmp_path), "--function", f"{PLACE}:Spans", "--to-test", str(test))
    assert "wrote" in run.output, run.output
    assert "(1, -2, 3)" in test.read_text()
    scope: dict[str, Any] = {}
    exec(test.read_text(), scope)
    with pytest.raises(FunctionError, match="raised ValueError"):
        scope["test_spans_takes_recorded_rows"]()


def test_a_test_has_the_call_as_it_was(tmp_path: Path) -> None:
    """A written test has FILTER and DISTINCT of the call, and long texts in several lines."""
    functions = connect(Ratio, record=Recordings(str(tmp_path)))
    call = functions("price", "qty").where("is_paid").distinct()
    row = {"customer": "long " * 40, "price": 7, "qty": 0, "is_paid": True}
    with pytest.raises(FunctionError):
        run_epochs({"result": call}, [[row]], keys=["customer"])
    test = tmp_path / "test_call.py"
    run = replay(the_file(tmp_path), "--function", f"{PLACE}:Ratio", "--to-test", str(test))
    assert "wrote" in run.output, run.output
    text = test.read_text()
    assert max(map(len, text.splitlines())) <= 88
    assert "connect(Ratio)('price', 'qty').where('is_paid').distinct()" in text
    assert_names_are_right(test)
    scope: dict[str, Any] = {}
    exec(text, scope)
    with pytest.raises(FunctionError, match="ZeroDivisionError"):
        scope["test_ratio_takes_recorded_rows"]()
