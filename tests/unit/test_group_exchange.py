"""Groups that share one exchange, one turn after the other."""

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from foldflight import FunctionError, RejectedError, RetryableError, connect
from foldflight.client import OpenExchange, Transport, embedded_transport
from foldflight.engine.keys.group_exchange import GroupedExchange, Groups
from foldflight.engine.query.layout import QueryLayout
from foldflight.exchange.frames import UNBOUNDED, FunctionInfo, Open, Opened, Returns
from foldflight.fold.mode import Mode
from foldflight.functions import Call

KEYS = pa.schema([("key_0", pa.string())])
COLUMNS = pa.schema([("column_0", pa.int64())])
SUM = Open(
    calls=(Call("sum", ("v",)),), columns=pa.schema([("slot", pa.int32()), ("v", pa.int64())]), initial_outputs=True
)


class Counted:
    """A transport that counts the opened exchanges, and those that are still open."""

    def __init__(self, transport: Transport) -> None:
        self.transport = transport
        self.otlp_endpoint = None
        self.exchanges: list[OpenExchange] = []

    @property
    def alive(self) -> int:
        return sum(not each.is_over for each in self.exchanges)

    def infos(self, *, look: bool = False) -> list[FunctionInfo]:
        return self.transport.infos(look=look)

    def describe(self, open: Open) -> Opened:  # noqa: A002
        return self.transport.describe(open)

    def open(self, open: Open) -> OpenExchange:  # noqa: A002
        self.exchanges.append(self.transport.open(open))
        return self.exchanges[-1]


@pytest.fixture
def transport() -> Counted:
    return Counted(connect("embedded:").transport)


@pytest.fixture
def group_exchange(transport: Counted) -> GroupedExchange:
    return GroupedExchange(transport, SUM, layout(transport))


def layout(transport: Transport) -> QueryLayout:
    states = pa.schema([transport.describe(SUM).schema.field("state_0")])
    outputs = pa.schema([("total", pa.int64())])
    return QueryLayout(KEYS, ("k",), COLUMNS, ("v",), has_kinds=False, states=states, carried=states, outputs=outputs)


