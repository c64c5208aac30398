"""Functions by name, calls of aggregates over columns, and uses of scalar and table functions, which nest."""

from __future__ import annotations

import dataclasses
import inspect
import keyword
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Final

import numpy as np

from foldflight.client.embedded_transport import EmbeddedTransport
from foldflight.client.exchange import Transport
from foldflight.errors import RejectedError
from foldflight.exchange.frames import FunctionInfo
from foldflight.functions.author.spec import FunctionKind
from foldflight.functions.query.call import check_known, check_names
from foldflight.functions.query.frame import ForcedWay, FrameBound, WindowFrame
from foldflight.functions.registry import Registry, unknown_function

if TYPE_CHECKING:
    from foldflight.client.flight_transport import FlightTransport


@dataclass(frozen=True, eq=False)
class Use:
    """One use of a scalar or table function; made by calling a `FunctionHandle`.

    It may be the argument of another use: `f["score"](f["normalise"]("text"), "a")` is evaluated as one expression,
    without a trip to Spark in between. A use that appears twice in a query is evaluated once.

    Args:
        function: The function that is used.
        arguments: The arguments: other uses, or column names, SQL expressions or column objects of the engine.
        literals: Direct arguments, constant for the use.
        transport: The transport of the function.
        name: The name of the output; None before `alias`.

    >>> from foldflight import connect, udf
    >>> @udf
    ... def double(x: int) -> int:
    ...     return 2 * x
    >>> double = connect(double)
    >>> double(double("price")).alias("four")
    double(double('price')).alias('four')
    """

    function: FunctionInfo
    arguments: tuple[object, ...]
    transport: Transport = field(repr=False)
    literals: Mapping[str, Any] = field(default_factory=dict)
    name: str | None = None

    def alias(self, name: str) -> Use:
        """Return the same use with a name for its output: `with_columns(df, f["m"]("a").alias("x"))`."""
        _check_output_name(name)
        return dataclasses.replace(self, name=name)

    @property
    def is_table(self) -> bool:
        """Whether the function is a table function."""
        return self.function.kind is FunctionKind.TABLE

    @property
    def columns(self) -> Iterator[object]:
        """The columns among its arguments, and among the arguments of nested uses, each use once."""
        todo = list(reversed(self.arguments))
        seen_ids: set[int] = set()
        while todo:
            argument = todo.pop()
            inner = argument.use if isinstance(argument, UseMember) else argument
            if not isinstance(inner, Use):
                yield inner
            elif id(inner) not in seen_ids:
                seen_ids.add(id(inner))
                todo += reversed(inner.arguments)

    def __getitem__(self, member: str) -> UseMember:
        """Return one member of the result, as an argument of another use: a column of a table function."""
        if not isinstance(member, str):
            raise RejectedError("SIGNATURE", f"a member of {self!r} is a name, and here it is {member!r:.80}")
        return UseMember(self, member)

    def __iter__(self) -> Any:
        raise TypeError(f"{self!r} cannot be iterated; take its columns by name")

    def __repr__(self) -> str:
        argument_texts = [*map(repr, self.arguments), *(f"{name}={value!r}" for name, value in self.literals.items())]
        text = f"{self.function.name}({', '.join(argument_texts)})"
        return text if self.name is None else f"{text}.alias({self.name!r})"


@dataclass(frozen=True, eq=False)
class UseMember:
    """One member of the result of a use, which is a struct.

    Args:
        use: The use.
        member: The name of the member.
    """

    use: Use
    member: str

    def __repr__(self) -> str:
        return f"{self.use!r}[{self.member!r}]"


def uses_in(uses: Iterable[Use]) -> Iterator[Use]:
    """Yield uses and the uses in their arguments, each once, however often it is an argument."""
    todo = list(uses)
    seen_ids: set[int] = set()
    while todo:
        use = todo.pop()
        if id(use) not in seen_ids:
            seen_ids.add(id(use))
            yield use
            todo += [each for each in use.arguments if isinstance(each, Use)]
            todo += [each.use for each in use.arguments if isinstance(each, UseMember)]


_ADDRESS: Final = re.compile(r" at 0x[0-9a-f]+")
_DISPLAY_CHARS_MAX: Final = 80
_DIRECTION: Final = re.compile(
    r"(?=\s)(?:\s+(?P<direction>ASC|DESC))?(?:\s+NULLS\s+(?P<nulls>FIRST|LAST))?\s*$", re.IGNORECASE
)


