"""The codecs that convert accumulators to states and back: typed, custom and pickle.

Typed states are Arrow values, checked by their type. Custom and pickled states are bytes in an envelope:

    custom   magic "FFC1" | fingerprint, 8 bytes | CRC-32 of the payload, 4 bytes | the payload from serialize
    pickle   HMAC-SHA256 of the rest, 32 bytes | magic "FFP1" | fingerprint, 8 bytes | the pickle

The envelope distinguishes states of another function, version or schema from damaged bytes.

States of other versions of a function are decoded for the function's `migrate`.
"""

from __future__ import annotations

import re
import zlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from foldflight.errors import CorruptError, FunctionError, RejectedError
from foldflight.fold.failures import user_failure
from foldflight.fold.pickles import Pickles, StateSigner, UnknownName
from foldflight.functions.author.spec import BoundFunction, Function, Methods
from foldflight.functions.types.serializer import StateSerializer
from foldflight.functions.types.values import CastError, to_python
from foldflight.functions.types.views import ListView, MapView

_CUSTOM: Final = b"FFC1"
_PICKLE: Final = b"FFP1"
_HEADER_BYTES: Final = 12


class UnconvertibleState(Exception):  # noqa: N818 - the caller, which knows the slot, raises its FunctionError
    """The accumulator or state at `index` cannot be converted, because of `error`."""

    def __init__(self, index: int, error: FunctionError) -> None:
        super().__init__(str(error))
        self.index = index
        self.error = error


class StateCodec(ABC):
    """Converts n accumulators to a column of n states and back."""

    arrow: pa.DataType

    def keeps(self, accumulators: Sequence[Any]) -> bool:  # noqa: ARG002 - as in `TypedCodec`
        """Return whether encoding and decoding n accumulators certainly returns equal ones. False if it is unknown."""
        return False

    @abstractmethod
    def encode(self, accumulators: Sequence[Any]) -> pa.Array:
        """Return n accumulators as n states. Raises UnconvertibleState for the first that cannot be converted."""

    @abstractmethod
    def decode(self, states: pa.Array) -> list[Any]:
        """Return n states, none of them NULL, as n accumulators.

        Raises:
            UnconvertibleState: `deserialize` raises for a state; `index` names the first.
            RejectedError: STATE_MISMATCH, for a state of another function, version, schema or key.
            CorruptError: STATE_CHECKSUM, for damaged bytes.
        """

    def content(self, accumulator: Any) -> Any:
        """Return what the state stores of an accumulator: the value that decodes from it, or the author's bytes.

        The ids of async calls are derived from it, so attributes that are not stored must not be part of it.

        Raises:
            UnconvertibleState: The accumulator does not fit its state.
        """
        return self.decode(self.encode([accumulator]))[0]


_FITTING: Final = "annotate it with the type of its values, or convert them in the method"
_WIDER: Final = (
    'give the attribute, or the accumulator, a wider type: Annotated[Decimal, "DECIMAL(38, 0)"] in place of int, float '
    "in place of FLOAT"
)


class TypedCodec(StateCodec):
    """Encodes accumulators as Arrow values of the type that the function declares."""

    def __init__(self, function: str, serializer: StateSerializer) -> None:
        self.function = function
        self.serializer = serializer
        self.arrow = serializer.arrow

    def keeps(self, accumulators: Sequence[Any]) -> bool:
        return self.serializer.keeps(accumulators)

    def encode(self, accumulators: Sequence[Any]) -> pa.Array:
        try:
            return self.serializer.to_arrow(accumulators)
        except CastError as error:
            remedy = f"; {_WIDER}" if error.code == "OVERFLOW" else "" if ";" in str(error) else f"; {_FITTING}"
            message = f"its accumulator does not fit its state: {error}{remedy}"
            raise UnconvertibleState(error.index, FunctionError(error.code, message, function=self.function)) from None

    def decode(self, states: pa.Array) -> list[Any]:
        return typed_values(self.function, self.serializer, states)


def typed_values(function: str, serializer: StateSerializer, states: pa.Array) -> list[Any]:
    """Return n typed states as n Python values. Raises RejectedError STATE_MISMATCH if one has no such value."""
    try:
        return serializer.from_arrow(states)
    except (ValueError, TypeError, OverflowError, KeyError, pa.ArrowException) as error:
        raise unreadable(function, f"{type(error).__name__}: {error}") from error


def unreadable(function: str, reason: str) -> RejectedError:
    """Return the error for a state that has the right type and an invalid value."""
    return RejectedError("STATE_MISMATCH", f"a state of {function} cannot be read: {reason}", function=function)


