"""`udaf`: registers an author's class as an aggregate function."""

from __future__ import annotations

import collections.abc
import difflib
import inspect
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias

import pyarrow as pa

from foldflight.errors import RejectedError
from foldflight.functions.author.adapters import AdaptedForm, Adapter, adapter_of
from foldflight.functions.author.declarations import (
    REGISTERED,
    Inputs,
    SignatureBuilder,
    function_decorator,
    snake_case,
)
from foldflight.functions.author.segments import Applied, BundledForm, Segment, arguments_of
from foldflight.functions.author.spec import (
    METHODS,
    AccumulatorForm,
    AnyFunction,
    CallBounds,
    Capabilities,
    ClassForm,
    Declared,
    Function,
    Methods,
    Parameter,
    ScalarFunction,
    bounds_of,
)
from foldflight.functions.types.annotations import annotations_of, signature_of
from foldflight.functions.types.serializer import (
    Nullable,
    StateSerializer,
    UnspecificAnnotation,
    ViewSerializer,
    check_views,
    may_be_none,
    views_in,
)
from foldflight.functions.types.views import ListView, MapView

Adapt: TypeAlias = Literal["flink", "arrow-udf", "spark-aggregator", "snowflake", "beam"]
Prefetch: TypeAlias = Mapping[str, Sequence[str]]

_TAKE_ARGUMENTS: Final = ("accumulate", "retract", "fold_many", "running_many")
_VECTORISED: Final = ("fold_many", "merge_many", "get_values")
_CLASSIC: Final = ("create_accumulator", "accumulate", "retract", "merge", "get_value")
# Each method for many rows with the methods that it stands for: a subclass that overrides one must override both.
_REPEATED: Final = (
    ("fold_many", "accumulate"),
    ("fold_many", "retract"),
    ("merge_many", "merge"),
    ("get_values", "get_value"),
    ("running_many", "fold_many"),
    *(("fold_bundle", method_name) for method_name in _CLASSIC),
)
# Accumulators of a call of an async get_values, if the author does not say how many.
_BATCH: Final = 32
# Similarity (0 to 1) from which a name counts as a misspelled method: `retarct`, `serialise`, `getValue`.
_ALIKE: Final = 0.85