@dataclass(frozen=True)
class OrderKey:
    """One key of the order of an aggregate.

    Args:
        column: A column name, a SQL expression or a column object of the engine.
        descending: Whether larger values come first.
        nulls_first: Whether NULL comes before all values.
    """

    column: object
    descending: bool = False
    nulls_first: bool = True

    @classmethod
    def of(cls, spec: object) -> OrderKey:
        """Return the key that a user has written."""
        direction = _DIRECTION.search(spec) if isinstance(spec, str) else None
        if direction is None:
            return cls(spec)
        descending = (direction["direction"] or "ASC").upper() == "DESC"
        nulls = (direction["nulls"] or ("LAST" if descending else "FIRST")).upper()
        return cls(str(spec)[: direction.start()].strip(), descending, nulls == "FIRST")

    def __repr__(self) -> str:
        if not self.descending and self.nulls_first:
            return repr(self.column)
        direction = f"{' DESC' if self.descending else ''} NULLS {'FIRST' if self.nulls_first else 'LAST'}"
        return repr(f"{self.column}{direction}")


@dataclass(frozen=True)
class Aggregate:
    """One use of a function in a query; made by calling a `FunctionHandle`.

    Args:
        function: The function that is used.
        columns: The arguments: column names, SQL expressions or column objects of the engine. They are opaque here.
        condition: FILTER: only rows for which it is true are folded. None: all rows are folded.
        is_distinct: Whether equal argument rows count once.
        literals: Direct arguments, constant for the call.
        transport: The transport of the function.
        name: The name of the output; None before `alias`.
        order: The keys of the order in which the rows of a group are folded.
        frame: The rows that it folds for each row, for `over`. None: SQL's default frame; all rows of a group.

    >>> from foldflight import connect
    >>> total = connect("embedded:").sum
    >>> total("price").where("qty > 1").alias("large")
    sum('price').where('qty > 1').alias('large')
    """

    function: FunctionInfo
    columns: tuple[object, ...]
    transport: Transport = field(repr=False, compare=False)
    condition: object | None = None
    is_distinct: bool = False
    literals: Mapping[str, Any] = field(default_factory=dict)
    name: str | None = None
    order: tuple[OrderKey, ...] = ()
    frame: WindowFrame | None = None

    def alias(self, name: str) -> Aggregate:
        """Return the same use with a name for its output: `agg(count().alias("n"))` is the same as `agg(n=count())`."""
        _check_output_name(name)
        return dataclasses.replace(self, name=name)

    def where(self, condition: object) -> Aggregate:
        """Return the same use over the rows for which `condition` is true (SQL's FILTER)."""
        if self.condition is not None:
            raise RejectedError(
                "SIGNATURE",
                f"{self.function.name} already has a condition; combine both conditions with AND",
                function=self.function.name,
            )
        return dataclasses.replace(self, condition=condition)

    def distinct(self) -> Aggregate:
        """Return the same use over distinct argument rows."""
        if not self.columns:
            raise RejectedError(
                "SIGNATURE",
                f"distinct() needs an argument, and {self.function.name}() has none; give a column",
                function=self.function.name,
            )
        return dataclasses.replace(self, is_distinct=True)

    def order_by(self, *keys: object) -> Aggregate:
        """Return the same use with the rows of each group folded in an order.

        Each group keeps its rows, so any function can then merge and retract.

        Args:
            keys: Column names, SQL expressions or column objects of the engine. A text may end with ASC or DESC, and
                with NULLS FIRST or NULLS LAST: `order_by("day DESC", "id")`. By default the order is ascending; NULL
                comes first in ascending and last in descending order, as in Spark.
        """
        if not keys:
            raise RejectedError("SIGNATURE", f"order_by() of {self.function.name} needs a key; give a column")
        return dataclasses.replace(self, order=tuple(map(OrderKey.of, keys)))

    def rows(self, low: int | None, high: int | None, *, by: ForcedWay | None = None) -> Aggregate:
        """Return the same use over a number of rows around each row, for `over`.

        Args:
            low: The first row: -99 is 99 rows before, 0 the row itself, 1 the next row, None the partition's first.
            high: The last row; None is the last of the partition.
            by: Insists on a way of folding where the plan would refuse or choose another one. `recompute` folds all
                rows of each frame anew. `retract` takes rows that leave back, also for floats, whose rounding errors
                may then add up.

        Raises:
            RejectedError: SIGNATURE.
        """
        return self._with_frame(WindowFrame(low, high, by=by))

    def range(self, low: FrameBound, high: FrameBound, *, by: ForcedWay | None = None) -> Aggregate:
        """Return the same use over the rows within a distance of each row's order value, for `over`.

        Args:
            low: The smallest distance: a number, or an interval for dates and timestamps ("-1 hour"). 0 means the
                first of the rows with the same order value, None the first row of the partition.
            high: The largest distance. 0 means the last of the rows with the same order value.
            by: As for `rows`.

        Raises:
            RejectedError: SIGNATURE.
        """
        return self._with_frame(WindowFrame(low, high, is_range=True, by=by))

    def _with_frame(self, frame: WindowFrame) -> Aggregate:
        if self.frame is not None:
            raise RejectedError(
                "SIGNATURE",
                f"{self.function.name} already has the frame {self.frame}; give each use one frame",
                function=self.function.name,
            )
        return dataclasses.replace(self, frame=frame)

    def __repr__(self) -> str:
        argument_texts = [*map(repr, self.columns), *(f"{name}={value!r}" for name, value in self.literals.items())]
        text = f"{self.function.name}({', '.join(argument_texts)})"
        text += "" if self.condition is None else f".where({self.condition!r})"
        text += ".distinct()" if self.is_distinct else ""
        text += f".order_by({', '.join(map(repr, self.order))})" if self.order else ""
        if self.frame is not None:
            text += f".{self.frame.unit.lower()}({self.frame.low!r}, {self.frame.high!r})"
        return text if self.name is None else f"{text}.alias({self.name!r})"


