"""`foldflight replay`: fold a recording again, compare, debug, shrink, and write a test.

Dead letters, the rows of failed groups of a query with isolated errors, are read as a recording.
"""

from __future__ import annotations

import datetime
import pdb  # noqa: T100 - --break is a debugger
import shlex
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from rich.console import Console
from rich.table import Table
from rich.text import Text

from foldflight.cli.terminal import printable
from foldflight.client.connect import NO_STATE_KEY
from foldflight.errors import FoldflightError, FunctionError, RejectedError
from foldflight.exchange.frames import Barrier, Chunk, Open
from foldflight.ext.recording.code import facts_of
from foldflight.ext.recording.file import Pair, Recording
from foldflight.functions import AnyFunction, Call, Function, Registry, RowKind
from foldflight.functions.types.arrow import rows_to_display

if TYPE_CHECKING:
    from foldflight.ext.recording.replay import Difference, Outcome
    from foldflight.ext.recording.shrink import ShrinkResult

_COLUMNS: Final = ("code", "function", "message", "row_kind", "row")
_KINDS: Final = {kind.short: int(kind) for kind in RowKind}
_Command = TypeVar("_Command", bound=Callable[..., Any])

EXIT_DIFFERENT: Final = 1
_TABLE_ROWS_MAX: Final = 20  # rows that are printed of a table
_DIFFERENCES_MAX: Final = 10_000  # differences that are collected
_VALUE_CHARS_MAX: Final = 60
# Messages if no function raises for masked strings, when the code has changed and when it may be the same.
_IF_CHANGED: Final = (
    "no function raises, but the texts are masked: this shows that the function is mended only if the recorded class "
    "raises for them"
)
_IF_SAME: Final = (
    "the answers differ because of the masks: the recorded error came from texts that are not in the recording, so it "
    "cannot be replayed. Record without a mask, or isolate the error and read the dead letters"
)


def _key_option(flag: str, doc: str) -> Callable[[_Command], _Command]:
    variable = f"FOLDFLIGHT_CLIENT_{flag[2:].replace('-', '_').upper()}"
    return click.option(flag, envvar=variable, help=f"{doc}  [{variable}]")


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--function",
    "functions",
    multiple=True,
    metavar="MODULE:CLASS",
    help="The class or function to fold with; it is executed. One of another name takes the place of the recorded one. "
    "A class in Java is functions.jar::com.acme.Name.",
)
@click.option("--group", "groups", multiple=True, metavar="KEY=VALUE", help="Only the group with this key, or slot=N.")
@click.option("--break", "breaks", is_flag=True, help="Stop in the debugger where a function raises.")
@click.option("--shrink", "shrinks", is_flag=True, help="Find the fewest rows and columns that still fail.")
@click.option("--to-test", "test", type=click.Path(path_type=Path), help="Write a test with the rows into this file.")
@click.option(
    "--arguments", metavar="COLUMNS", help="Of dead letters: the columns of `row` that are the arguments, by commas."
)
@click.option(
    "--set",
    "literals",
    multiple=True,
    metavar="NAME=VALUE",
    help="Of dead letters: a direct argument of the query as a Python literal, such as --set fraction=0.9.",
)
@_key_option("--recording-key", "Key with which the recording must be signed.")
@_key_option("--bundle-key", "Key of the bundles in the recording, whose code is then executed.")
@_key_option("--state-key", "Key of the pickled states in the recording, which are then unpickled.")
@click.option(
    "--unpickle",
    is_flag=True,
    help="Unpickle states of embedded functions without a state key, which executes what is in them. Give it only for "
    "a recording whose states you trust; a signature does not vouch for states that a server got from an engine.",
)
def replay(
    file: Path,
    *,
    functions: tuple[str, ...],
    groups: tuple[str, ...],
    breaks: bool,
    shrinks: bool,
    test: Path | None,
    arguments: str | None,
    literals: tuple[str, ...],
    recording_key: str | None,
    bundle_key: str | None,
    state_key: str | None,
    unpickle: bool,
) -> None:
    """Fold the recording FILE again, and compare the answers with the recorded ones.

    Example: foldflight replay FILE.recording --function weighted_avg:WeightedAvg

    FILE is a recording (connect(..., record=...), or serve --record DIR), or dead letters: a Parquet file or folder.
    Nothing of the file is executed, except bundles and pickled states if --bundle-key, --state-key or --unpickle is
    given. Prints the error of the function, and the groups whose answers differ. Exits with 1 if a function raises or
    an answer differs.
    """
    from foldflight.ext.recording import replay as folding
    from foldflight.ext.recording.code import function_at, functions_for
    from foldflight.ext.recording.file import groups_named, of_groups

    current_functions = [function_at(each) for each in functions]
    recording = _read(file, current_functions, arguments, literals, recording_key)
    registry = functions_for(recording, current_functions, [bundle_key.encode()] if bundle_key else ())
    state_keys = [state_key.encode()] if state_key else []
    state_keys += [NO_STATE_KEY] if unpickle else []
    if groups:
        recording = of_groups(recording, groups_named(recording, _parse_groups(groups)))
    _describe(recording, registry)
    isolates = False if breaks or shrinks else None
    outcome = folding.fold_again(recording, registry, state_keys=state_keys, isolates=isolates)
    if breaks and outcome.error is not None:
        _debug(outcome.error)
    differences = list(islice(folding.differences(recording, outcome), _DIFFERENCES_MAX))
    is_of_rows = test is not None and (outcome.error is not None or not differences)
    if shrinks or is_of_rows:
        _shrink(recording, registry, state_keys, test)
    elif _is_equal(recording, registry, outcome, differences):
        return
    elif test is not None:
        _write_test(test, folding.of_difference(recording, differences[0]), registry, differences[0])
    click.get_current_context().exit(EXIT_DIFFERENT)