def aggregate_of(
    cls: type,
    *,
    input_types: Inputs | None = None,
    result_type: Declared | None = None,
    state_type: Declared | None = None,
    name: str | None = None,
    version: str | Callable[..., str] = "1",
    skip_nulls: bool = False,
    deterministic: bool | None = None,
    invertible: bool = False,
    bundled_retract: bool = False,
    bundled_merge: bool = False,
    compile: bool | Literal["auto"] = "auto",  # noqa: A002 - the usual name of this option
    adapt: Adapt | None = None,
    prefetch: Prefetch | None = None,
    concurrency: int | None = None,
    batch: int | None = None,
    batch_wait_s: float | None = None,
    timeout_s: float | None = None,
    retries: int | None = None,
    rate: float | None = None,
) -> Function:
    """Make a class an aggregate function: `@udaf` registers it, `aggregate_of` returns it and leaves the class alone.

    The class has `create_accumulator(self)`, `accumulate(self, accumulator, *arguments)` and
    `get_value(self, accumulator)`; optionally `retract` (like `accumulate`), `merge(self, accumulator, other)`,
    `serialize(self, accumulator)` with `deserialize(self, serialized)`, `open(self, context)`, `close(self)`, and
    `migrate(self, version, state)`. `migrate` returns the accumulator for a state of another version. It receives a
    typed state as a dict of its fields, otherwise the return value of `serialize` or the unpickled object.
    `accumulate`, `retract` and `merge` change the accumulator in place and return None, or return a new accumulator. An
    immutable accumulator (a number, text, tuple or frozen dataclass) must be returned.

    A class without `create_accumulator` is its own accumulator: `self` holds the state, the methods have no
    `accumulator` parameter, and `merge(self, other)` takes another instance.

    Parameters of `__init__` are the function's *direct arguments*, fixed for a call. For example, the query
    `percentile("x", fraction=0.9)` sets the parameter of `def __init__(self, fraction=0.5)`.

    The state is typed (a readable Arrow struct) if annotations describe the accumulator:
    `create_accumulator(self) -> State` with annotated attributes on `State`, or `-> int`, `-> dict[str, float]`...
    Otherwise the state is made by `serialize` and `deserialize` if the class has them, or by signed pickle.

    Annotate an attribute as `foldflight.MapView[K, V]` or `foldflight.ListView[T]` for a map or list that may become
    larger than a message. Such a class is always interpreted.

    Annotate an attribute as `foldflight.ExactSum` for a sum of floats that is rounded only when its value is read. In a
    sum of plain floats, retracted values leave rounding errors, which may dominate after a large value is retracted.

    A class with `create_accumulator` may also have the *vectorised* methods, which fold many rows at once with NumPy.
    The scalar methods above define the result (`foldflight check` compares both), and are used where the vectorised
    methods return `NotImplemented`:

    - `fold_many(self, accumulators, slots, signs, *columns)` applies n rows, in order. `accumulators` has one item for
      each slot: a structured array with a member for each annotated attribute (shape (slots,)), or a plain array if the
      accumulator is a number. An optional attribute `x` has a bool member `x?`, which is true where `x` is not None. A
      list of numbers, dates or timestamps is a `foldflight.Lists`, and an `ExactSum` is a `foldflight.ExactSums`.
      `slots` (intp, shape (n,)) holds the slot of each row, so `numpy.add.at(accumulators["sum"], slots, values)` adds.
      `signs` is int64, shape (n,): 1 accumulates the row, -1 retracts it; or the number 1 if no row is retracted.
      `columns` have n values each: NumPy arrays for numbers, booleans, dates and timestamps (masked if there are
      NULLs), and Arrow arrays for other types. Do not change them.
    - `merge_many(self, accumulators, slots, others)` merges n accumulators into the accumulators of n slots, in order.
    - `get_values(self, accumulators)` returns the results of n accumulators: a NumPy array, masked where results are
      NULL, or an Arrow array.
    - `running_many(self, accumulators, slots, signs, *columns)` is optional. It returns the accumulators after each of
      n rows, in a form that `get_values` takes, and changes nothing. `signs` is always an array here, and 0 for rows
      that are not folded. It is used if the value after each row is needed; without it, the scalar methods are used.

    Integers have 64 bits here, and NumPy wraps on overflow. `fold_many` and `merge_many` change `accumulators` in place
    and return None. Before any change, they may return `NotImplemented`: the exchange then uses the scalar methods.

    A class may have the *bundled* method `fold_bundle(self, segments)` beside the methods above (with
    `create_accumulator`, and without vectorised ones), or in their place. It gets a list of `foldflight.Segment`, one
    for each group of a chunk, and returns a list of `foldflight.Applied`, in the same order. A class with `fold_bundle`
    alone needs `input_types`; its annotations `list[Segment[State]]` and `list[Applied[State, float]]` declare the
    accumulator and the result.

    `get_value` may be `async def` and wait for something outside, such as a model. It is called at the end of an epoch
    for the groups that changed, side by side; all other methods stay plain, except `open` and `close`. Streams store
    its results with the states, and never ask for them again. `async def get_values(self, accumulators)` in its place
    takes a list of up to `batch` accumulators, also of several exchanges, and returns a list of as many results. The
    exchanges of a process share the instance of such a class, so `self` must not hold anything of a group.

    Args:
        cls: The class.
        input_types: Types of the arguments: SQL names, Arrow types, PySpark types (`LongType()`) or annotations
            (`int`), or a callable from the actual Arrow types to the declared ones, which raises ValueError for types
            that it does not accept. Default: the annotations of `accumulate`. `datetime` takes timestamps with and
            without a time zone: aware datetimes in UTC, or naive ones. A single capital letter (`"T"`) is a type
            variable and stands for the type of the argument. A call may leave out the last arguments for which
            `accumulate` (and `retract`) have default values.
        result_type: Type of the result, or a callable from the input types. Default: the annotation of `get_value`.
            Results are cast as Spark's CAST does in ANSI mode: BIGINT cuts off a fraction (18.5 is 18), and a value
            outside the range of the type is an OVERFLOW error.
        state_type: Type of a typed state that annotations cannot express, or a callable from the input types.
        name: Name in queries. Default: the class's name in snake case.
        version: Version of the states. Change it when the new code reads old states differently; `migrate` converts
            them. May be a callable from the input types, if only the states of some types change.
        skip_nulls: Do not call the function for rows with a NULL argument.
        deterministic: False if the same rows may give different results. Streams then store the last output of each
            group with its state, to take it back as it was emitted. Default: False if `get_value` is async, else True.
        invertible: Retracting is exact in any order, even before the retracted row has been accumulated.
        bundled_retract: For a class with `fold_bundle` alone: it takes retracted rows (a sign of -1).
        bundled_merge: For a class with `fold_bundle` alone: it takes segments with several accumulators.
        compile: `"auto"` compiles the methods to machine code if the results are identical to Python's. It supports
            numbers and booleans as arguments, attributes and results; arithmetic, comparisons, `math`, and methods and
            functions that use these; dates, times and calculations with them; tuples; indexed lists that keep
            the length of the first one, if it has up to 64 items or is `Annotated[list[int], 400]`. Compiled code reads
            numbers of modules and classes once, when the exchange switches to it. True raises before the first row if
            the methods cannot be compiled. False always interprets.
        adapt: The system for which the class is written: `"flink"` (PyFlink's `AggregateFunction`), `"arrow-udf"`
            (also RisingWave's embedded functions), `"spark-aggregator"` (Spark 4.4), `"snowflake"` (also Doris), or
            `"beam"` (a `CombineFn`). Its methods are called as that system calls them, and interpreted. Default: found
            by the base class or the methods; a class with `accumulate` and `get_value` is foldflight's own.
        prefetch: For each `MapView` of the accumulator, the names of the arguments that make up the key of the entry
            that a row uses. A stream then reads these entries before the rows, all at once; results are the same.
        concurrency: For an async `get_value` or `get_values`: calls that are open at once in a process; see `udf`, also
            for the others.
        batch: For an async `get_values`: the number of accumulators of a call, at most. Default: 32.
        batch_wait_s: For an async `get_values`: the longest time for which a call waits for more, in seconds.
        timeout_s: The time after which a call is cancelled, in seconds.
        retries: How often a call is repeated after an error that may pass.
        rate: Calls that begin within one second, in a server with all its workers.

    Returns:
        The function; `@udaf` returns the class itself.

    Raises:
        RejectedError: SIGNATURE, naming the class, the method and the remedy.

    >>> from dataclasses import dataclass
    >>> from foldflight import connect, udaf
    >>> from foldflight.testing import run_epochs
    >>> @dataclass
    ... class State:
    ...     sum: int = 0
    ...     count: int = 0
    >>> @udaf
    ... class Mean:
    ...     def create_accumulator(self) -> State:
    ...         return State()
    ...     def accumulate(self, state: State, value: int) -> None:
    ...         state.sum += value
    ...         state.count += 1
    ...     def retract(self, state: State, value: int) -> None:
    ...         state.sum -= value
    ...         state.count -= 1
    ...     def merge(self, state: State, other: State) -> None:
    ...         state.sum += other.sum
    ...         state.count += other.count
    ...     def get_value(self, state: State) -> float | None:
    ...         return state.sum / state.count if state.count else None
    >>> rows = [{"price": 10}, {"price": 40}, ("-D", {"price": 10})]
    >>> run_epochs({"mean": connect(Mean)("price")}, [rows])[0].changelog
    [('+I', {'mean': 40.0})]
    """
    function_name = name or snake_case(getattr(cls, "__name__", type(cls).__name__))
    adapter = adapter_of(cls, adapt) if isinstance(cls, type) else None
    if adapter is None:
        builder = _Builder(cls, function_name)
    else:
        builder = _AdaptedBuilder(cls, function_name, adapter, state_type)
        deterministic = deterministic is not False and builder.is_deterministic()
        compile = builder.refuse_compile(compile)  # noqa: A001 - the parameter
    builder.check_bundled(retracts=bundled_retract, merges=bundled_merge, is_compiled=compile is True)
    if builder.is_async:
        builder.check_async(is_compiled=compile is True, is_batched=batch is not None or batch_wait_s is not None)
        batch = _BATCH if batch is None and builder.gives_many else batch
    builder.bounds = bounds_of(
        builder.name,
        builder.is_async,
        concurrency=concurrency,
        batch=batch,
        batch_wait_s=batch_wait_s,
        timeout_s=timeout_s,
        retries=retries,
        rate=rate,
    )
    if builder.is_async:
        compile = False  # noqa: A001 - the parameter
    is_deterministic = not builder.is_async if deterministic is None else deterministic
    prefetch_by_view = prefetch or {}
    return builder.of_both_kinds(
        lambda: builder.function(
            input_types,
            result_type,
            state_type,
            version,
            skip_nulls,
            is_deterministic,
            invertible,
            compile,
            prefetch_by_view,
        )
    )