class FunctionHandle:
    """A function that can be used in a query: `weighted_avg("value", "weight")`.

    Args:
        info: Its name, signature and capabilities.
        transport: Its transport.

    >>> from foldflight import connect
    >>> connect("embedded:")["sum"]("price")
    sum('price')
    """

    make_spark_udf: ClassVar[Callable[[FunctionInfo, Transport, Mapping[str, Any]], Any]]
    """Makes the UDFs of Spark. Spark's layer is above this one, so `foldflight` itself sets this."""

    def __init__(self, info: FunctionInfo, transport: Transport) -> None:
        self.info = info
        self.name = info.name
        self.transport = transport
        self.__name__ = info.name
        # `help` shows the class of an object without a docstring of its own.
        self.__doc__ = info.doc or f"The function {info.signature}."
        self.__signature__ = _python_signature(info)

    def __call__(self, /, *columns: object, **literals: object) -> Any:
        """Use the function over columns, with direct arguments by name, or by position behind all columns.

        An argument that has a default may be a constant, too: `sessions("at", gap_minutes=60)`. A text is a column or
        a SQL expression; a constant text is `"'text'"`.

        Returns:
            Aggregate | Use: An `Aggregate` for `group_by`; of a scalar or table function a `Use`, for `with_columns` or
                `join_lateral`, which also takes other uses as arguments.

        Raises:
            RejectedError: SCHEMA_MISMATCH for a wrong number of columns; SIGNATURE for direct arguments that are
                unknown, missing or not constant.
        """
        columns, literals = self._by_position(columns, literals)
        self._check_columns(columns)
        check_names(self.info, literals)
        for name, value in literals.items():
            if not _is_constant(value):
                raise RejectedError(
                    "SIGNATURE",
                    f"the direct argument {name} of {self.name} is {_display_text(value)}, which is not a constant; "
                    "give a number, a text, a date, or a list or dict of these (columns and expressions are passed "
                    "without a name)",
                    function=self.name,
                )
        if self.info.kind is FunctionKind.AGGREGATE:
            return Aggregate(self.info, columns, self.transport, literals=literals)
        for column in columns:
            if isinstance(column, Aggregate):
                raise RejectedError(
                    "SIGNATURE",
                    f"an argument of {self.name} is the aggregate {column!r}; aggregate first, and map the result",
                    function=self.name,
                )
        return Use(self.info, columns, self.transport, literals=literals)

    def spark_udf(self, **literals: object) -> Any:
        """Return a scalar function as a UDF of Spark, for `spark.udf.register(name, f["m"].spark_udf())` and Columns.

        Each UDF in a plan is a trip of its own between Spark and Python; `with_columns` needs one for all.

        Args:
            literals: Direct arguments, by name.

        Raises:
            RejectedError: SIGNATURE for other kinds of functions, and for functions whose types depend on the call.
        """
        return type(self).make_spark_udf(self.info, self.transport, literals)

    def __repr__(self) -> str:
        return f"<function {self.info.signature}>"

    def _by_position(
        self, columns: tuple[object, ...], literals: dict[str, object]
    ) -> tuple[tuple[object, ...], dict[str, object]]:
        """Return the columns of a call, including columns given by name, and its direct arguments."""
        direct = [parameter.name for parameter in self.info.parameters]
        most = len(self.info.input_names)
        behind = dict(zip(direct, columns[most:], strict=False))
        for name in direct:
            if name in literals and not isinstance(behind.get(name, ""), str):  # a text is a column
                raise RejectedError(
                    "SIGNATURE",
                    f"{self.info.signature} is given {name} twice, by position and by name; leave one out",
                    function=self.name,
                )
        if len(behind) == len(columns[most:]) and not behind.keys() & literals.keys():
            columns, literals = columns[:most], {**behind, **literals}
        check_known(self.info, literals)
        others = [name for name in self.info.input_names[len(columns) :] if name not in direct]
        literal_names = [name for name in others if name in literals]
        if literal_names != others[: len(literal_names)]:
            missing_name = next(name for name in others if name not in literal_names)
            raise RejectedError(
                "SIGNATURE",
                f"{self.info.signature} is given {literal_names[-1]} without {missing_name}, which comes before it; "
                f"give {missing_name}, too: only the last arguments may be left out",
                function=self.name,
            )
        arguments, least = (*columns, *(literals[name] for name in literal_names)), self.info.inputs_min
        return (*arguments[:least], *map(_as_column, arguments[least:])), {
            name: value for name, value in literals.items() if name not in literal_names
        }

    def _check_columns(self, columns: tuple[object, ...]) -> None:
        least, most = self.info.inputs_min, len(self.info.input_names)
        if least <= len(columns) <= most:
            return
        expected = f"{least} column{'' if least == 1 else 's'}" if least == most else f"{least} to {most} columns"
        raise RejectedError(
            "SCHEMA_MISMATCH",
            f"{self.info.signature} takes {expected}, got {len(columns)}",
            function=self.name,
        )