def _read(
    file: Path,
    current_functions: Sequence[AnyFunction],
    arguments: str | None,
    literals: tuple[str, ...],
    key: str | None,
) -> Recording:
    from foldflight.cli.check_command import literals_in
    from foldflight.ext.recording.file import read_recording

    if file.is_dir() or file.suffix == ".parquet":
        columns = None if arguments is None else [each.strip() for each in arguments.split(",")]
        return read_dead_letters(file, current_functions, columns, literals_in(literals))
    return read_recording(file, key=key)


def _parse_groups(groups: Iterable[str]) -> Mapping[str, str]:
    pairs = [group.partition("=") for group in groups]
    for name, equals, _ in pairs:
        if not name or not equals:
            raise click.BadParameter("write KEY=VALUE, such as customer=ann", param_hint="--group")
    if len({name for name, _, _ in pairs}) < len(pairs):
        raise click.BadParameter("give each key once: groups have all the keys that are given", param_hint="--group")
    return {name: value for name, _, value in pairs}


def _describe(recording: Recording, registry: Registry) -> None:
    """Print the origin of a recording, and which code has changed since."""
    from foldflight.ext.recording.code import has_changed, module_of

    about = recording.about
    if "at" in about:
        _say(f"recorded at {about['at']} by {about['server']}, foldflight {about['foldflight']}")
    if about.get("is_masked"):
        _say("its texts are masked: a function that looks into them may do otherwise than it did")
    for each in about["functions"]:
        function = registry[each["name"]]
        # The answer is unknown (None) for recordings of Spark's workers, which have no source.
        notes = {
            True: ", whose code differs from the recorded code",
            None: "; whether its code has changed since is not known",
        }
        is_changed = has_changed(each, function)
        if is_changed is not False:
            _say(f"{each['name']}: folded with {module_of(function)}{notes[is_changed]}")
    if recording.error is not None:
        _say(f"recorded error: {recording.error.code}: {recording.error.message}")


def _say(text: str, style: str = "") -> None:
    """Print text of this program and of the recording."""
    Console().print(Text(printable(text), style), soft_wrap=True)