udaf = function_decorator("udaf", aggregate_of)


def function_of(target: object) -> AnyFunction | None:
    """Return the function that `udaf`, `udf` or `udtf` registered for this object; None for any other object."""
    registered_function = vars(target).get(REGISTERED) if isinstance(target, (type, types.FunctionType)) else None
    if isinstance(registered_function, ScalarFunction):
        # functools.wraps copies the attributes of what it wraps.
        return registered_function if registered_function.target is target or isinstance(target, type) else None
    return registered_function if isinstance(registered_function, Function) else None


def _annotations(accumulator: Any, owner: type) -> dict[str, Any]:
    """Return the annotations of the members of an accumulator by name; empty if they cannot be resolved.

    A container is its own member `value`.
    """
    if typing.get_origin(accumulator) is tuple:
        return {f"f{index}": each for index, each in enumerate(typing.get_args(accumulator))}
    cls = accumulator
    if not isinstance(cls, type):
        return {} if typing.get_origin(cls) in (None, typing.Annotated) else {"value": cls}
    try:
        return annotations_of(cls, owner)
    except NameError:  # then only state_type gives the types of its states
        return {}


def _is_view(annotation: Any) -> bool:
    origin = typing.get_origin(annotation) or annotation
    return isinstance(origin, type) and issubclass(origin, (MapView, ListView))


def _names_in(method: Any) -> Iterator[str]:
    """Yield the names that are looked up by the code of a method and of its nested functions."""
    codes = [method.__code__]
    while codes:
        code = codes.pop()
        yield from code.co_names
        codes += [each for each in code.co_consts if isinstance(each, types.CodeType)]


def _likely_meant(name: str) -> str | None:
    """Return the method whose name the given one probably misspells, or None."""
    methods = {method_name.replace("_", ""): method_name for method_name in METHODS}
    letters = name.replace("_", "").lower()
    close = difflib.get_close_matches(letters, methods, n=1, cutoff=_ALIKE)
    close = close or [method_name for method_name in methods if sorted(method_name) == sorted(letters)]
    if not close or (letters != close[0] and letters.startswith(close[0])):  # `merged` is a different word
        return None
    return methods[close[0]]