class _EnvelopedCodec(StateCodec):
    arrow = pa.binary()

    def __init__(self, bound: BoundFunction) -> None:
        self.function = bound.function.name
        self.version = bound.version
        self.fingerprint = bytes.fromhex(bound.fingerprint)

    def encode(self, accumulators: Sequence[Any]) -> pa.Array:
        envelopes = []
        for index, accumulator in enumerate(accumulators):
            try:
                envelopes.append(self.pack(accumulator))
            except FunctionError as error:
                raise UnconvertibleState(index, error) from error.__cause__
        return pa.array(envelopes, pa.binary())

    def decode(self, states: pa.Array) -> list[Any]:
        accumulators = []
        for index, state in enumerate(states.to_pylist()):
            try:
                accumulators.append(self.unpack(state))
            except FunctionError as error:
                raise UnconvertibleState(index, error) from error.__cause__
        return accumulators

    @abstractmethod
    def pack(self, accumulator: Any) -> bytes: ...

    @abstractmethod
    def unpack(self, state: bytes) -> Any: ...


def _open_envelope(function: str, version: str, envelope: bytes, magic: bytes, fingerprint: bytes) -> bytes:
    """Return the content of an envelope. Raises RejectedError STATE_MISMATCH for another magic or fingerprint."""
    if envelope[:4] != magic:
        raise RejectedError(
            "STATE_MISMATCH",
            f"a state given for {function} has another codec, or was not written by foldflight",
            function=function,
        )
    if envelope[4:_HEADER_BYTES] != fingerprint:
        raise RejectedError(
            "STATE_MISMATCH",
            f"a state given for {function} version {version} belongs to another function, version or schema (its "
            f"fingerprint is {envelope[4:_HEADER_BYTES].hex()}, expected {fingerprint.hex()}); run the version that "
            "wrote it, or start from empty state",
            function=function,
        )
    return envelope[_HEADER_BYTES:]


def custom_payload(function: str, version: str, fingerprint: bytes, state: bytes) -> bytes:
    """Return the bytes that `serialize` returned.

    Raises:
        RejectedError: STATE_MISMATCH, for a state of another fingerprint or codec.
        CorruptError: STATE_CHECKSUM.
    """
    rest = _open_envelope(function, version, state, _CUSTOM, fingerprint)
    checksum, payload = rest[:4], rest[4:]
    if zlib.crc32(payload).to_bytes(4, "big") != checksum:
        raise CorruptError("STATE_CHECKSUM", f"a state of {function} is damaged or truncated", function=function)
    return payload


def pickled_object(
    function: str, version: str, fingerprint: bytes, state: bytes, signer: StateSigner | None, pickles: Pickles
) -> Any:
    """Return an unpickled state, if it is signed with a key of this fleet.

    Args:
        function: Name of the function.
        version: The version that wrote the state.
        fingerprint: The fingerprint of that version.
        state: The envelope.
        signer: Checks the signature.
        pickles: Reads the function's pickles.

    Raises:
        RejectedError: STATE_MISMATCH, for another fingerprint, codec or key, and for a state that can no longer be
            unpickled; SETTINGS, without keys.
        FunctionError: USER_CODE, if the author's code raises SystemExit.
    """
    if signer is None:
        raise _no_key(function, "states of an earlier version are pickled")
    try:
        verified_state = signer.verify(state)
    except RejectedError as error:
        error.function = function
        raise
    payload = _open_envelope(function, version, verified_state, _PICKLE, fingerprint)
    try:
        return pickles.loads(payload)
    except SystemExit as error:
        raise user_failure(function, "pickle.loads", error) from error
    except UnknownName as error:
        raise RejectedError(
            "STATE_MISMATCH",
            f"a state of {function} cannot be unpickled: it refers to {error}, which is neither in the function's code "
            "nor in an importable module. Define it again under this name, in any module, so that old states can be "
            "read; or start with an empty checkpoint",
            function=function,
        ) from error
    except Exception as error:
        raise RejectedError(
            "STATE_MISMATCH",
            f"a state of {function} cannot be unpickled: {type(error).__name__}: {error}. The class of the state has "
            "changed: define __setstate__, which gets the old attributes, or start with an empty checkpoint",
            function=function,
        ) from error


def _no_key(function: str, reason: str) -> RejectedError:
    return RejectedError(
        "SETTINGS",
        f"the accumulators of {function} are pickled ({reason}), which needs a state key; set one "
        "(FOLDFLIGHT_STATE_KEYS, or connect(..., state_key=...)), annotate the accumulator, or define serialize and "
        "deserialize",
        function=function,
    )


class Custom(_EnvelopedCodec):
    """The bytes from the author's `serialize`, with a checksum."""

    def __init__(self, bound: BoundFunction, methods: Methods) -> None:
        super().__init__(bound)
        self.methods = methods

    def pack(self, accumulator: Any) -> bytes:
        assert self.methods.serialize is not None
        try:
            payload: Any = self.methods.serialize(accumulator)
        except (Exception, SystemExit) as error:
            raise user_failure(self.function, "serialize", error) from error
        if not isinstance(payload, (bytes, bytearray, memoryview)):
            message = f"serialize returned {type(payload).__name__}, not bytes"
            raise FunctionError("RESULT_TYPE", message, function=self.function)
        payload = bytes(payload)
        return _CUSTOM + self.fingerprint + zlib.crc32(payload).to_bytes(4, "big") + payload

    def content(self, accumulator: Any) -> Any:
        return self.encode([accumulator])[0].as_py()  # the author's bytes

    def unpack(self, state: bytes) -> Any:
        assert self.methods.deserialize is not None
        payload = custom_payload(self.function, self.version, self.fingerprint, state)
        try:
            return self.methods.deserialize(payload)
        except (Exception, SystemExit) as error:
            raise user_failure(self.function, "deserialize", error) from error