def _shrink(recording: Recording, registry: Registry, state_keys: Sequence[bytes], test: Path | None) -> None:
    """Print the fewest rows that fail, and write them to a test."""
    from foldflight.ext.recording.shrink import shrink

    console = Console()
    with console.status("looking for the fewest rows"):
        shrink_result = shrink(recording, registry, state_keys=state_keys)
    console.print(_rows_table(shrink_result))
    if shrink_result.unused_columns:
        _say(f"the error is the same if these columns are NULL: {', '.join(shrink_result.unused_columns)}")
    if not shrink_result.is_minimal:
        _say(f"ended after {shrink_result.runs} runs: fewer rows may do", "bold")
    _say(str(shrink_result.error))
    if test is not None:
        _write_test(test, shrink_result.recording, registry, shrink_result.error)


def _write_test(test: Path, recording: Recording, registry: Registry, shows: FoldflightError | Difference) -> None:
    """Write a test of an error, or of the first answer that differs."""
    from foldflight.ext.recording.testfile import test_text

    text = test_text(recording, registry, shows=shows)
    try:
        with test.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise RejectedError("SETTINGS", f"{test} exists already; give another name, or remove it") from None
    except OSError as error:
        raise RejectedError("SETTINGS", f"cannot write {test}: {error.strerror}") from None
    does = "takes these rows" if isinstance(shows, FoldflightError) else "answers as it was recorded"
    _say(f"wrote {test}: it fails until the function {does}. Run: python -m pytest {shlex.quote(str(test))}")


def _rows_table(shrink_result: ShrinkResult) -> Table:
    from foldflight.exchange.frames import Barrier, Chunk, States

    open_request, pairs = shrink_result.recording.open_request, shrink_result.recording.pairs
    hidden_names = {
        "slot",
        *shrink_result.unused_columns,
        *(["emit"] if open_request.emits else []),
    }  # not columns of the query
    names = [name for name in open_request.columns.names if name not in hidden_names]
    rows = sum(each.frame.batch.num_rows for each in pairs if isinstance(each.frame, (Chunk, States)))
    _say(f"rows that still fail: {rows} ({shrink_result.runs} runs)")  # a table wraps its title
    table = Table()
    for name in ("epoch", "group", *names):
        table.add_column(Text(printable(name)), overflow="fold")
    epoch = 1
    for pair in pairs:
        if isinstance(pair.frame, Barrier):
            epoch += 1
        elif isinstance(pair.frame, (Chunk, States)):
            for row in islice(rows_to_display(pair.frame.batch), _TABLE_ROWS_MAX):
                slot = row.get("slot", 0)
                group = _group_text(shrink_result.recording.groups.get(slot, {"slot": slot}))
                if not open_request.maps and isinstance(row.get("kind"), int):
                    row["kind"] = RowKind(row["kind"])
                values = [_display_text(row[name]) for name in names if name in row]
                table.add_row(str(epoch), Text(group), *(values if isinstance(pair.frame, Chunk) else ["(a state)"]))
    return table


def _debug(error: FoldflightError) -> None:
    """Stop in the debugger, at the innermost frame of the exception that the function raised."""
    cause = error.__cause__
    if cause is None or cause.__traceback__ is None:
        click.echo("the error was raised when foldflight checked what the function returned: no frame of it is left")
        return
    where = "" if error.row is None else f" for the row {error.row}"
    click.echo(printable(f"{error.function} raised{where}; `up` leads to its caller, `q` ends"))
    click.echo(printable("".join(traceback.format_exception(cause, limit=-3))), nl=False)
    pdb.post_mortem(cause.__traceback__)


