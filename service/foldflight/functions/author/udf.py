"""`udf` and `udtf`: register an author's function or class as a scalar or a table function."""

from __future__ import annotations

import collections.abc
import inspect
import typing
from collections.abc import Callable, Mapping, Sequence
from types import FunctionType
from typing import Any, Final, Literal, get_args

import numpy as np
import pyarrow as pa

from foldflight.errors import RejectedError
from foldflight.functions.author.declarations import Inputs, SignatureBuilder, function_decorator, snake_case
from foldflight.functions.author.spec import CallBounds, Declared, ScalarFunction, Vectorised, bounds_of
from foldflight.functions.types.annotations import signature_of
from foldflight.functions.types.sql import parse_type, sql_name, type_variables

Columns = Mapping[str, Declared] | Callable[..., Mapping[str, Any]]

_ROWS: Final = (
    collections.abc.Iterator,
    collections.abc.Iterable,
    collections.abc.Generator,
    collections.abc.Sequence,
    list,
)
# The types of the elements of pyarrow's array classes, which annotate vectorised functions.
_ARRAYS: Final[dict[Any, pa.DataType]] = {
    type(pa.nulls(0, type_)): type_
    for type_ in (
        pa.bool_(),
        *(pa.int8(), pa.int16(), pa.int32(), pa.int64()),
        *(pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
        *(pa.float32(), pa.float64(), pa.string(), pa.binary(), pa.date32()),
    )
}


def scalar_of(
    target: Any,
    *,
    input_types: Inputs | None = None,
    result_type: Declared | None = None,
    name: str | None = None,
    version: str | Callable[..., str] = "1",
    skip_nulls: bool = False,
    deterministic: bool | None = None,
    vectorised: Vectorised | None = None,
    compile: bool | Literal["auto"] = "auto",  # noqa: A002 - the usual name for it
    concurrency: int | None = None,
    batch: int | None = None,
    batch_wait_s: float | None = None,
    timeout_s: float | None = None,
    retries: int | None = None,
    rate: float | None = None,
) -> ScalarFunction:
    """Make a function or a class, under `@udf`, a scalar function: it returns one value for each row.

        @udf
        def multiply(x: int, y: int) -> int:
            return x * y

    A class has `eval(self, *arguments)` and optionally `open(self, context)` and `close(self)`. Parameters of
    `__init__` are the function's *direct arguments*. They are fixed for a call: `f["scale"]("x", factor=3)`.

    NULL arguments are None, and the result None is NULL. Results are cast to the declared type as Spark's CAST does in
    ANSI mode: a value that does not fit is an error.

    A *vectorised* function takes whole columns of n rows and returns n results: `"arrow"` passes `pyarrow.Array`s,
    `"numpy"` NumPy arrays (masked if there are NULLs, object arrays for text and nested values), `"pandas"` Series
    (integers as `Int64` and the like, with or without NULLs). The rows of a query may be split in any way between
    calls. Masked arrays mask values that are not finite after a division, a root or a logarithm, and plain ones do not:
    give `skip_nulls=True` where that matters. Numbers that are computed row by row are compiled to machine code instead
    (see `compile`), which is faster than NumPy.

    An *async* function, `async def` or a class with `async def eval`, waits for something outside, such as a model:

        @udf(concurrency=16, timeout_s=10, retries=2)
        class Summary:
            async def open(self, context: FunctionContext) -> None:
                self.client = Client(key=os.environ["MODEL_KEY"])

            async def eval(self, text: str) -> str:
                return await self.client.ask(f"In one sentence: {text}")

    The rows of a chunk run side by side in the event loop of the process, within the bounds below, and their order is
    kept. The instance, and so what `open` loads, is shared by all exchanges of a process with the same direct arguments
    and job parameters. A call may be repeated: by `retries`, or because an engine repeats rows after a failure. Code
    that computes for long belongs into `await asyncio.to_thread(...)`, because it would hold up all other calls.

    Args:
        target: The function or class.
        input_types: Types of the arguments: SQL names, Arrow types, PySpark types or annotations; or a callable from
            the actual Arrow types. Default: the annotations. A call may leave out arguments with default values, the
            last ones first. A single capital letter (`"T"`) is a type variable and
            stands for the type of the argument.
        result_type: Type of the result, or a callable from the input types. Default: the annotation of the result.
        name: Name in queries. Default: the function's name, or the class's name in snake case.
        version: Version of the function. Servers with different versions do not share one query.
        skip_nulls: Whether rows with a NULL argument get the result NULL without a call.
        deterministic: False if equal arguments may give different results. The function is then called once for each
            row that Spark evaluates; Spark evaluates rows again after a failure, and samples them before ORDER BY. It
            is refused for changelogs, because a retraction must equal the row that it retracts. Default: False for
            async functions, True for all others.
        vectorised: The form of whole columns, `"arrow"`, `"numpy"` or `"pandas"`; None for a call for each row.
        compile: `"auto"` compiles the code to machine code if the results are identical to Python's: numbers,
            booleans, arithmetic, comparisons, `math`; dates and times. True raises before the
            first row if it cannot be compiled. False always interprets.
        concurrency: For an async function: calls that are open at once in a process. Default: 64.
        batch: For an async function: it takes lists of up to this many values for each argument, and returns a list of
            as many results. Rows of several exchanges may share a call. Default: a call has the values of one row.
        batch_wait_s: For a function with `batch`: the longest time for which a call waits for further rows, in seconds.
            Default: 0.005.
        timeout_s: For an async function: the time after which a call is cancelled, and counts as failed, in seconds.
            Default: 30.
        retries: For an async function: how often a call is repeated after an error that may pass: not after errors of
            code (TypeError, ValueError, LookupError and the like) and HTTP statuses below 500 except 408, 425 and 429.
            The pauses grow from 0.1 seconds; a `Retry-After` of the error, or an attribute `retry_after` in seconds, is
            obeyed by all calls of the function. Default: 3.
        rate: For an async function: calls that begin within one second, in a server with all its workers. Default: no
            bound. It is refused without a server, since the number of Spark's processes is not known.

    Returns:
        The scalar function; `@udf` returns the function or class itself, which can be called as before.

    Raises:
        RejectedError: SIGNATURE, naming the function and the remedy.

    >>> @udf(input_types=["BIGINT", "BIGINT"], result_type="BIGINT")
    ... def multiply(x, y): return x * y
    >>> multiply(6, 7)
    42

    An async function with `batch` is awaited with lists:

    >>> import asyncio
    >>> @udf(batch=32, concurrency=1)
    ... async def lengths(texts: list[str]) -> list[int]: return [len(text) for text in texts]
    >>> asyncio.run(lengths(["a", "bcd"]))
    [1, 3]
    """
    builder = _ScalarBuilder(target, _name_of(target, name), vectorised)
    builder.check()
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
    return builder.of_both_kinds(
        lambda: builder.scalar_function(
            builder.inputs(input_types, has_result=result_type is not None),
            builder.result(result_type),
            version=version,
            skip_nulls=skip_nulls,
            deterministic=not builder.is_async if deterministic is None else deterministic,
            compile=compile,
        )
    )


udf = function_decorator("udf", scalar_of)


def table_of(
    target: Any,
    *,
    input_types: Inputs | None = None,
    result_types: Columns | None = None,
    name: str | None = None,
    version: str | Callable[..., str] = "1",
    skip_nulls: bool = False,
    deterministic: bool = True,
) -> ScalarFunction:
    """Make a function or a class, under `@udtf`, a table function: it returns any number of rows for each row.

        @udtf(result_types={"word": "STRING", "at": "INT"})
        def split(text: str):
            for at, word in enumerate(text.split()):
                yield word, at

    The function yields rows, or returns a list of them; None means no rows. A row is a tuple with a value for each
    column, a dict, or an object with an attribute for each column. With one column, a row may also be the value itself.

    A class has `eval(self, *arguments)`, and `open`, `close` and direct arguments as under `udf`.

    Args:
        target: The function or class.
        input_types: Types of the arguments, as for `udf`.
        result_types: Types of the columns by name, or a callable from the input types that returns such a dict.
            Default: the annotation of the result, `Iterator[Row]`, where `Row` is a dataclass or a named tuple with
            annotated fields; or `Iterator[str]` for one column, named as the function.
        name: Name in queries. Default: the function's name, or the class's name in snake case.
        version: Version of the function.
        skip_nulls: Whether rows with a NULL argument get no rows without a call.
        deterministic: False if equal arguments may give different rows.

    Returns:
        The table function; `@udtf` returns the function or class itself.

    Raises:
        RejectedError: SIGNATURE, naming the function and the remedy.

    >>> from collections.abc import Iterator
    >>> from foldflight import udtf
    >>> @udtf(result_types={"word": "STRING", "at": "INT"})
    ... def split(text: str) -> Iterator[tuple[str, int]]:
    ...     for at, word in enumerate(text.split()):
    ...         yield word, at
    >>> list(split("to be"))
    [('to', 0), ('be', 1)]
    """
    builder = _TableBuilder(target, _name_of(target, name))
    builder.check()
    return builder.of_both_kinds(
        lambda: builder.scalar_function(
            builder.inputs(input_types, has_result=result_types is not None),
            builder.table(result_types),
            version=version,
            skip_nulls=skip_nulls,
            deterministic=deterministic,
            compile=False,
        )
    )


udtf = function_decorator("udtf", table_of)


def _name_of(target: Any, option_name: str | None) -> str:
    if option_name is not None:
        return option_name
    name = getattr(target, "__name__", type(target).__name__)
    return snake_case(name) if isinstance(target, type) else str(name)


class _MapBuilder(SignatureBuilder):
    """Builds a scalar or table function from a function or a class with `eval`."""

    async_remedy = "make it a plain function; an async function is a @udf, which may return a list to be exploded"

    vectorised: Vectorised | None = None
    bounds: CallBounds | None = None

    @property
    def is_async(self) -> bool:
        """Whether the author's code is a coroutine."""
        return inspect.iscoroutinefunction(getattr(self.cls, "eval", None) if isinstance(self.cls, type) else self.cls)

    def argument_method(self) -> tuple[Any, str]:
        is_class = isinstance(self.cls, type)
        return (getattr(self.cls, "eval"), ".eval") if is_class else (self.cls, "")  # noqa: B009 - a class of the author

    def result_method(self) -> tuple[Any, str]:
        return self.argument_method()

    def argument_parameters(self) -> list[inspect.Parameter]:
        is_method = isinstance(self.cls, type) and not isinstance(
            inspect.getattr_static(self.cls, "eval"), (staticmethod, classmethod)
        )
        return self.parameters_after(1 if is_method else 0)

    def check(self) -> None:
        """Refuse everything except plain functions and classes with plain methods."""
        if not isinstance(self.cls, (type, FunctionType)):
            raise self.error(" is neither a Python function nor a class", f"put {self.decorator} on a def or a class")
        if not self.name.isidentifier():
            raise self.error(" has no name", f"give it one: {self.decorator}(name=...)")
        if not isinstance(self.cls, type):
            self.check_method(self.cls, "")
            return
        for method_name, parameters in (("eval", "self, *arguments"), ("open", "self, context"), ("close", "self")):
            method = getattr(self.cls, method_name, None)
            if method is None:
                if method_name == "eval":
                    raise self.error(" has no method eval", f"define eval({parameters})")
                continue
            self.check_method(method, f".{method_name}")
            if method_name != "eval":
                self.check_count(method, method_name, parameters)
        if self.has("is_deterministic"):
            raise self.error(
                " has a method is_deterministic, which is never called", f"give {self.decorator}(deterministic=False)"
            )

    def check_method(self, method: Any, where: str) -> None:
        """Refuse a coroutine or async generator that this decorator does not take."""
        if inspect.isasyncgenfunction(method):
            raise self.error(f"{where} is an async generator", "return a list, or make it a plain generator")
        if inspect.iscoroutinefunction(method):
            raise self.error(f"{where} is a coroutine", self.async_remedy)

    def check_count(self, method: Any, method_name: str, parameters: str) -> None:
        """Refuse `open` and `close` with wrong parameters."""
        try:
            signature_of(method).bind(*[None] * (1 + parameters.count(",")))
        except TypeError:
            raise self.error(f".{method_name} has wrong parameters", f"write {method_name}({parameters})") from None

    def scalar_function(
        self,
        inputs: Any,
        result: Any,
        *,
        version: str | Callable[..., str],
        skip_nulls: bool,
        deterministic: bool,
        compile: bool | Literal["auto"],  # noqa: A002 - as in `udf`
    ) -> ScalarFunction:
        """Return the function, after the checks that need its types."""
        if not callable(inputs):
            try:
                signature_of(self.argument_method()[0]).bind(*[None] * self.positional_count(len(inputs)))
            except TypeError:
                raise self.not_taken(len(inputs)) from None
        self.check_variables(inputs, result)
        return ScalarFunction(
            name=self.name,
            is_table=isinstance(self, _TableBuilder),
            declared_version=version if callable(version) else str(version),
            doc=inspect.cleandoc(self.cls.__doc__ or ""),
            target=self.cls,
            input_names=self.input_names(inputs),
            declared_inputs=inputs,
            declared_result=result,
            skip_nulls=skip_nulls,
            deterministic=deterministic,
            vectorised=self.vectorised,
            parameters=self.direct_arguments() if isinstance(self.cls, type) else (),
            compile=compile,
            bounds=self.bounds,
            defaults=self.defaults(inputs),
        )

    def takes_only(self, count: int) -> bool:
        return count > 0 or self.vectorised is None

    def not_taken(self, count: int) -> RejectedError:
        """Return the error for a number of arguments that the author's code does not take."""
        method, where = self.argument_method()
        for parameter in signature_of(method).parameters.values():
            if parameter.kind is inspect.Parameter.KEYWORD_ONLY:
                return self.error(
                    f"{where} has the keyword-only parameter {parameter.name}, and arguments are given by position",
                    "for direct arguments write a class: parameters of __init__, and eval for the others",
                )
        return self.error(
            f"{where} does not take {count} arguments, which input_types declares", "declare a type for each argument"
        )

    def positional_count(self, arguments: int) -> int:
        """Return the number of positional arguments of a call, including `self`."""
        every = len(signature_of(self.argument_method()[0]).parameters)
        return arguments + every - len(self.argument_parameters())


class _ScalarBuilder(_MapBuilder):
    decorator = "@udf"
    async_remedy = "make it a plain method, because eval is none that waits; or make eval async as well"

    def __init__(self, target: Any, name: str, vectorised: Vectorised | None) -> None:
        super().__init__(target, name)
        self.vectorised = vectorised

    def check(self) -> None:
        super().check()
        if self.vectorised is not None and self.vectorised not in get_args(Vectorised):
            raise self.error(
                f" is declared vectorised={self.vectorised!r}", 'give "arrow", "numpy" or "pandas", or leave it out'
            )
        if self.is_async:
            self.check_async()

    def check_method(self, method: Any, where: str) -> None:
        if not (self.is_async and inspect.iscoroutinefunction(method)):
            super().check_method(method, where)
        if inspect.isgeneratorfunction(method):
            raise self.error(f"{where} is a generator", "return one value, or use @udtf for several rows")

    def scalar_function(self, inputs: Any, result: Any, **options: Any) -> ScalarFunction:
        if self.is_async:
            if options["compile"] is True:
                raise self.error(" is async and declared compile=True", "drop compile: the time goes by outside")
            options["compile"] = False
            if self.bounds is not None and self.bounds.batch is not None and not callable(inputs) and not inputs:
                raise self.error(" is declared with batch and has no arguments", "drop batch: there is nothing to list")
        if self.vectorised is not None:
            if options["compile"] is True:
                raise self.error(" is declared vectorised and compile=True", "choose one")
            options["compile"] = False
        if not callable(inputs) and self.vectorised is not None and not inputs:
            raise self.error(
                " is vectorised and has no arguments", "leave vectorised out; it cannot know how many rows"
            )
        return super().scalar_function(inputs, result, **options)

    def check_async(self) -> None:
        """Refuse what does not go with a coroutine, and direct arguments for secrets."""
        if self.vectorised is not None:
            raise self.error(
                f" is async and declared vectorised={self.vectorised!r}", "give batch=..., which passes lists of values"
            )
        if isinstance(self.cls, type):
            self.check_secrets()

    def infer_type(self, annotation: Any, where: str) -> pa.DataType:
        if (
            self.bounds is not None
            and self.bounds.batch is not None
            and where not in (", input_types", ", result_type")
        ):
            if typing.get_origin(annotation) not in (list, collections.abc.Sequence):
                raise self.error(
                    f"{where}: a function with batch takes and returns lists",
                    "annotate list[str] or the like, or give @udf(input_types=[...], result_type=...)",
                )
            (annotation,) = get_args(annotation)
        if self.vectorised is not None and where not in (", input_types", ", result_type"):
            element = _element(annotation)
            if element is None:
                hints = {
                    "arrow": "annotate pa.StringArray, or ",
                    "numpy": "annotate NDArray[np.int64], or ",
                }
                raise self.error(
                    f"{where}: the annotation does not give the type of the elements",
                    f"{hints.get(self.vectorised, '')}give @udf(input_types=[...], result_type=...)",
                )
            return element
        return super().infer_type(annotation, where)


def _element(annotation: Any) -> pa.DataType | None:
    """Return the type of the elements of an annotated column: `pa.Int64Array`, `NDArray[np.int64]`."""
    if annotation in _ARRAYS:
        return _ARRAYS[annotation]
    if typing.get_origin(annotation) is np.ndarray:
        (scalar,) = get_args(get_args(annotation)[1]) or (None,)
        try:
            return pa.from_numpy_dtype(np.dtype(scalar))
        except (pa.ArrowException, TypeError):
            return None
    return None


class _TableBuilder(_MapBuilder):
    decorator = "@udtf"
    result_option = 'result_types={"word": "STRING", ...}'

    def table(self, result_types: Columns | None) -> Any:
        """Return the struct of the columns: a type, a text with type variables, or a callable from input types."""
        if result_types is None:
            return self.annotated_columns()
        if callable(result_types):
            return _StructOf(result_types)
        if not isinstance(result_types, Mapping) or not result_types:
            raise self.error(
                f" declares result_types as {result_types!r}", "give a dict of columns: result_types={'word': 'STRING'}"
            )
        columns = {name: self.check_type("result_types", each) for name, each in result_types.items()}
        self.check_names(list(columns))
        if any(isinstance(each, str) and type_variables(each) for each in columns.values()):
            texts = (f"`{name}` {each if isinstance(each, str) else sql_name(each)}" for name, each in columns.items())
            return f"STRUCT<{', '.join(texts)}>"
        return pa.struct([(name, parse_type(each)) for name, each in columns.items()])

    def check_names(self, names: Sequence[Any]) -> None:
        """Refuse columns that SQL cannot distinguish or name."""
        wrong = [name for name in names if not isinstance(name, str) or not name or "`" in name]
        if wrong:
            raise self.error(f" has a column named {wrong[0]!r}", "give each column a name without backticks")
        if len({name.casefold() for name in names}) < len(names):
            raise self.error(f" has two columns of one name: {', '.join(names)}", "give each column its own name")

    def annotated_columns(self) -> pa.DataType:
        """Return the struct of columns that the annotation of the result declares."""
        method, where = self.result_method()
        return_type = self.hints(method).get("return")
        origin = typing.get_origin(return_type)
        if origin not in _ROWS or not get_args(return_type):
            raise self.error(
                f"{where} does not declare its columns",
                f"give @udtf({self.result_option}), or annotate Iterator[Row] with a dataclass Row",
            )
        row = self.infer_type(get_args(return_type)[0], where)
        return row if pa.types.is_struct(row) else pa.struct([(self.name, row)])


class _StructOf:
    """Computes the struct of a table function's columns from its input types."""

    def __init__(self, result_types: Callable[..., Mapping[str, Any]]) -> None:
        self.result_types = result_types

    def __call__(self, *inputs: pa.DataType) -> pa.DataType:
        return pa.struct([(name, parse_type(each)) for name, each in self.result_types(*inputs).items()])
