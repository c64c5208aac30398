"""Shipped functions: each Open has signed bundles, which only servers with the key unpickle."""

from __future__ import annotations

import dataclasses
import hashlib
import hmac
import io
import os
import pickle
import sys
import threading
import types
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import cloudpickle
import pytest

from foldflight import RejectedError, connect, udaf
from foldflight.client import FlightTransport, close_connections
from foldflight.client.exchange import Transport
from foldflight.exchange import exchange_pb2 as pb
from foldflight.functions import aggregate_of
from foldflight.functions.query.call import Call
from foldflight.functions.registry import Registry
from foldflight.server.run.lifecycle import serving
from foldflight.shipping.bundles import Bundle, made_here, seal, unseal
from foldflight.shipping.pickling import bundle_of
from tests.engines import beam_functions, flink_functions
from tests.wire.kit import DEADLINE_S, ServerProcess, end_epoch, open_request, opened_apart, rows

FIRST, SECOND, THIRD = "the-first-bundle-key", "the-second-bundle-key", "the-third-bundle-key"
Spawn = Callable[..., ServerProcess]
SOURCE = '''
from foldflight import udaf

class Sum:
    total: int

def times(value):
    return value * FACTOR

FACTOR = 3

@udaf(input_types=["BIGINT"], result_type="BIGINT")
class Thrice:
    """Three times the sum."""
    def create_accumulator(self) -> Sum:
        accumulator = Sum(); accumulator.total = 0
        return accumulator
    def accumulate(self, accumulator, value):
        accumulator.total += times(value)
    def merge(self, accumulator, other):
        accumulator.total += other.total
    def get_value(self, accumulator):
        return accumulator.total
'''
MARKER = "FOLDFLIGHT_TEST_UNPICKLED"


@pytest.fixture(autouse=True)
def fresh_connections() -> Iterator[None]:
    """Each test uses new connections."""
    yield
    close_connections()
    os.environ.pop(MARKER, None)


@pytest.fixture
def author_module() -> Iterator[types.ModuleType]:
    """A module that exists only in this process."""
    module = types.ModuleType("authored_here")
    sys.modules[module.__name__] = module
    exec(SOURCE, module.__dict__)
    yield module
    del sys.modules[module.__name__]


class Unpickled:
    """Leaves a mark when it is unpickled."""

    def __reduce__(self) -> tuple[Callable[..., object], tuple[str, str]]:
        return _mark, (MARKER, "1")


def _mark(name: str, value: str) -> None:
    os.environ[name] = value


def marking(**made_with: str) -> Bundle:
    """Return a bundle that leaves a mark if anything in it is unpickled."""
    return Bundle(("marks",), {**made_here(), **made_with}, cloudpickle.dumps((Unpickled(),)))


def refusal(transport: FlightTransport, sealed_bundle: bytes, code: str) -> RejectedError:
    """Send a bundle in both ways; check that each is refused, with nothing unpickled."""
    transport._bundles["marks"] = sealed_bundle
    result = []
    for offer in (transport.open, transport.describe):
        with pytest.raises(RejectedError) as excinfo:
            offer(open_request(Call("marks", ("value",))))
        assert excinfo.value.code == code
        assert MARKER not in os.environ
        result.append(excinfo.value)
    assert result[0].message == result[1].message
    return result[0]


def test_shipped_functions_fold(fork: Spawn, author_module: types.ModuleType) -> None:
    """A server folds a function that it did not have, when it is shipped with the right key."""
    server = fork(bundle_keys=FIRST)
    functions = connect(server.url, bundle_key=FIRST).register(author_module)
    assert functions["thrice"].info.signature == "thrice(value BIGINT) -> BIGINT"
    assert functions["thrice"].info.doc == "Three times the sum."
    with functions.transport.open(open_request(Call("thrice", ("value",)), Call("count", ()))) as exchange:
        exchange.chunk(rows((0, 0, 5), (1, 0, 7), (0, 0, 1)))
        results = end_epoch(exchange, 1)
    assert results["output_0"].to_pylist() == [18, 21]
    assert results["output_1"].to_pylist() == [2, 1]
    assert "thrice" not in connect(server.url)
    assert "bundle unpickled" in server.log.read_text()
    assert FIRST not in server.log.read_text()


def test_classes_of_other_engines_are_shipped(fork: Spawn) -> None:
    """A server folds a class that is written for another engine, without that engine."""
    server = fork(bundle_keys=FIRST)
    classes = [flink_functions.DistinctSum, beam_functions.AverageFn]
    adapted_functions = [aggregate_of(cls, input_types=["BIGINT"], result_type="DOUBLE") for cls in classes]
    functions = connect(server.url, bundle_key=FIRST).register(*adapted_functions)
    request = open_request(Call("distinct_sum", ("value",)), Call("average_fn", ("value",)))
    with functions.transport.open(request) as exchange:
        exchange.chunk(rows((0, 0, 5), (0, 0, 5), (0, 0, 8)))
        results = end_epoch(exchange, 1)
    assert [results[f"output_{place}"].to_pylist() for place in range(2)] == [[13.0], [6.0]]