def _is_equal(recording: Recording, registry: Registry, outcome: Outcome, differences: Sequence[Difference]) -> bool:
    """Print the differences from the recording. Return True if no function raised and no answer differs."""
    from foldflight.ext.recording.code import has_changed
    from foldflight.ext.recording.file import slots_in
    from foldflight.ext.recording.replay import COMPARED_FRAMES

    if differences:
        Console().print(_differences_table(differences))
    if outcome.error is not None:
        _say(str(outcome.error))
        where = f"raised in frame {len(outcome.answers)} of {len(recording.pairs)}"
        _say(f"{where}{_as_recorded(recording, outcome.error)}")
    if outcome.error is not None or differences:
        return False
    recorded_error, now, pairs = recording.error, "no function raises", recording.pairs
    if recorded_error is not None:
        now = "now no function raises"
        if recorded_error.slot is not None and not any(recorded_error.slot in slots_in(pair.frame) for pair in pairs):
            failed_group = _group_text(recording.groups.get(recorded_error.slot, {"slot": recorded_error.slot}))
            now = f"no function raises here (the recorded error is of the group {failed_group})"
        elif recording.about.get("is_masked"):
            is_edited = any(has_changed(each, registry[each["name"]]) for each in recording.about["functions"])
            _say(_IF_CHANGED if is_edited else _IF_SAME, "yellow" if is_edited else "bold red")
            return is_edited
    answered_pairs = pairs if recorded_error is None else pairs[:-1]
    compared_count = sum(any(isinstance(each, COMPARED_FRAMES) for each in pair.answers) for pair in answered_pairs)
    same = (
        f"all recorded answers are the same ({compared_count})"
        if compared_count
        else "there is no recorded answer to compare"
    )
    _say(f"{now}, and {same}", "green")
    if recorded_error is not None and recorded_error.code == "LIMIT":
        _say("a replay has no bounds, so it cannot show whether the bound of the server is still exceeded")
    return True


def _as_recorded(recording: Recording, error: FoldflightError) -> str:
    """Return a note that compares an error with the recorded one, without values of rows, which may be masked."""
    if recording.error is None:
        return ""
    recorded_text, now = ((each.code, each.message.partition(":")[0]) for each in (recording.error, error))
    return ", as it was recorded" if recorded_text == now else ", which is another error than the recorded one"


def _differences_table(differences: Sequence[Difference]) -> Table:
    _say(f"values that differ: {len(differences)}")
    table = Table("where", "group", "value", "recorded", "now")
    for each in differences[:_TABLE_ROWS_MAX]:
        values = _display_text(each.recorded), _display_text(each.replayed)
        table.add_row(each.where, Text(_group_text(each.group)), Text(printable(each.column)), *values)
    if len(differences) > _TABLE_ROWS_MAX:
        table.add_row("...", "", "", "", "")
    return table


def _group_text(group: Mapping[str, Any]) -> str:
    return printable(", ".join(f"{name}={value!r}" for name, value in group.items()) or "(all rows)")


def _display_text(value: Any) -> Text:
    text = value.short if isinstance(value, RowKind) else repr(value)
    if isinstance(value, (datetime.date, datetime.time)):
        text = str(value)
    return Text(text if len(text) <= _VALUE_CHARS_MAX else text[: _VALUE_CHARS_MAX - 3] + "...")


