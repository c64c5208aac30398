"""What a query writes: functions by name, and uses of them over columns."""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from foldflight.errors import RejectedError
from foldflight.functions.literals import check_names
from foldflight.functions.registry import Registry

if TYPE_CHECKING:
    from foldflight.client.embedded import EmbeddedTransport
    from foldflight.client.flight import FlightTransport
    from foldflight.client.transport import Transport
    from foldflight.exchange.frames import FunctionInfo

__all__ = ["Aggregate", "FunctionHandle", "Functions"]

_ADDRESS: Final = re.compile(r" at 0x[0-9a-f]+")
_SHOWN_CHARS_MAX: Final = 80


@dataclass(frozen=True)
class Aggregate:
    """One use of a function in a query; made by calling a `FunctionHandle`.

    Args:
        function: What is used.
        columns: The arguments: column names, SQL expressions or an engine's own column objects, opaque here.
        condition: FILTER: only rows for which it is true count; None counts all.
        is_distinct: Whether equal argument rows count once.
        literals: Direct arguments, fixed for the call.
        transport: The way to the function.
        name: The name of the output; None until `alias` gives it.
    """

    function: FunctionInfo
    columns: tuple[object, ...]
    transport: Transport = field(repr=False, compare=False)
    condition: object | None = None
    is_distinct: bool = False
    literals: Mapping[str, Any] = field(default_factory=dict)
    name: str | None = None

    def alias(self, name: str) -> Aggregate:
        """Return the same use with a name for its output: `agg(count().alias("n"))` is `agg(n=count())`."""
        if not isinstance(name, str):
            raise RejectedError("SIGNATURE", f"the name of an output is a text, and {_shown(name)} is none")
        return dataclasses.replace(self, name=name)

    def where(self, condition: object) -> Aggregate:
        """Return the same use over the rows for which `condition` is true (SQL's FILTER)."""
        if self.condition is not None:
            raise RejectedError(
                "SIGNATURE",
                f"{self.function.name} has a condition already; combine the two with AND",
                function=self.function.name,
            )
        return dataclasses.replace(self, condition=condition)

    def distinct(self) -> Aggregate:
        """Return the same use over distinct argument rows."""
        if not self.columns:
            raise RejectedError(
                "SIGNATURE",
                f"{self.function.name}() has no argument to be distinct by; name a column",
                function=self.function.name,
            )
        return dataclasses.replace(self, is_distinct=True)

    def __repr__(self) -> str:
        given = [*map(repr, self.columns), *(f"{name}={value!r}" for name, value in self.literals.items())]
        text = f"{self.function.name}({', '.join(given)})"
        text += "" if self.condition is None else f".where({self.condition!r})"
        text += ".distinct()" if self.is_distinct else ""
        return text if self.name is None else f"{text}.alias({self.name!r})"


class FunctionHandle:
    """A function that can be used in a query: `weighted_avg("value", "weight")`.

    Args:
        info: Its name, signature and capabilities.
        transport: The way to it.
    """

    def __init__(self, info: FunctionInfo, transport: Transport) -> None:
        self.info = info
        self.name = info.name
        self._transport = transport
        self.__doc__ = info.doc

    def __call__(self, /, *columns: object, **literals: object) -> Aggregate:
        """Use the function over columns, with direct arguments by name.

        Raises:
            RejectedError: SCHEMA_MISMATCH for a wrong number of columns, SIGNATURE for direct arguments that are
                unknown, missing or no constants.
        """
        self._check_columns(columns)
        check_names(self.info, literals)
        for name, value in literals.items():
            if not _is_constant(value):
                raise RejectedError(
                    "SIGNATURE",
                    f"the direct argument {name} of {self.name} is {_shown(value)}, which is no constant; give a "
                    "number, a text, a date, or a list or dict of such (columns and expressions are given without a "
                    "name)",
                    function=self.name,
                )
        return Aggregate(self.info, columns, self._transport, literals=literals)

    def __repr__(self) -> str:
        return f"<function {self.info.signature}>"

    def _check_columns(self, columns: tuple[object, ...]) -> None:
        least, most = self.info.inputs_min, len(self.info.input_names)
        if least <= len(columns) <= most:
            return
        expected = str(least) if least == most else f"{least} to {most}"
        raise RejectedError(
            "SCHEMA_MISMATCH",
            f"{self.info.signature} takes {expected} column{'' if expected == '1' else 's'}, got {len(columns)}",
            function=self.name,
        )