def test_a_replica_that_never_saw_the_function_takes_over(fork: Spawn, author_module: types.ModuleType) -> None:
    """When the server is killed, another server gets the function from the Open."""
    servers = [fork(bundle_keys=FIRST) for _ in range(2)]
    functions = connect(",".join(server.url for server in servers), bundle_key=FIRST, patience_s=10).register(
        author_module
    )
    with functions.transport.open(open_request(Call("thrice", ("value",)))) as exchange:
        exchange.chunk(rows((0, 0, 5)))
        assert end_epoch(exchange, 1)["output_0"].to_pylist() == [15]
        at = exchange.open_reply.server_id
        for server in servers:
            if server.ready["server_id"] == at:
                server.end()
        exchange.chunk(rows((0, 0, 2)))
        assert end_epoch(exchange, 2)["output_0"].to_pylist() == [21]
        assert exchange.open_reply.server_id != at


@pytest.mark.every_turn
def test_workers_behind_one_port_take_it(spawn: Spawn, author_module: types.ModuleType) -> None:
    """Each connection may reach another process, which gets the function from the Open."""
    server = spawn(modules="tests.wire.limit_functions", bundle_keys=FIRST, workers=2)
    bundle = bundle_of(Registry.load([author_module]).authored, FIRST)
    request = open_request(Call("thrice", ("value",)), bundles=(bundle,))
    with opened_apart(server, request) as first, opened_apart(server, request) as second:
        assert first.open_reply.server_id != second.open_reply.server_id
        for exchange in (first, second):
            exchange.chunk(rows((0, 0, 1)))
            assert end_epoch(exchange, 1)["output_0"].to_pylist() == [3]


def test_the_key_stays_where_it_is(author_module: types.ModuleType) -> None:
    """A pickled transport has the signed bundle, not the key, and can open exchanges."""
    with serving(bundle_keys=FIRST) as server:
        transport = connect(server.url, bundle_key=FIRST).register(author_module).transport
        pickled_transport = pickle.dumps(transport)
        assert FIRST.encode() not in pickled_transport
        restored = pickle.loads(pickled_transport)
        with restored.open(open_request(Call("thrice", ("value",)))) as exchange:
            exchange.chunk(rows((0, 0, 4)))
            assert end_epoch(exchange, 1)["output_0"].to_pylist() == [12]
        with pytest.raises(RejectedError, match="bundle_key") as excinfo:
            restored.register(Registry.load([author_module]).authored)
        assert excinfo.value.code == "SETTINGS"


def test_keys_can_be_rotated(tmp_path: Path, author_module: types.ModuleType) -> None:
    """Two keys are valid at once; a key that was removed from the file is not, also for known bundles."""
    path = tmp_path / "bundle-keys"
    path.write_text(f"# who may ship\n{FIRST}\n{SECOND}\n")
    log = io.StringIO()
    with serving(bundle_keys_file=str(path), log_stream=log) as server:
        old = connect(server.url, bundle_key=FIRST).register(author_module).transport
        connect(server.url, bundle_key=SECOND).register(author_module)
        path.write_text(f"{SECOND}\n{THIRD}\n")
        os.utime(path, (1, 1))
        connect(server.url, bundle_key=THIRD).register(author_module)
        with pytest.raises(RejectedError, match="not signed with a bundle key of this server") as excinfo:
            old.open(open_request(Call("thrice", ("value",))))
        assert excinfo.value.code == "UNAUTHENTICATED"
    assert not any(key in log.getvalue() for key in (FIRST, SECOND, THIRD))


def test_a_key_stands_alone_on_its_line(tmp_path: Path) -> None:
    """Names after a key, as for a token, would have no effect: a server does not start with them."""
    path = tmp_path / "bundle-keys"
    path.write_text(f"{FIRST} thrice\n")
    with (
        pytest.raises(RejectedError, match="alone on its line") as excinfo,
        serving(bundle_keys_file=str(path)),
    ):
        pass
    assert excinfo.value.code == "SETTINGS"
    assert FIRST not in excinfo.value.message


def test_shipping_is_off_unless_keys_are_given() -> None:
    """A server without bundle keys says how to enable shipping, and unpickles nothing."""
    with serving() as server:
        transport = FlightTransport([server.url], deadline_s=DEADLINE_S)
        error = refusal(transport, seal(marking(), FIRST.encode()), "SETTINGS")
        assert "FOLDFLIGHT_BUNDLE_KEYS" in error.message