class PickledCodec(_EnvelopedCodec):
    """Signed pickles, or signed states of the function's own `pickles`."""

    def __init__(self, bound: BoundFunction, methods: Methods, signer: StateSigner) -> None:
        super().__init__(bound)
        self.signer = signer
        self.reason = bound.function.capabilities.codec_reason
        self.pickles: Pickles = methods.pickles or Pickles(bound.function.own)

    def encode(self, accumulators: Sequence[Any]) -> pa.Array:
        # All accumulators of a function have the same class, so it is enough to check one.
        view = next((name for name in map(_view_of, accumulators[:1]) if name is not None), None)
        if view is not None:
            message = (
                f"its accumulator has the view {view}, but is pickled as a whole ({self.reason}); annotate the "
                "accumulator, as in `def create_accumulator(self) -> State`, and the attributes of its class"
            )
            raise UnconvertibleState(0, FunctionError("RESULT_TYPE", message, function=self.function))
        return super().encode(accumulators)

    def pack(self, accumulator: Any) -> bytes:
        try:
            payload = self.pickles.dumps(accumulator)
        except SystemExit as error:
            raise user_failure(self.function, "pickle.dumps", error) from error
        except Exception as error:
            message = (
                f"its accumulator ({type(accumulator).__name__}) cannot be pickled: {error}; "
                "annotate its attributes, or define serialize and deserialize"
            )
            raise FunctionError("RESULT_TYPE", message, function=self.function) from error
        return self.signer.sign(_PICKLE + self.fingerprint + payload)

    def unpack(self, state: bytes) -> Any:
        return pickled_object(self.function, self.version, self.fingerprint, state, self.signer, self.pickles)


def _view_of(accumulator: Any) -> str | None:
    """Return the name of a view of an accumulator whose class does not declare it, or None."""
    attributes = getattr(accumulator, "__dict__", {})
    return next((name for name, each in attributes.items() if isinstance(each, (MapView, ListView))), None)


def state_codec(bound: BoundFunction, methods: Methods, signer: StateSigner | None) -> StateCodec:
    """Return the codec of a function's states.

    Args:
        bound: The function.
        methods: Its methods, for the custom codec and states of its own `pickles`.
        signer: Signs and checks pickles.

    Raises:
        RejectedError: SETTINGS, when states would be pickled and there is no signer.
    """
    codec = bound.function.capabilities.codec
    if codec == "custom":
        return Custom(bound, methods)
    if codec == "typed":
        assert bound.serializer is not None
        return TypedCodec(bound.function.name, bound.serializer)
    if signer is None:
        raise _no_key(bound.function.name, bound.function.capabilities.codec_reason)
    return PickledCodec(bound, methods, signer)


@dataclass(frozen=True)
class StateOrigin:
    """The origin of a column of states: the function version that wrote it.

    Args:
        version: The function's version.
        fingerprint: The fingerprint of the call that wrote the states, 16 hexadecimal digits.
        codec: The codec of the states: typed, custom, pickle or rows.
    """

    version: str
    fingerprint: str
    codec: str

    def values(self, function: Function, states: pa.Array, signer: StateSigner | None) -> list[Any]:
        """Decode n states that are not NULL to values, return values of `serialize`, or unpickled objects.

        Raises:
            RejectedError: STATE_MISMATCH, if a state has another form; SETTINGS, for pickles without a key.
            CorruptError: STATE_CHECKSUM, for damaged bytes.
        """
        name = function.name
        if self.codec in ("custom", "pickle") and states.type != pa.binary():
            raise unreadable(name, f"its codec is {self.codec}, and its type {states.type}")
        match self.codec:
            case "custom":
                fingerprint = self._fingerprint(name)
                return [custom_payload(name, self.version, fingerprint, state) for state in states.to_pylist()]
            case "pickle":
                fingerprint = self._fingerprint(name)
                pickles = Pickles(function.own)
                return [
                    pickled_object(name, self.version, fingerprint, state, signer, pickles)
                    for state in states.to_pylist()
                ]
            case "typed":
                return _python_values(name, states)
            case _:
                raise unreadable(name, f"its codec {self.codec!r} is unknown")

    def _fingerprint(self, function: str) -> bytes:
        if re.fullmatch("[0-9a-f]{16}", self.fingerprint) is None:
            raise unreadable(function, f"its fingerprint {self.fingerprint!r} is malformed")
        return bytes.fromhex(self.fingerprint)


def _python_values(function: str, states: pa.Array) -> list[Any]:
    try:
        return to_python(states)
    except (ValueError, TypeError, ArithmeticError, KeyError, pa.ArrowException) as error:
        raise unreadable(function, f"{type(error).__name__}: {error}") from error