class _Builder(SignatureBuilder):
    """Builds an aggregate function from a class."""

    decorator = "@udaf"
    adapted_from = ""

    def __init__(self, cls: type, name: str) -> None:
        super().__init__(cls, name)
        # Whether fold_bundle stands in the place of the other methods. What it can do is declared.
        self.is_bundled_alone = self.has("fold_bundle") and not self.has("accumulate")
        self.retracts, self.merges = self.has("retract"), self.has("merge")
        # Without create_accumulator, `self` is the accumulator and methods have one parameter fewer.
        self.separate = self.has("create_accumulator") or self.is_bundled_alone
        self.bounds: CallBounds | None = None

    @property
    def is_async(self) -> bool:
        """Whether `get_value` is a coroutine, or `get_values` is one in its place."""
        return not self.adapted_from and (
            self.gives_many or inspect.iscoroutinefunction(getattr(self.cls, "get_value", None))
        )

    @property
    def gives_many(self) -> bool:
        """Whether `get_values` is a coroutine, which takes a list of accumulators."""
        return not self.adapted_from and inspect.iscoroutinefunction(getattr(self.cls, "get_values", None))

    @property
    def value_method(self) -> str:
        """The name of the method that returns values."""
        return "get_values" if self.gives_many else "get_value"

    def check_async(self, *, is_compiled: bool, is_batched: bool) -> None:
        """Refuse what does not go with an async `get_value` or `get_values`."""
        waits = f" has an async {self.value_method}"
        if is_compiled:
            raise self.error(f"{waits} and is declared compile=True", "drop compile=True")
        if self.gives_many and not self.separate:
            raise self.error(
                f"{waits} but no create_accumulator",
                "it takes a list of accumulators, which are separate from the class; add create_accumulator",
            )
        if self.gives_many and self.has("get_value"):
            raise self.error(
                f"{waits} and get_value", "keep one of them; get_values returns the values of all groups that changed"
            )
        if is_batched and not self.gives_many:
            raise self.error(
                f"{waits} and is declared with batch or batch_wait_s",
                "define async get_values(self, accumulators) in its place, which returns a list of values",
            )
        for method_name in ("fold_bundle", "fold_many", *(() if self.gives_many else ("get_values",))):
            if self.has(method_name):
                raise self.error(
                    f"{waits} and {method_name}",
                    f"drop {method_name}: the time goes by outside, so methods for many rows gain nothing",
                )
        self.check_secrets()

    def function(
        self,
        input_types: Inputs | None,
        result_type: Declared | None,
        state_type: Declared | None,
        version: str | Callable[..., str],
        skip_nulls: bool,
        deterministic: bool,
        invertible: bool,
        compile: bool | Literal["auto"],  # noqa: A002 - as in `udaf`
        prefetch: Prefetch,
    ) -> Function:
        if not isinstance(self.cls, type):
            raise self.error(" is not a class", "put @udaf on a class")
        self.check_near_misses()
        self.check_names()
        self.check_vectorised()
        self.check_inherited()
        inputs = self.inputs(input_types, has_result=result_type is not None)
        self.check_parameters(None if callable(inputs) else len(inputs))
        serializer, reason = self.serializer()
        accumulator = self.accumulator_annotation()
        codec: Literal["typed", "custom", "pickle"] = "typed" if serializer or state_type is not None else "pickle"
        if state_type is not None:
            reason = "declared by state_type"
        views = self.views(serializer, state_type, accumulator, compile)
        if self.has("serialize"):
            codec, reason = "custom", "the class defines serialize and deserialize"
        if invertible and not self.retracts:
            remedy = "declare bundled_retract=True" if self.is_bundled_alone else "define retract"
            raise self.error(" is declared invertible but has no retract", f"{remedy}, or drop invertible=True")
        self.check_variables(inputs, result_type, state_type)
        names, prefetch_indexes = self.input_names(inputs), self.prefetch_arguments(prefetch, views, inputs)
        keys_end = max((index + 1 for indexes in prefetch_indexes.values() for index in indexes), default=0)
        return Function(
            name=self.name,
            declared_version=version if callable(version) else str(version),
            doc=inspect.cleandoc(self.cls.__doc__ or ""),
            cls=self.cls,
            instantiate=self.form(),
            input_names=names,
            declared_inputs=inputs,
            declared_result=self.result(result_type),
            declared_state=self.state(state_type),
            serializer=serializer,
            accumulator_class=accumulator if isinstance(accumulator, type) else None,
            accumulator_hints=_annotations(accumulator, self.cls),
            skip_nulls=skip_nulls,
            capabilities=Capabilities(
                retract=self.retracts,
                merge=self.merges,
                invertible=invertible,
                deterministic=deterministic,
                codec=codec,
                codec_reason=reason,
                migrate=self.has("migrate"),
            ),
            parameters=self.direct_arguments(),
            returns=self.returns(serializer, accumulator),
            compile=compile,
            vectorised=self.has("fold_many"),
            adapter=self.adapted_from,
            bundled=self.has("fold_bundle"),
            prefetch=prefetch_indexes,
            bounds=self.bounds,
            defaults={name: value for name, value in self.defaults(inputs).items() if name in names[keys_end:]},
        )

    def views(
        self,
        serializer: StateSerializer | None,
        state_type: Declared | None,
        accumulator: Any,
        compile: bool | Literal["auto"],  # noqa: A002 - as in `udaf`
    ) -> Mapping[str, ViewSerializer]:
        """Return the views of the accumulator. Refuse what does not go with views."""
        if serializer is not None:
            check_views(serializer)
        annotations = _annotations(accumulator, self.cls) if isinstance(accumulator, type) else {}
        has_view_annotation = any(_is_view(each) for each in annotations.values())
        views = views_in(serializer)
        if not has_view_annotation and not views:
            return views
        with_others = {
            "async": f"has an async {self.value_method}" if self.is_async else "",
            "fold_many": "has vectorised methods" if self.has("fold_many") else "",
            "fold_bundle": "has fold_bundle" if self.has("fold_bundle") else "",
            "compile=True": "is declared compile=True" if compile is True else "",
            "serialize and deserialize": "has serialize" if self.has("serialize") else "",
            "state_type": "is declared with state_type" if state_type is not None and not self.adapted_from else "",
        }
        for what, wrong in with_others.items():
            if wrong:
                raise self.error(f" has views in its accumulator and {wrong}", f"drop {what}, or use dict and list")
        if not views:
            reason = self.serializer()[1]
            raise self.error(
                f" has views in its accumulator, but the state is not typed ({reason})",
                "annotate all attributes of the accumulator with specific types",
            )
        return views

    def prefetch_arguments(
        self, prefetch: Prefetch, views: Mapping[str, ViewSerializer], inputs: Any
    ) -> dict[str, tuple[int, ...]]:
        """Return, for each view with `prefetch`, the numbers of the arguments that make up its keys."""
        names = self.input_names(inputs)
        positions: dict[str, tuple[int, ...]] = {}
        if not isinstance(prefetch, Mapping) or not all(isinstance(each, Sequence) for each in prefetch.values()):
            raise self.error(
                f" declares prefetch={prefetch!r}",
                'give a dict of the names of its MapViews and the names of arguments: {"view": ["argument"]}',
            )
        for view, arguments in prefetch.items():
            if view not in views or views[view].is_list:
                map_view_names = ", ".join(name for name, each in views.items() if not each.is_list) or "none"
                raise self.error(
                    f" declares prefetch for {view!r}, which is no MapView of its accumulator",
                    f"name one of its MapViews ({map_view_names})"
                    if views
                    else "annotate the accumulator, as in `def create_accumulator(self) -> State`, and an attribute of "
                    "its class as MapView[K, V]",
                )
            argument_names = [arguments] if isinstance(arguments, str) else list(arguments)
            unknown_name = next((name for name in argument_names if name not in names), None)
            if unknown_name is not None or not argument_names:
                raise self.error(
                    f" declares prefetch of {view!r} by {unknown_name!r}, which is no argument"
                    if argument_names
                    else f" declares prefetch of {view!r} without arguments",
                    f"name its arguments ({', '.join(names) or 'none'})",
                )
            members = views[view].key_members
            if len(argument_names) != members:
                raise self.error(
                    f" declares prefetch of {view!r} by {', '.join(argument_names)}, but its keys have {members} "
                    f"part{'s' if members > 1 else ''}",
                    "name one argument for each part of the key",
                )
            positions[view] = tuple(names.index(name) for name in argument_names)
        return positions

    def form(self) -> Callable[[Mapping[str, Any]], Methods]:
        if self.is_bundled_alone:
            return BundledForm(self.cls, retracts=self.retracts, merges=self.merges)
        return ClassForm(self.cls) if self.separate else AccumulatorForm(self.cls)

    def state(self, state_type: Declared | None) -> Any:
        return None if state_type is None else self.check_type("state_type", state_type)

    def check_near_misses(self) -> None:
        """Refuse a method whose name is a misspelled method, such as `retarct`: it would never be called.

        Methods that are used by other methods of the class are accepted.
        """
        unknown_methods = [
            (name, function)
            for cls in self.cls.__mro__
            for name, value in vars(cls).items()
            if inspect.isfunction(function := getattr(value, "__func__", value))
        ]
        used_names = {name for _, function in unknown_methods for name in _names_in(function)}
        for name in sorted({name for name, _ in unknown_methods} - METHODS.keys() - used_names):
            method_name = None if name.startswith("_") else _likely_meant(name)
            if method_name is not None and not self.has(method_name):
                raise self.error(
                    f" has a method {name}, which is never called",
                    f"did you mean {method_name}? If not, give it a less similar name, or one that begins with _",
                )

    def check_names(self) -> None:
        for method_name in () if self.is_bundled_alone else ("accumulate", self.value_method):
            if not callable(getattr(self.cls, method_name, None)):
                raise self.error(
                    f" has no method {method_name}",
                    f"define {self.usage(method_name)}, or say for which engine the class is written: @udaf(adapt=...)",
                )
        for one, other in (("serialize", "deserialize"), ("deserialize", "serialize")):
            if self.has(one) and not self.has(other):
                raise self.error(f" has {one} but no {other}", f"define {self.usage(other)} too")
        if not self.separate and (self.has("open") or self.has("close")):
            raise self.error(
                " has open or close but no create_accumulator",
                "an instance is then a single accumulator, which open and close do not apply to; "
                "add create_accumulator",
            )

    def check_bundled(self, *, retracts: bool, merges: bool, is_compiled: bool) -> None:
        """Refuse `fold_bundle` beside methods that do not go with it, and its options without it."""
        option = "bundled_retract" if retracts else "bundled_merge" if merges else ""
        if not self.has("fold_bundle"):
            if option:
                raise self.error(
                    f" declares {option} but has no fold_bundle", f"define {self.usage('fold_bundle')}, or drop it"
                )
            return
        if self.has("fold_many"):
            raise self.error(" has fold_bundle and fold_many", "keep one of them; both fold whole chunks")
        if is_compiled:
            raise self.error(
                " has fold_bundle and is declared compile=True", "drop one of them; fold_bundle is not compiled"
            )
        beside = [method_name for method_name in _CLASSIC if self.has(method_name)]
        if self.is_bundled_alone and beside:
            raise self.error(
                f" has fold_bundle and {beside[0]} but no accumulate",
                f"define accumulate and the other methods too, or remove {beside[0]}; what fold_bundle alone can do is "
                "declared by @udaf(bundled_retract=True, bundled_merge=True)",
            )
        if not self.separate:
            raise self.error(
                " has fold_bundle but no create_accumulator",
                "a segment has accumulators, separate from the class; add create_accumulator",
            )
        if option and not self.is_bundled_alone:
            method_name = option.removeprefix("bundled_")
            raise self.error(
                f" declares {option} and has accumulate",
                f"drop {option}; beside the other methods, fold_bundle can do what these can, so define {method_name}",
            )
        self.retracts, self.merges = self.retracts or retracts, self.merges or merges

    def check_vectorised(self) -> None:
        """Refuse incomplete vectorised methods."""
        present_names = [method_name for method_name in _VECTORISED if self.has(method_name)]
        if not present_names or self.is_async:
            return
        if not self.separate:
            raise self.error(
                f" has {present_names[0]} but no create_accumulator",
                "vectorised methods keep accumulators in an array, separate from the class; add create_accumulator",
            )
        required_names = [
            method_name for method_name in _VECTORISED if method_name != "merge_many" or self.has("merge")
        ]
        missing = [method_name for method_name in required_names if method_name not in present_names]
        if missing:
            raise self.error(f" has {present_names[0]} but no {missing[0]}", f"define {self.usage(missing[0])} too")
        if "merge_many" not in required_names and "merge_many" in present_names:
            raise self.error(" has merge_many but no merge", f"define {self.usage('merge')} too")

    def check_inherited(self) -> None:
        """Refuse inherited methods for many rows if a method that they stand for is overridden."""
        for method_name, scalar in _REPEATED:
            if self.has(method_name) and self.has(scalar) and self.owner(scalar) < self.owner(method_name):
                form, names = "the vectorised methods", " = ".join(_VECTORISED)
                if method_name == "fold_bundle":
                    form, names = "the bundled form", method_name
                raise self.error(
                    f" overrides {scalar} but inherits {method_name}",
                    f"define {method_name} too, or disable {form}: {names} = None",
                )

    def owner(self, method_name: str) -> int:
        """Return the position, in the class's method resolution order, of the class that defines a method."""
        return next(index for index, cls in enumerate(self.cls.__mro__) if method_name in vars(cls))

    def usage(self, method_name: str) -> str:
        """Return a method with its parameters as an author writes it, for the remedy of an error."""
        parameters = ["self"]
        if method_name in ("accumulate", "retract"):
            parameters += [*(["accumulator"] if self.separate else []), "*arguments"]
        elif method_name == "merge":
            parameters += ["accumulator", "other"] if self.separate else ["other"]
        elif method_name == "deserialize":
            parameters += ["serialized"]
        elif method_name == "migrate":
            parameters += ["version", "state"]
        elif method_name == "open":
            parameters += ["context"]
        elif method_name == "fold_bundle":
            parameters += ["segments"]
        elif method_name in (*_VECTORISED, "running_many"):
            takes_rows = method_name in _TAKE_ARGUMENTS
            parameters += ["accumulators", "slots", "signs", "*columns"] if takes_rows else ["accumulators"]
            parameters += ["slots", "others"] if method_name == "merge_many" else []
        elif method_name in ("get_value", "serialize") and self.separate:
            parameters += ["accumulator"]
        return f"{method_name}({', '.join(parameters)})"

    def check_parameters(self, arguments: int | None) -> None:
        """Refuse methods whose parameters do not match the fold's calls."""
        for method_name, count in METHODS.items():
            method = getattr(self.cls, method_name, None)
            if method is None:
                continue
            parameter_count = count - (
                0 if self.separate or method_name in ("deserialize", "migrate", "create_accumulator") else 1
            )
            if method_name in _TAKE_ARGUMENTS:
                if arguments is None:
                    continue
                parameter_count += arguments
            self.check_call(
                method_name,
                parameter_count,
                self.usage(method_name),
                arguments if method_name in _TAKE_ARGUMENTS else None,
            )

    def check_call(self, name: str, parameter_count: int, usage: str, arguments: int | None) -> None:
        """Refuse a method that cannot be called with this number of parameters, of which some may be arguments."""
        method = getattr(self.cls, name)
        bound = isinstance(inspect.getattr_static(self.cls, name), (staticmethod, classmethod))
        signature = signature_of(method)
        may_wait = self.is_async and name in (self.value_method, "open", "close")
        if (inspect.iscoroutinefunction(method) and not may_wait) or inspect.isgeneratorfunction(method):
            remedy = "make it a plain method without async and yield"
            if not self.adapted_from:
                remedy += "; only get_value may wait, which is asked once for each group that changed, and with it open"
            raise self.error(f".{name} is a coroutine or a generator", remedy)
        try:
            signature.bind(*[None] * (parameter_count + (0 if bound else 1)))
        except TypeError:
            arguments_text = "its arguments" if arguments is None else f"{arguments} arguments declared"
            raise self.error(
                f".{name}{signature} does not take {arguments_text}",
                f"write {usage}" + ("" if arguments is None else f" with {arguments} arguments"),
            ) from None

    def takes_only(self, count: int) -> bool:
        if self.is_bundled_alone:
            return False  # no method has parameters for the arguments
        for method_name in (each for each in _TAKE_ARGUMENTS if self.has(each)):
            method = getattr(self.cls, method_name)
            bound = isinstance(inspect.getattr_static(self.cls, method_name), (staticmethod, classmethod))
            signature = signature_of(method)
            if method_name in ("fold_many", "running_many") and any(
                each.kind is inspect.Parameter.VAR_POSITIONAL for each in signature.parameters.values()
            ):
                return False  # it may take apart all columns
            try:
                signature.bind(*[None] * (METHODS[method_name] + count - (not self.separate) + (not bound)))
            except TypeError:
                return False
        return True

    def inputs(self, input_types: Inputs | None, *, has_result: bool = True) -> Any:
        if self.is_bundled_alone and input_types is None:
            raise self.error(
                " has fold_bundle but no accumulate, so no method declares its arguments",
                "give their types: @udaf(input_types=[...])",
            )
        return super().inputs(input_types, has_result=has_result)

    def result(self, result_type: Declared | None) -> Any:
        if not self.is_bundled_alone or result_type is not None:
            return super().result(result_type)
        annotations = arguments_of(self.hints(self.cls.fold_bundle).get("return"), Applied)
        if not annotations:
            raise self.error(
                ".fold_bundle does not declare the type of the result",
                "annotate it as list[Applied[State, float]], or give @udaf(result_type=...)",
            )
        return self.infer_type(annotations[1], ".fold_bundle")

    def argument_method(self) -> tuple[Any, str]:
        return self.cls.accumulate, ".accumulate"

    def result_method(self) -> tuple[Any, str]:
        return getattr(self.cls, self.value_method), f".{self.value_method}"

    def infer_type(self, annotation: Any, where: str) -> pa.DataType:
        if self.gives_many and where == ".get_values":
            if typing.get_origin(annotation) not in (list, collections.abc.Sequence):
                raise self.error(
                    ".get_values does not declare the type of the results",
                    "annotate it as list[str] or the like, or give @udaf(result_type=...)",
                )
            (annotation,) = typing.get_args(annotation)
        return super().infer_type(annotation, where)

    def argument_parameters(self) -> list[inspect.Parameter]:
        if self.is_bundled_alone:
            return [inspect.Parameter("argument", inspect.Parameter.VAR_POSITIONAL)]
        return self.parameters_after(2 if self.separate else 1)

    def accumulator_annotation(self) -> Any:
        if self.is_bundled_alone:
            hints = self.hints(self.cls.fold_bundle)
            segment_arguments = next(
                (arguments for name in hints if (arguments := arguments_of(hints[name], Segment))), ()
            )
            return next(iter(segment_arguments or arguments_of(hints.get("return"), Applied)), None)
        if not self.separate:
            return self.cls
        return self.hints(self.cls.create_accumulator).get("return")

    def serializer(self) -> tuple[StateSerializer | None, str]:
        annotation = self.accumulator_annotation()
        if annotation is None:
            where = "fold_bundle has no annotation list[Segment[...]]"
            return None, where if self.is_bundled_alone else "create_accumulator has no return annotation"
        try:
            serializer = self.layout(annotation)
            return (Nullable(serializer) if may_be_none(annotation) else serializer), "annotated"
        except UnspecificAnnotation as reason:
            return None, str(reason)

    def returns(self, serializer: StateSerializer | None, annotation: Any) -> Literal["always", "some", "may"]:
        if self.is_bundled_alone:
            return "always"
        if self.separate and serializer is not None and serializer.immutable:
            return "always" if may_be_none(annotation) else "some"
        return "may"