def test_bundles_without_a_seal_are_not_unpickled() -> None:
    """A foreign key, a state's signature, damage, other versions and size are errors; nothing is unpickled."""
    good = seal(marking(), FIRST.encode())
    with serving(bundle_keys=FIRST, bundle_bytes_max="64KiB") as server:
        transport = FlightTransport([server.url], deadline_s=DEADLINE_S)
        assert "bundle_key" in refusal(transport, seal(marking(), SECOND.encode()), "UNAUTHENTICATED").message
        unsigned_bundle = pb.Bundle.FromString(good)
        unsigned_bundle.signature = b""
        refusal(transport, unsigned_bundle.SerializeToString(), "UNAUTHENTICATED")
        # what the same key signed for another purpose is no bundle
        unsigned_bundle.signature = hmac.digest(FIRST.encode(), unsigned_bundle.content, hashlib.sha256)
        refusal(transport, unsigned_bundle.SerializeToString(), "UNAUTHENTICATED")
        assert "damaged" in refusal(transport, good[:-1] + b"!", "BAD_FRAME").message
        refusal(transport, b"\xff" * 40, "BAD_FRAME")
        error = refusal(transport, seal(marking(python="3.9"), FIRST.encode()), "MODULE")
        assert "python 3.9" in error.message
        refusal(transport, seal(marking(cloudpickle="1"), FIRST.encode()), "MODULE")
        refusal(transport, seal(marking(foldflight="0.0.1"), FIRST.encode()), "MODULE")
        large = seal(dataclasses.replace(marking(), code=b"\0" * 70_000), FIRST.encode())
        error = refusal(transport, large, "LIMIT")
        assert "bundle_bytes_max is 65536" in error.message


def test_sealed_bundles_with_errors_are_refused() -> None:
    """A validly signed bundle that is not of functions, lacks a module, or has other names, is MODULE."""
    with serving(bundle_keys=FIRST) as server:
        transport = FlightTransport([server.url], deadline_s=DEADLINE_S)
        for code in (cloudpickle.dumps((5,)), b"", marking().code, b"cno_such_module\nThing\n."):
            transport._bundles["marks"] = seal(Bundle(("marks",), made_here(), code), FIRST.encode())
            with pytest.raises(RejectedError) as excinfo:
                transport.open(open_request(Call("marks", ("value",))))
            assert excinfo.value.code == "MODULE"
        assert MARKER in os.environ  # so code that is not unpickled leaves none
        assert "no_such_module" in excinfo.value.message
        assert "install it" in excinfo.value.message


def test_a_bundle_that_cannot_be_opened_registers_nothing() -> None:
    """A server without state keys refuses a function with pickled states when it is registered."""

    @udaf(input_types=["BIGINT"], result_type="BIGINT")
    class Keeps:
        def create_accumulator(self):  # type: ignore[no-untyped-def]
            return []

        def accumulate(self, accumulator, value):  # type: ignore[no-untyped-def]
            accumulator.append(value)

        def get_value(self, accumulator):  # type: ignore[no-untyped-def]
            return sum(accumulator)

    with serving(bundle_keys=FIRST) as server:
        with pytest.raises(RejectedError, match="FOLDFLIGHT_STATE_KEYS") as excinfo:
            connect(server.url, bundle_key=FIRST).register(Keeps)
        assert (excinfo.value.code, excinfo.value.function) == ("SETTINGS", "keeps")
    with serving(bundle_keys=FIRST, state_keys="a-key-for-pickled-states") as server:
        assert fold_one(connect(server.url, bundle_key=FIRST).register(Keeps).transport, "keeps") == 1


def test_a_taken_name_stays_the_servers(author_module: types.ModuleType) -> None:
    """A bundle cannot replace a function of the server, built-in or from a module."""
    with serving(author_module, bundle_keys=FIRST) as server:
        with pytest.raises(RejectedError, match="another name") as excinfo:
            connect(server.url, bundle_key=FIRST).register(author_module)
        assert (excinfo.value.code, excinfo.value.function) == ("SIGNATURE", "thrice")


def test_a_token_opens_shipped_functions_by_name(tmp_path: Path, author_module: types.ModuleType) -> None:
    """A caller may ship only functions that its token names, whoever signed them."""
    path = tmp_path / "tokens"
    path.write_text("a-token-for-thrice-only thr*\na-token-for-counting-only count\n")
    with serving(bundle_keys=FIRST, tokens_file=str(path)) as server:
        assert "thrice" in connect(server.url, token="a-token-for-thrice-only", bundle_key=FIRST).register(
            author_module
        )
        with pytest.raises(RejectedError, match="does not permit thrice") as excinfo:
            connect(server.url, token="a-token-for-counting-only", bundle_key=FIRST).register(author_module)
        assert excinfo.value.code == "UNAUTHENTICATED"