_NUMBERS: Final = (bool, int, float)


class Constant(str):
    """A number or boolean as an expression of SQL; `value` is what the user gave."""

    __slots__ = ("value",)
    value: float | bool

    @classmethod
    def of(cls, value: float | bool) -> Constant:
        """Return the expression of a constant."""
        # In parentheses, because a column may be named 60. Texts of floats may be NaN and infinities.
        constant = cls(f"CAST('{value!r}' AS DOUBLE)" if isinstance(value, float) else f"({value})")
        constant.value = value
        return constant


def _as_column(argument: object) -> object:
    """Return an argument that has a default as a column: numbers and booleans as an expression, others as they are."""
    if isinstance(argument, np.generic):
        argument = argument.item()
    return (
        Constant.of(argument) if isinstance(argument, (bool, int, float)) and type(argument) in _NUMBERS else argument
    )


class _Text(str):
    """A text that a signature shows without quotes."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def _python_signature(info: FunctionInfo) -> inspect.Signature:
    """Return the signature for `help` and notebooks: arguments with their SQL types, then direct arguments.

    Direct arguments may stand by position behind all columns, but where Python has no such signature, as of a required
    one behind a default, they are shown as arguments by name.
    """
    empty = inspect.Parameter.empty
    types = info.input_types or ("Any",) * len(info.input_names)
    types_by_name = {name: _Text(type_) for name, type_ in zip(info.input_names, types, strict=False)}
    parameters = [
        inspect.Parameter(
            name,
            inspect.Parameter.POSITIONAL_OR_KEYWORD,
            default=empty if index < info.inputs_min else _Text("..."),
            annotation=type_,
        )
        for index, (name, type_) in enumerate(types_by_name.items())
        if name.isidentifier() and not keyword.iskeyword(name)
    ]
    by_position = len(parameters) == len(types_by_name)
    for each in info.parameters:
        is_hidden = each.name in types_by_name
        has_default = any(before.default is not empty for before in parameters)
        by_position &= not is_hidden and not (each.required and has_default)
        if not is_hidden:
            parameters.append(
                inspect.Parameter(
                    each.name,
                    inspect.Parameter.POSITIONAL_OR_KEYWORD if by_position else inspect.Parameter.KEYWORD_ONLY,
                    default=empty if each.required else _Text(each.default),
                    annotation=_Text(each.annotation) if each.annotation else empty,
                )
            )
    return inspect.Signature(parameters, return_annotation=_Text(info.result_type or "Any"))


def _is_constant(value: object) -> bool:
    """Return whether a value is the same in every process.

    An expression, such as a Column of PySpark, is not: comparing it returns another expression. An object whose `repr`
    has its address, such as a function or a lock, is not, either.
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
    except Exception:  # noqa: BLE001 - the exception depends on the engine
        return False


def _check_output_name(name: object) -> None:
    if not isinstance(name, str):
        raise RejectedError("SIGNATURE", f"the name of an output must be a str, and it is {_display_text(name)}")