def _is_constant(value: object) -> bool:
    """Tell whether a value is the same in every process.

    An expression (PySpark's Column) is not even equal to itself: to compare it makes another expression. What shows its
    address (a function, a lock) is another one elsewhere.
    """
    if isinstance(value, np.ndarray):
        return value.dtype != object
    if isinstance(value, (list, tuple)):
        return all(map(_is_constant, value))
    if isinstance(value, Mapping):
        return all(map(_is_constant, value.values()))
    if isinstance(value, str):
        return True
    try:
        return bool(value == value or value != value) and not _ADDRESS.search(repr(value))  # noqa: PLR0124 - see above
    except Exception:  # noqa: BLE001 - each engine has its own error for that
        return False


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARS_MAX else text[:_SHOWN_CHARS_MAX] + "..."


class Functions(Mapping[str, FunctionHandle]):
    """The functions that a transport reaches: by name, as attributes, and by a call where there is only one.

    `functions["weighted_avg"]` and `functions.weighted_avg` are the same. Where one function was asked for,
    as in `spread = connect(Spread)`, `spread("value")` uses it.

    Args:
        transport: The way to them; asked once, here.

    Raises:
        RetryableError: UNREACHABLE or DEADLINE when no server answers.
    """

    def __init__(self, transport: FlightTransport | EmbeddedTransport) -> None:
        self.transport = transport
        self._handles = {info.name: FunctionHandle(info, transport) for info in transport.infos()}

    def __call__(self, /, *columns: object, **literals: object) -> Aggregate:
        """Use the one function that there is besides the built-in ones. Raises what its own call raises.

        Raises:
            RejectedError: SIGNATURE, when there is none, or several.
        """
        own = self._own()
        if len(own) != 1:
            there = f"there are {', '.join(own)}" if own else "there are built-in functions only"
            raise RejectedError(
                "SIGNATURE", f"{there}; say which one to use: functions.{own[0] if own else 'count'}(...)"
            )
        return self._handles[own[0]](*columns, **literals)

    def __getattr__(self, name: str) -> FunctionHandle:
        """Return the function of this name. Raises AttributeError, naming close matches."""
        if name.startswith("_"):  # asked by copy, pickle and notebooks, also before there are handles
            raise AttributeError(name)
        try:
            return self[name]
        except RejectedError as error:
            raise AttributeError(error.message, name=name, obj=self) from None

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self._handles]

    def _ipython_key_completions_(self) -> list[str]:
        return list(self._handles)

    def __repr__(self) -> str:
        own = self._own()
        built_in = ", ".join(name for name in self._handles if name not in own)
        lines = [*(f"  {self._handles[name].info.signature}" for name in own), f"  built-in: {built_in}"]
        return "\n".join(["<functions", *lines]) + ">"

    def _own(self) -> list[str]:
        """Return the names of the functions that are not built in."""
        built_in = Registry()
        return [name for name in self._handles if name not in built_in]

    def __getitem__(self, name: str) -> FunctionHandle:
        """Return the function of this name.

        Raises:
            RejectedError: UNKNOWN_FUNCTION, naming close matches.
        """
        try:
            return self._handles[name]
        except KeyError:
            close = difflib.get_close_matches(name, self._handles, n=3)
            hint = f"did you mean {' or '.join(close)}?" if close else f"there are {', '.join(sorted(self._handles))}"
            raise RejectedError("UNKNOWN_FUNCTION", f"no function {name!r}; {hint}", function=name) from None

    def __contains__(self, name: object) -> bool:
        return name in self._handles

    def __iter__(self) -> Iterator[str]:
        return iter(self._handles)

    def __len__(self) -> int:
        return len(self._handles)

    def register(self, *sources: object) -> Functions:
        """Bring functions along, and return these and them: `connect(url).register(WeightedAvg)["weighted_avg"]`.

        Servers get them as signed bundles, and take them only if they were started with the bundle key that `connect`
        was given. What a class refers to in its own package travels with it; what it imports besides must be there.
        From servers, a function that is registered again is the new one in every exchange that is opened from then on,
        also for uses that were made before; to have both, connect twice.

        Args:
            sources: Classes under `@udaf`, modules, or names of modules.

        Raises:
            RejectedError: SETTINGS, UNAUTHENTICATED, MODULE, SIGNATURE or LIMIT: what a server says of them.
        """
        added = self.transport.register(Registry.load(sources).authored)
        self._handles.update({info.name: FunctionHandle(info, self.transport) for info in added})
        return self

    def infos(self) -> list[FunctionInfo]:
        """Return what each function is: signature, version, capabilities."""
        return [handle.info for handle in self._handles.values()]
