"""What a query writes: functions by name, and uses of them over columns."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from foldflight.errors import RejectedError
from foldflight.functions.registry import Registry

if TYPE_CHECKING:
    from foldflight.client.embedded import EmbeddedTransport
    from foldflight.client.flight import FlightTransport
    from foldflight.client.transport import Transport
    from foldflight.exchange.frames import FunctionInfo

__all__ = ["Aggregate", "FunctionHandle", "Functions"]


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
    """

    function: FunctionInfo
    columns: tuple[object, ...]
    transport: Transport = field(repr=False, compare=False)
    condition: object | None = None
    is_distinct: bool = False
    literals: Mapping[str, Any] = field(default_factory=dict)

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

    def __call__(self, *columns: object, **literals: object) -> Aggregate:
        """Use the function over columns, with direct arguments by name.

        Raises:
            RejectedError: SCHEMA_MISMATCH for a wrong number of columns, SIGNATURE for direct arguments that are
                unknown or missing.
        """
        self._check_columns(columns)
        self._check_literals(literals)
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

    def _check_literals(self, literals: Mapping[str, object]) -> None:
        known = {parameter.name: parameter for parameter in self.info.parameters}
        for name in literals:
            if name not in known:
                close = difflib.get_close_matches(name, known, n=1)
                hint = f"did you mean {close[0]}?" if close else f"it takes {', '.join(known) or 'none'}"
                raise RejectedError(
                    "SIGNATURE", f"{self.info.signature} has no direct argument {name!r}; {hint}", function=self.name
                )
        missing = [name for name, parameter in known.items() if parameter.required and name not in literals]
        if missing:
            raise RejectedError(
                "SIGNATURE",
                f"{self.info.signature} needs the direct argument {missing[0]!r}: {self.name}(..., {missing[0]}=...)",
                function=self.name,
            )


class Functions(Mapping[str, FunctionHandle]):
    """The functions that a transport reaches, by name.

    Args:
        transport: The way to them; asked once, here.

    Raises:
        RetryableError: UNREACHABLE or DEADLINE when no server answers.
    """

    def __init__(self, transport: FlightTransport | EmbeddedTransport) -> None:
        self.transport = transport
        self._handles = {info.name: FunctionHandle(info, transport) for info in transport.infos()}

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