def read_dead_letters(
    path: Path, functions: Sequence[AnyFunction], arguments: Sequence[str] | None, literals: Mapping[str, Any]
) -> Recording:
    """Read dead letters of one function from Parquet.

    Args:
        path: A file or a folder, as `dead_letters(df).write.parquet(...)` wrote it.
        functions: The functions of the caller: one with the name in the letters, or a single one.
        arguments: The columns of `row` that are its arguments. Default: all columns.
        literals: The direct arguments of the query, which dead letters do not contain.

    Raises:
        RejectedError: SETTINGS, if the files cannot be read; SCHEMA_MISMATCH, if they have no dead letters, or the
            columns do not fit the function; SIGNATURE, if a direct argument is missing.
    """
    if path.is_dir() and any(path.glob("*.recording")):
        raise RejectedError("SETTINGS", f"{path} is a folder of recordings; give one of its files")
    if not path.exists():
        raise RejectedError("SETTINGS", f"cannot read dead letters from {path}: there is no such file or folder")
    try:
        table = ds.dataset(path, format="parquet").to_table()
    except (pa.ArrowException, OSError) as error:
        raise RejectedError("SETTINGS", f"cannot read dead letters from {path}: {error}") from None
    missing = [name for name in _COLUMNS if name not in table.schema.names]
    if missing or not table.num_rows:
        what = f"no column {missing[0]}" if missing else "no rows"
        raise RejectedError(
            "SCHEMA_MISMATCH",
            f"{path} has {what}; write the result of dead_letters(df) as Parquet. Letters of a query that reads no "
            "columns have no rows to replay",
        )
    if not pa.types.is_struct(table.schema.field("row").type):
        raise RejectedError("SCHEMA_MISMATCH", f"{path} has no dead letters: its column row is no struct")
    name = table.column("function")[0].as_py()
    table = table.filter(pc.equal(table.column("function"), name))
    function = next((each for each in functions if each.name == name), functions[0] if len(functions) == 1 else None)
    if function is None:
        raise RejectedError(
            "UNKNOWN_FUNCTION", f"{path} has dead letters of {name}; give its code with --function module:Class"
        )
    if not isinstance(function, Function):
        raise RejectedError("SIGNATURE", f"{name} is no aggregate function; call it with the rows of the letters")
    absent = [each.name for each in function.parameters if each.required and each.name not in literals]
    if absent:
        raise RejectedError(
            "SIGNATURE",
            f"{function.signature} needs the direct argument {absent[0]!r}, which dead letters do not have; give it as "
            f"in the query with --set {absent[0]}=...",
        )
    call = Call(name, _arguments_in(table, function, arguments), literals=literals)
    table = table.filter(table.column("row").is_valid())
    if not table.num_rows:
        raise RejectedError(
            "SCHEMA_MISMATCH", f"the dead letters of {name} have no rows to replay: its groups failed without one"
        )
    return _recording_of_rows(table, call, function)


def _arguments_in(table: pa.Table, function: Function, arguments: Sequence[str] | None) -> tuple[str, ...]:
    """Return the columns of `row` that are the arguments. Raises RejectedError SCHEMA_MISMATCH."""
    columns = [each.name for each in table.schema.field("row").type]
    names = columns if arguments is None else arguments
    unknown_names = [each for each in names if each not in columns]
    if unknown_names or not function.inputs_min <= len(names) <= len(function.input_names):
        raise RejectedError(
            "SCHEMA_MISMATCH",
            f"{function.signature} does not take the columns {', '.join(names)} of the dead letters, which have "
            f"{', '.join(columns)}; name the arguments with --arguments",
        )
    return tuple(names)


def _recording_of_rows(table: pa.Table, call: Call, function: Function) -> Recording:
    rows = table.column("row").combine_chunks()
    columns = {field.name: rows.field(index) for index, field in enumerate(rows.type)}
    keys = table.column("key").to_pylist() if "key" in table.schema.names else [{}] * table.num_rows
    slots: dict[str, int] = {}
    groups: dict[int, dict[str, Any]] = {}
    numbers = []
    for key in keys:
        numbers.append(slots.setdefault(repr(key), len(slots)))
        groups.setdefault(numbers[-1], key)
    kinds = [_KINDS.get(kind, 0) for kind in table.column("row_kind").to_pylist()]
    arrays = [pa.array(numbers, pa.int32()), pa.array(kinds, pa.int8()), *(columns[each] for each in call.arguments)]
    batch = pa.RecordBatch.from_arrays(arrays, names=["slot", "kind", *call.arguments])
    first = {each: table.column(each)[0].as_py() for each in ("code", "message")}
    code = first["code"] if first["code"] in FunctionError.codes else "USER_CODE"
    return Recording(
        about={"functions": [{**facts_of(function), "name": call.function}]},
        open_request=Open((call,), batch.schema),
        pairs=(Pair(Chunk(batch)), Pair(Barrier(1))),
        groups=groups,
        error=FunctionError(code, first["message"] or "", function=call.function, slot=numbers[0]),
    )