def _display_text(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _DISPLAY_CHARS_MAX else text[:_DISPLAY_CHARS_MAX] + "..."


class Functions(Mapping[str, FunctionHandle]):
    """The functions of a transport: by name, as attributes, or by a call if there is only one.

    `functions["weighted_avg"]` and `functions.weighted_avg` are the same. If there is exactly one function besides the
    built-in ones, as in `spread = connect(Spread)`, `spread("value")` uses it.

    Args:
        transport: The transport. Its functions are read once, by this constructor.

    Raises:
        RetryableError: UNREACHABLE or DEADLINE if no server answers.

    >>> from foldflight import connect, udaf
    >>> @udaf
    ... class Spread:
    ...     def create_accumulator(self) -> list[int]:
    ...         return []
    ...     def accumulate(self, seen: list[int], value: int) -> None:
    ...         seen.append(value)
    ...     def get_value(self, seen: list[int]) -> int:
    ...         return max(seen) - min(seen)
    >>> functions = connect(Spread)
    >>> functions
    <functions
      spread(value BIGINT) -> BIGINT
      built-in: avg, bool_and, bool_or, count, ...>
    >>> functions("price"), functions.count()
    (spread('price'), count())
    """

    def __init__(self, transport: FlightTransport | EmbeddedTransport) -> None:
        self.transport = transport
        self._handles = {info.name: FunctionHandle(info, transport) for info in transport.infos()}
        own = self._authored_names()
        if len(own) == 1:  # `help(spread)` of `spread = connect(Spread)`
            only = self._handles[own[0]]
            self.__doc__, self.__signature__ = f"{only.info.signature}\n\n{only.__doc__}", only.__signature__

    def __call__(self, /, *columns: object, **literals: object) -> Any:
        """Use the only function besides the built-in ones. Raises the errors of calling it.

        Raises:
            RejectedError: SIGNATURE if there is none, or more than one.
        """
        own = self._authored_names()
        if len(own) != 1:
            there = f"there are {', '.join(own)}" if own else "there are only built-in functions"
            raise RejectedError(
                "SIGNATURE", f"{there}; name the one to use: functions.{own[0] if own else 'count'}(...)"
            )
        return self._handles[own[0]](*columns, **literals)

    def __getattr__(self, name: str) -> FunctionHandle:
        """Return the function of this name. Raises AttributeError with close matches."""
        if name.startswith("_"):  # copy, pickle and notebooks look these up, possibly before there are handles
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
        own = self._authored_names()
        built_in = ", ".join(name for name in self._handles if name not in own)
        lines = [*(f"  {self._handles[name].info.signature}" for name in own), f"  built-in: {built_in}"]
        return "\n".join(["<functions", *lines]) + ">"

    def _authored_names(self) -> list[str]:
        """Return the names of the functions that are not built in."""
        built_in = Registry()
        return [name for name in self._handles if name not in built_in]

    def __getitem__(self, name: str) -> FunctionHandle:
        """Return the function of this name.

        Raises:
            RejectedError: UNKNOWN_FUNCTION with close matches.
        """
        try:
            return self._handles[name]
        except KeyError:
            where = "here"
            if not isinstance(self.transport, EmbeddedTransport):
                urls = ",".join(self.transport.urls)
                where = f"on {urls}, which has the functions of `foldflight serve MODULE` and of register"
            raise unknown_function(name, self._handles, where) from None

    def __contains__(self, name: object) -> bool:
        return name in self._handles

    def __iter__(self) -> Iterator[str]:
        return iter(self._handles)

    def __len__(self) -> int:
        return len(self._handles)

    def register(self, *sources: object) -> Functions:
        """Add functions, and return all: `connect(url).register(WeightedAvg)["weighted_avg"]`.

        Functions are shipped to servers as signed bundles. A server accepts them only if it was started with the
        `bundle_key` of `connect`. Objects in a class's own package are shipped with it; other imports must be installed
        on the server. If a function is registered again for servers, every exchange that opens later uses the new
        version, even for uses made before. To use both versions, call `connect` twice.

        Args:
            sources: Objects decorated with `@udaf`, `@udf` or `@udtf`, modules, or names of modules.

        Raises:
            RejectedError: SETTINGS, UNAUTHENTICATED, MODULE, SIGNATURE or LIMIT, as the server answers.
        """
        new_functions = self.transport.register(Registry.load(sources).authored)
        self._handles.update({info.name: FunctionHandle(info, self.transport) for info in new_functions})
        return self

    def infos(self) -> list[FunctionInfo]:
        """Return the description of each function: signature, version, capabilities."""
        return [handle.info for handle in self._handles.values()]