class _AdaptedBuilder(_Builder):
    """Builds an aggregate function from a class that is written for another system.

    Args:
        cls: The author's class.
        name: The name of the function.
        adapter: The conventions of the system.
        state_type: The declared type of the states; None if the class declares it, or does not.
    """

    def __init__(self, cls: type, name: str, adapter: Adapter, state_type: Declared | None) -> None:
        self.adapter = adapter
        self.adapted_from = adapter.name
        self.state_type = state_type
        self.row = adapter.methods["accumulate"]
        super().__init__(cls, name)

    def refuse_compile(self, compile: bool | Literal["auto"]) -> Literal[False]:  # noqa: A002 - as in `udaf`
        """Return False, for adapted classes are interpreted. Refuse `compile=True`."""
        if compile is True:
            raise self.error(" is adapted from another engine and declared compile=True", "drop compile=True")
        return False

    def is_deterministic(self) -> bool:
        """Return what the class declares, if its system has such a method and no direct arguments are needed."""
        asks = self.adapter.asks_determinism and self.declares("is_deterministic")
        asks = asks and not any(parameter.required for parameter in self.direct_arguments())
        return not asks or bool(self.instance_value("deterministic", "is_deterministic"))

    def has(self, method_name: str) -> bool:
        if method_name == "migrate":
            return super().has(method_name)
        return method_name != "serialize" and self.adapter.method(self.cls, method_name) is not None

    def form(self) -> Callable[[Mapping[str, Any]], Methods]:
        return AdaptedForm(self.cls, self.adapter.name)

    def state(self, state_type: Declared | None) -> Any:  # noqa: ARG002 - `declared_serializer` has it
        return None

    def check_near_misses(self) -> None:
        """Accept all names: the class has the method names of another system."""

    def check_names(self) -> None:
        missing = self.adapter.missing(self.cls)
        if missing:
            raise self.error(
                f" is adapted as {self.adapter.what} (adapt={self.adapter.name!r}) and has no "
                f"{', '.join(method.name for method in missing)}",
                f"define {', '.join(method.usage() for method in missing)}, or give @udaf(adapt=...) another engine",
            )

    def check_vectorised(self) -> None:
        """Accept the class: it has no vectorised methods."""

    def check_parameters(self, arguments: int | None) -> None:
        for method_name, method in self.adapter.methods.items():
            if self.adapter.method(self.cls, method_name) is None:
                continue
            is_property = isinstance(inspect.getattr_static(self.cls, method.name), property)
            if is_property != method.is_property:
                wrong = "is not a property" if method.is_property else "is a property"
                raise self.error(f".{method.name} {wrong}", f"write {method.usage()}")
            if is_property or (method.row == "each" and arguments is None):
                continue
            each = arguments if method.row == "each" else None
            parameter_count = len(method.before) + (each if each is not None else int(method.row is not None))
            self.check_call(method.name, parameter_count, method.usage(), each)

    def argument_method(self) -> tuple[Any, str]:
        return getattr(self.cls, self.row.name), f".{self.row.name}"

    def result_method(self) -> tuple[Any, str]:
        method = self.adapter.methods["get_value"]
        author_method = getattr(self.cls, method.name, None)
        return (author_method or self.argument_method()[0]), f".{method.name}"

    def argument_parameters(self) -> list[inspect.Parameter]:
        static = isinstance(inspect.getattr_static(self.cls, self.row.name), staticmethod)
        return self.parameters_after(len(self.row.before) + (0 if static else 1))

    def inputs(self, input_types: Inputs | None, *, has_result: bool = True) -> Any:
        if isinstance(input_types, (list, tuple)):
            input_types = [self.adapter.type_of(each) for each in input_types]
        if input_types is not None or self.row.row == "each":
            return super().inputs(input_types, has_result=has_result or self.adapter.result is not None)
        method, where = self.argument_method()
        hint = self.hints(method).get(self.row_name())
        members = typing.get_args(hint) if typing.get_origin(hint) is tuple else ()
        if not members or Ellipsis in members:
            members = (hint,) if self.row.row == "element" and hint is not None and not members else ()
        if not members:
            raise self.error(f"{where} does not declare the types of its arguments", "give @udaf(input_types=[...])")
        return tuple(self.infer_type(member, f"{where}, argument {self.row_name()}") for member in members)

    def takes_only(self, count: int) -> bool:  # noqa: ARG002 - as the others
        return False

    def row_name(self) -> str:
        """Return the name of the parameter that takes a row."""
        names = [parameter.name for parameter in self.argument_parameters()]
        return names[0] if names else "value"

    def input_names(self, inputs: Any) -> tuple[str, ...]:
        if callable(inputs) or self.row.row == "each":
            return super().input_names(inputs)
        name = self.row_name()
        return (name,) if len(inputs) == 1 else tuple(f"{name}{index + 1}" for index in range(len(inputs)))

    def result(self, result_type: Declared | None) -> Any:
        attribute = self.adapter.result
        if result_type is None and attribute is not None and self.declares(attribute):
            return self.check_type(attribute, self.adapter.type_of(self.instance_value("result_type", attribute)))
        result_type = self.adapter.type_of(result_type)
        return super().result(result_type)

    def declares(self, name: str) -> bool:
        """Return whether the author's class has an attribute that declares a type."""
        owner = next((each for each in self.cls.__mro__ if name in vars(each)), None)
        return owner is not None and owner not in self.adapter.system_part(self.cls)

    def instance_value(self, option: str, attribute: str) -> Any:
        """Return what an instance of the class declares by a method or a property."""
        try:
            answer = getattr(self.cls(), attribute)
            return answer() if inspect.isroutine(answer) else answer
        except RejectedError:
            raise
        except Exception as error:
            raise self.error(
                f" cannot be asked for its types ({type(error).__name__}: {error})", f"give @udaf({option}=...)"
            ) from error

    def direct_arguments(self) -> tuple[Parameter, ...]:
        owner = next(each for each in self.cls.__mro__ if "__init__" in vars(each))
        return () if owner in self.adapter.system_part(self.cls) else super().direct_arguments()

    def state_method(self) -> Any:
        """Return the method whose result the states hold."""
        if "create_accumulator" in self.adapter.methods:
            return getattr(self.cls, self.adapter.methods["create_accumulator"].name)
        return inspect.getattr_static(self.cls, self.adapter.methods["serialize"].name).fget

    def accumulator_annotation(self) -> Any:
        try:
            return self.hints(self.state_method()).get("return")
        except RejectedError:  # a name that is imported only for type checkers
            return None

    def serializer(self) -> tuple[StateSerializer | None, str]:
        declared_pair = self.declared_serializer()
        if declared_pair is not None:
            return declared_pair
        if self.accumulator_annotation() is None:
            return None, f"{self.state_method().__name__} has no return annotation"
        serializer, reason = super().serializer()
        return (serializer and self.adapter.serializer(serializer, is_annotated=True)), reason

    def declared_serializer(self) -> tuple[StateSerializer, str] | None:
        """Return the serializer of the accumulators if the declaration or the class has their type."""
        if callable(self.state_type):
            raise self.error(" has a callable as state_type", "give a type: the class is adapted from another engine")
        if self.state_type is not None:
            return self.adapter.serializer_of(self.state_type), "declared by state_type"
        attribute = self.adapter.state
        if attribute is None or not self.declares(attribute):
            return None
        return self.adapter.serializer_of(self.instance_value("state_type", attribute)), f"declared by {attribute}"

    def returns(self, serializer: StateSerializer | None, annotation: Any) -> Literal["always", "some", "may"]:  # noqa: ARG002
        if not self.adapter.returns_accumulator:
            return "may"
        return "always" if serializer is None or isinstance(serializer, Nullable) else "some"
