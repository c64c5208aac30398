"""Epochs of one bucket of a stream: the start of the only group of a query without keys."""

from typing import Any

import pyarrow as pa
import pytest

from bench.call_counts import counted
from foldflight import RejectedError, connect
from foldflight.engine.keys.group_exchange import GroupedExchange
from foldflight.engine.query.layout import KIND, REAL, QueryLayout
from foldflight.engine.state.manifest import Storage
from foldflight.engine.state.table import MemoryStore, StateTable, TableLayout
from foldflight.engine.stream.epoch import BucketEpoch
from foldflight.exchange.frames import Open, Returns
from foldflight.functions import Call, RowKind
from foldflight.spark.bucketed import BucketStore
from foldflight.testing import run_epochs

INSERT, DELETE = RowKind.INSERT, RowKind.DELETE
CHUNK = pa.schema([("slot", pa.int32()), ("kind", pa.int8())])


@pytest.mark.parametrize(
    ("is_always_there", "expected"),
    [
        (False, [[], [], [(INSERT, 1)], [(RowKind.UPDATE_BEFORE, 1), (RowKind.UPDATE_AFTER, 0)]]),
        (
            True,
            [
                [(INSERT, 0)],
                [],
                [(RowKind.UPDATE_BEFORE, 0), (RowKind.UPDATE_AFTER, 1)],
                [(RowKind.UPDATE_BEFORE, 1), (RowKind.UPDATE_AFTER, 0)],
            ],
        ),
    ],
)
def test_the_group_without_keys_begins(is_always_there: bool, expected: list[list[tuple[int, int]]]) -> None:
    """The group starts with its first folded row, or with the first epoch if it always exists; then it stays."""
    layout, exchange, table = _bucket()
    result = []
    for kinds in ([DELETE], [], [INSERT], [DELETE, DELETE]):
        epoch = BucketEpoch(exchange, layout, table, is_strict=False, is_always_there=is_always_there)
        changed_rows, rows = epoch.run(iter([_block(layout, kinds)]))
        result.append(list(zip(changed_rows.to_pylist(), rows.column(0).to_pylist(), strict=True)))
    assert result == expected


@pytest.mark.parametrize(
    ("epochs", "reason"),
    [
        ([[INSERT], [INSERT, DELETE, DELETE, DELETE]], "has no row left"),
        ([[INSERT, DELETE, DELETE]], "had no row before this epoch, and no equal row is accumulated in it"),
        ([[INSERT, DELETE], [DELETE, INSERT, DELETE]], "had no row before this epoch, and no equal row"),
    ],
)
def test_strict_mode_tells_why_a_retraction_has_no_row(epochs: list[list[RowKind]], reason: str) -> None:
    """A group with rows does not know them and only counts; rows of a group that begins in the epoch are compared."""
    layout, exchange, table = _bucket()
    *before, last = (_block(layout, kinds) for kinds in epochs)
    for block in before:
        BucketEpoch(exchange, layout, table, is_strict=True).run(iter([block]))
    with pytest.raises(RejectedError, match=f"a row is retracted from a group that {reason}") as excinfo:
        BucketEpoch(exchange, layout, table, is_strict=True).run(iter([last]))
    assert excinfo.value.code == "CANNOT_RETRACT"


@pytest.mark.parametrize("mebibytes", [1, 17])
def test_states_that_the_store_does_not_take_name_the_group(monkeypatch: pytest.MonkeyPatch, mebibytes: int) -> None:
    """Spark's process says nothing when its memory is used up. A connection that ends over little has other causes."""

    class Ended:
        def updateValue(self, key: Any, value: Any) -> None:  # noqa: N802
            raise EOFError

    layout, exchange, table = _bucket()
    store = BucketStore(lambda: None, lambda _: None, Ended())
    monkeypatch.setattr(table, "commit", lambda *_: store.put_run("name", bytes(mebibytes << 20)))
    with pytest.raises((RejectedError, EOFError)) as excinfo:
        BucketEpoch(exchange, layout, table, is_strict=True).run(iter([_block(layout, [INSERT])]))
    if mebibytes == 1:
        assert isinstance(excinfo.value, EOFError)
    else:
        assert isinstance(excinfo.value, RejectedError)
        assert excinfo.value.code == "LIMIT"
        assert excinfo.value.group == {}
        assert "given 17 MiB of states, probably because its memory is used up. Keep large" in excinfo.value.message


def test_states_that_no_array_holds_together_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """An epoch whose groups have too many bytes is refused with what helps. Other errors of Arrow stay."""
    layout, exchange, table = _bucket()
    BucketEpoch(exchange, layout, table, is_strict=True).run(iter([_block(layout, [INSERT])]))
    for text, expected in (("offset overflow while concatenating arrays", RejectedError), ("else", pa.ArrowInvalid)):

        def lookup(*_: Any, text: str = text) -> Any:
            raise pa.ArrowInvalid(text)

        monkeypatch.setattr(table, "lookup", lookup)
        with pytest.raises(expected) as excinfo:
            BucketEpoch(exchange, layout, table, is_strict=True).run(iter([_block(layout, [INSERT])]))
        assert expected is pa.ArrowInvalid or "LIMIT: the states or results of the 1 groups" in str(excinfo.value)


def test_the_key_of_each_group_is_hashed_once_an_epoch() -> None:
    """A state table is read and written with the same stored hashes, however often a group has rows."""
    rows = [{"name": f"group {number % 100}", "value": number} for number in range(300)]
    with counted() as calls:
        epochs = run_epochs({"total": connect("embedded:")["sum"]("value")}, [rows, rows], keys=["name"])
    assert [len(epoch.states) for epoch in epochs] == [100, 100]
    assert 2 * 100 <= calls["engine/keys/hashes.py"] < 2 * (100 + 10)


def _bucket() -> tuple[QueryLayout, GroupedExchange, StateTable]:
    transport = connect("embedded:").transport
    open_request = Open((Call("count"),), CHUNK, returns=Returns(), initial_outputs=True)
    open_reply = transport.describe(open_request).schema
    states, outputs = (pa.schema([open_reply.field(f"{what}_0")]) for what in ("state", "output"))
    nothing = pa.schema([])
    layout = QueryLayout(nothing, (), nothing, (), has_kinds=True, states=states, carried=states, outputs=outputs)
    exchange = GroupedExchange(transport, open_request, layout)
    table = StateTable(TableLayout(keys=nothing, states=states, buckets=1), Storage(MemoryStore()))
    return layout, exchange, table


def _block(layout: QueryLayout, kinds: list[RowKind]) -> pa.RecordBatch:
    columns = {KIND: pa.array(list(map(int, kinds)), pa.int8()), REAL: pa.array([True] * len(kinds))}
    return pa.RecordBatch.from_arrays([columns[name] for name in layout.rows.names], schema=layout.rows)