def rows(*pairs: tuple[str, int]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(
        [{"key_0": k, "column_0": v} for k, v in pairs], schema=pa.schema([*KEYS, *COLUMNS])
    )


def fold_pairs(group_exchange: GroupedExchange, groups: Groups, *pairs: tuple[str, int]) -> dict[str, Any]:
    block = rows(*pairs)
    group_exchange.chunk(groups.slots(block), block)
    group_exchange.barrier()
    results = group_exchange.results()
    keys = groups.keys(results["slot"].to_numpy()).column(0)
    return dict(zip(keys.to_pylist(), results["output_0"].to_pylist(), strict=True))


def test_modes_are_known_once_the_exchange_is_open(transport: Counted, group_exchange: GroupedExchange) -> None:
    """Before the first use no mode is known; afterwards each call has one."""
    assert list(group_exchange.modes) == [None]
    groups = Groups(layout(transport))
    with group_exchange.turn(groups):
        fold_pairs(group_exchange, groups, ("a", 1))
        assert list(group_exchange.modes) == [Mode.VECTORISED]


def test_a_turn_does_not_see_the_groups_of_the_one_before(transport: Counted, group_exchange: GroupedExchange) -> None:
    """Each turn starts with empty slots, in the same exchange."""
    groups = Groups(layout(transport))
    with group_exchange.turn(groups):
        assert fold_pairs(group_exchange, groups, ("a", 1), ("b", 2)) == {"a": 1, "b": 2}
        assert fold_pairs(group_exchange, groups, ("b", 3)) == {"b": 5}
    groups = Groups(layout(transport))
    with group_exchange.turn(groups):
        slots = groups.slots(rows(("b", 0)))
        nothing = pa.nulls(1, layout(transport).states.field(0).type)
        assert group_exchange.outputs_of(slots, [nothing])["output_0"].to_pylist() == [None]
        assert fold_pairs(group_exchange, groups, ("a", 10)) == {"a": 10, "b": None}
    assert len(transport.exchanges) == 1
    assert transport.alive == 1
    group_exchange.close()
    group_exchange.close()
    assert transport.alive == 0


def test_rows_without_a_barrier_are_forgotten(transport: Counted, group_exchange: GroupedExchange) -> None:
    """A turn that ends before its barrier does not affect the next."""
    groups = Groups(layout(transport))
    with group_exchange.turn(groups):
        block = rows(("a", 1))
        group_exchange.chunk(groups.slots(block), block)
    groups = Groups(layout(transport))
    with group_exchange.turn(groups):
        assert fold_pairs(group_exchange, groups, ("b", 10)) == {"b": 10}


def test_a_state_that_is_too_large_names_its_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside its function and the setting that bounds it: a server knows only the slot."""
    monkeypatch.setattr(embedded_transport, "UNBOUNDED", replace(UNBOUNDED, state_bytes_max=100))
    transport = connect("embedded:").transport
    schema = pa.schema([("slot", pa.int32()), ("v", pa.string())])
    texts = Open(calls=(Call("string_agg", ("v",)),), columns=schema, returns=Returns(states=True))
    states = pa.schema([transport.describe(texts).schema.field("state_0")])
    columns = pa.schema([("column_0", pa.string())])
    query = QueryLayout(KEYS, ("k",), columns, ("v",), has_kinds=False, states=states, carried=states)
    block = pa.RecordBatch.from_pylist(
        [{"key_0": "small", "column_0": "a"}, {"key_0": "large", "column_0": "z" * 200}],
        schema=pa.schema([*KEYS, *columns]),
    )
    groups, exchange = Groups(query), GroupedExchange(transport, texts, query)
    message = r"a state of string_agg has .* state_bytes_max is 100"
    with exchange.turn(groups):
        exchange.chunk(groups.slots(block), block)
        with pytest.raises(RejectedError, match=message) as excinfo:
            exchange.barrier()
    assert (excinfo.value.code, excinfo.value.limit) == ("LIMIT", "state_bytes_max")
    assert excinfo.value.group == {"k": "large"}
    assert "group: k='large'" in str(excinfo.value)


def test_an_error_names_its_group_and_ends_the_exchange(transport: Counted, group_exchange: GroupedExchange) -> None:
    """After an error in one turn the next one uses another exchange."""
    groups = Groups(layout(transport))
    with pytest.raises(FunctionError) as excinfo, group_exchange.turn(groups):
        fold_pairs(group_exchange, groups, ("a", 1), ("b", 2**62), ("b", 2**62))
    assert excinfo.value.group == {"k": "b"}
    assert transport.alive == 0
    groups = Groups(layout(transport))
    with group_exchange.turn(groups):
        assert fold_pairs(group_exchange, groups, ("a", 10)) == {"a": 10}
    assert len(transport.exchanges) == 2


def test_an_exchange_that_cannot_forget_is_ended(
    transport: Counted, group_exchange: GroupedExchange, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The turn whose Forget fails raises, and no exchange stays open."""

    def lose(slots: pa.Int32Array) -> None:
        raise RetryableError("UNREACHABLE", f"{len(slots)} slots")

    groups = Groups(layout(transport))
    with group_exchange.turn(groups):
        fold_pairs(group_exchange, groups, ("a", 2))
    monkeypatch.setattr(transport.exchanges[0], "forget", lose)
    with pytest.raises(RetryableError), group_exchange.turn(Groups(layout(transport))):
        pass
    assert transport.alive == 0
    groups = Groups(layout(transport))
    with group_exchange.turn(groups):
        assert fold_pairs(group_exchange, groups, ("a", 10)) == {"a": 10}


def test_time_in_the_exchange_is_measured(transport: Counted) -> None:
    """The times of the given clock are added up for each use of the exchange."""
    ticks = iter(range(1000))
    group_exchange = GroupedExchange(transport, SUM, layout(transport), clock=lambda: float(next(ticks)))
    groups = Groups(layout(transport))
    with group_exchange.turn(groups):
        fold_pairs(group_exchange, groups, ("a", 1))
    assert group_exchange.elapsed_s == 3.0  # chunk, barrier, results: one tick each