def test_a_function_is_registered_again(author_module: types.ModuleType) -> None:
    """A changed class with the same name is another bundle: new exchanges use it, open ones the old one."""
    with serving(bundle_keys=FIRST) as server:
        functions = connect(server.url, bundle_key=FIRST).register(author_module.Thrice)
        with functions.transport.open(open_request(Call("thrice", ("value",)))) as before:
            exec(SOURCE.replace("FACTOR = 3", "FACTOR = 30"), author_module.__dict__)
            functions.register(author_module.Thrice)
            with functions.transport.open(open_request(Call("thrice", ("value",)))) as after:
                for exchange, expected in ((before, 3), (after, 30)):
                    exchange.chunk(rows((0, 0, 1)))
                    assert end_epoch(exchange, 1)["output_0"].to_pylist() == [expected]


def fold_one(transport: Transport, name: str = "thrice") -> int:
    """Return the result of a function for one row of 1."""
    with transport.open(open_request(Call(name, ("value",)))) as exchange:
        exchange.chunk(rows((0, 0, 1)))
        [value] = end_epoch(exchange, 1)["output_0"].to_pylist()
    return int(value)


def test_a_class_that_is_changed_in_place_changes_no_bundle(author_module: types.ModuleType) -> None:
    """A bundle does not change when its class is changed and shipped again."""
    with serving(bundle_keys=FIRST) as server:
        first = connect(server.url, bundle_key=FIRST).register(author_module.Thrice).transport
        assert fold_one(first) == 3
        changed_method = types.FunctionType(
            author_module.Thrice.accumulate.__code__, {"times": lambda value: value * 50}, "accumulate"
        )
        author_module.Thrice.accumulate = changed_method
        second = connect(server.url, bundle_key=FIRST).register(author_module.Thrice).transport
        assert (fold_one(second), fold_one(first), fold_one(second)) == (50, 3, 50)


def test_a_class_that_is_changed_in_place_changes_no_plan(author_module: types.ModuleType) -> None:
    """Embedded functions of two plans in one worker are independent."""
    plans = []
    for factor in (3, 50):
        author_module.Thrice.factor = factor
        author_module.Thrice.get_value = lambda self, accumulator: accumulator.total * self.factor
        plans.append(pickle.dumps(connect(author_module.Thrice).transport))
    first, second = (pickle.loads(plan) for plan in plans)
    assert (fold_one(first), fold_one(second), fold_one(first)) == (9, 150, 9)


def test_many_exchanges_share_one_reading_of_a_bundle(author_module: types.ModuleType) -> None:
    """A known bundle is unpickled once, also if many threads need it at once."""
    log = io.StringIO()
    with serving(bundle_keys=FIRST, log_stream=log) as server:
        transport = connect(server.url, bundle_key=FIRST).register(author_module.Thrice).transport
        with ThreadPoolExecutor(8) as threads:
            assert set(threads.map(lambda _: fold_one(transport), range(64))) == {3}
    assert log.getvalue().count("bundle unpickled") == 1


def test_functions_that_cannot_be_shipped_have_a_reason() -> None:
    """A class with a lock, a short key, and a key for embedded functions are errors in the driver."""
    lock = threading.Lock()

    @udaf(input_types=["BIGINT"], result_type="BIGINT")
    class Locks:
        def create_accumulator(self) -> int:
            return 0

        def accumulate(self, accumulator: int, value: int) -> int:
            with lock:
                return accumulator + value

        def get_value(self, accumulator: int) -> int:
            return accumulator

    with pytest.raises(RejectedError, match="locks cannot be sent to the processes that fold") as excinfo:
        bundle_of(Registry.load([Locks]).authored, FIRST)
    assert excinfo.value.code == "SIGNATURE"
    assert "the variable lock is _thread.lock" in excinfo.value.message
    with pytest.raises(RejectedError, match="at least 16 bytes"):
        connect("grpc://127.0.0.1:1", bundle_key="short")
    with pytest.raises(RejectedError, match="for servers"):
        connect("embedded:", bundle_key=FIRST)


def test_an_unsealed_bundle_equals_the_sealed_one() -> None:
    """The unsealed content equals the sealed one, with any valid key; the digest is the content's."""
    bundle = Bundle(("a", "b"), made_here(), b"code")
    keys = [FIRST.encode(), SECOND.encode()]
    result = [unseal(seal(bundle, key), keys) for key in keys]
    assert result == [bundle, bundle]
    assert (
        result[0].digest == result[1].digest != unseal(seal(Bundle(("a",), made_here(), b"code"), keys[0]), keys).digest
    )
