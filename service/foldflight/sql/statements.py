"""Statements about functions: CREATE AGGREGATE, DROP AGGREGATE, SHOW AGGREGATES.

CREATE [OR REPLACE] AGGREGATE [IF NOT EXISTS] name ( [argument] type, ... ) [RETURNS type] [APPEND ONLY]
    [LANGUAGE python] AS 'function' | 'module:Class' | $$ source $$  [USING LINK 'grpc://host:port']
DROP AGGREGATE [IF EXISTS] name
SHOW AGGREGATES
"""

from __future__ import annotations

import hashlib
import importlib
import linecache
import sys
import textwrap
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from foldflight.client import FunctionHandle
from foldflight.errors import FoldflightError, RejectedError
from foldflight.exchange.frames import Open, Returns
from foldflight.functions import Call, Function, Registry, parse_type
from foldflight.spark.columns import spark_name
from foldflight.sql.catalog import Catalog, Entry
from foldflight.sql.text import Span, SqlError, Text, Token

__all__ = ["done", "run_statement"]

_CLAUSES: Final = ("APPEND", "LANGUAGE", "AS", "USING")


def run_statement(spark: SparkSession, catalog: Catalog, text: Text) -> DataFrame | None:
    """Run a statement about functions, or return None for another statement.

    Raises:
        SqlError: For a mistake in the statement, or a function that is not as declared.
    """
    reader = _Reader(text)
    if reader.take("CREATE"):
        replaces = reader.take("OR", "REPLACE")
        if reader.take("AGGREGATE"):
            _create(spark, catalog, reader, replaces=replaces)
            return done(spark)
        _refuse_other_functions(reader)
        return None
    if reader.take("DROP", "AGGREGATE"):
        _drop(catalog, reader)
        return done(spark)
    if reader.take("SHOW", "AGGREGATES"):
        reader.end()
        return _listing(spark, catalog)
    return None


def done(spark: SparkSession) -> DataFrame:
    """Return the result of a statement that has none."""
    return spark.createDataFrame([], "ok string")


def _refuse_other_functions(reader: _Reader) -> None:
    """Refuse scalar and table functions in Python, which Spark has no statement for.

    A room for scalar and table functions reads its CREATE FUNCTION here.
    """
    text = reader.text
    is_function = reader.take("FUNCTION") or reader.take("TEMPORARY", "FUNCTION")
    language = next((place for place in text.flat(Span(0, len(text))) if text.says(place, "LANGUAGE", "PYTHON")), None)
    if is_function and language is not None:
        raise text.error(
            "foldflight creates aggregates: CREATE AGGREGATE name(type, ...) RETURNS type AS 'module:Class'; make "
            "a scalar function known with register(spark, connect('embedded:module'))",
            Span(language, language + 2),
        )


@dataclass
class _Reader:
    """Reads a statement from left to right."""

    text: Text
    at: int = 0

    def take(self, *words: str) -> bool:
        """Skip these words if they come next."""
        if not self.text.says(self.at, *words):
            return False
        self.at += len(words)
        return True

    def error(self, message: str, at: int | None = None) -> SqlError:
        """Return an error about the next token, or about another one."""
        place = self.at if at is None else at
        return self.text.error(message, Span(place, place + 1))

    def next_token(self) -> Token | None:
        """Return the next token."""
        return self.text.tokens[self.at] if self.at < len(self.text) else None

    def name(self, what: str) -> str:
        """Read an identifier."""
        token = self.next_token()
        if token is None or not token.is_name:
            raise self.error(f"{what} is expected here")
        self.at += 1
        return token.name

    def string(self, what: str) -> str:
        """Read a string."""
        token = self.next_token()
        if token is None or token.kind not in ("string", "dollar"):
            raise self.error(f"{what} is expected here")
        self.at += 1
        return token.value

    def end(self) -> None:
        """Refuse further tokens."""
        if self.at < len(self.text):
            raise self.error("the statement should end here")


@dataclass(frozen=True)
class _Declared:
    """What CREATE AGGREGATE declares.

    Args:
        name: The name of the aggregate, in lower case.
        name_at: The place of its name.
        types: The types of its arguments.
        returns: The type of its result.
        append_only: Whether APPEND ONLY is written.
        function: The text behind AS.
        function_at: The place of that text.
        is_source: Whether it is source code.
        link: The URL behind USING LINK.
    """

    name: str
    name_at: int
    types: tuple[pa.DataType, ...]
    returns: pa.DataType
    append_only: bool
    function: str
    function_at: int
    is_source: bool
    link: str | None


def _create(spark: SparkSession, catalog: Catalog, reader: _Reader, *, replaces: bool) -> None:
    keeps = reader.take("IF", "NOT", "EXISTS")
    declared = _declared(reader)
    text = reader.text
    if declared.name in catalog.entries and not replaces:
        if keeps:
            return
        raise reader.error(
            f"there is already an aggregate {declared.name}; write CREATE OR REPLACE AGGREGATE", declared.name_at
        )
    try:
        with catalog.unchanged_on_error():
            handle = _function(catalog, declared)
            _check(declared, handle, reader)
            where = declared.link or ("source" if declared.is_source else declared.function)
            statement = text.slice(Span(0, len(text)))  # without comments around it: one at its end would hide the `;`
            entry = Entry(declared.name, handle, declared.types, where, statement, declared.append_only)
            catalog.register(spark, entry)
    except SqlError:
        raise
    except RejectedError as error:
        place = Span(declared.function_at, declared.function_at + 1)
        raise text.error(error.message, place, code=error.code) from None


def _declared(reader: _Reader) -> _Declared:
    """Read the statement behind CREATE [OR REPLACE] AGGREGATE [IF NOT EXISTS]."""
    text, name_at = reader.text, reader.at
    name = reader.name("the name of the aggregate").lower()
    if not text.says(reader.at, "("):
        raise reader.error("the types of the arguments are expected here, in parentheses: (BIGINT, INT)")
    closing = text.partner[reader.at]
    types = tuple(_argument_type(text, each) for each in text.split(Span(reader.at + 1, closing)))
    reader.at = closing + 1
    returns = _returns(reader, types)
    append_only = reader.take("APPEND", "ONLY")
    if reader.take("LANGUAGE") and reader.name("a language").lower() != "python":
        raise reader.error("the language of an aggregate is python", reader.at - 1)
    function, function_at, is_source = name, name_at, False
    if reader.take("AS"):
        function_at = reader.at
        function = reader.string("'function', 'module:Class' or $$ source $$")
        is_source = text.tokens[function_at].kind == "dollar" or "\n" in function
    link = None
    if reader.take("USING"):
        if not reader.take("LINK"):
            raise reader.error("LINK 'grpc://host:port' is expected here")
        link = reader.string("'grpc://host:port'").replace("http://", "grpc://").replace("https://", "grpc+tls://")
    reader.end()
    return _Declared(name, name_at, types, returns, append_only, function, function_at, is_source, link)


def _returns(reader: _Reader, types: tuple[pa.DataType, ...]) -> pa.DataType:
    if not reader.take("RETURNS"):
        if len(types) != 1:
            raise reader.error("RETURNS type is expected here; only with one argument it may be left out")
        return types[0]
    begin = reader.at
    while reader.at < len(reader.text) and reader.text.upper(reader.at) not in _CLAUSES:
        reader.at += 1
    return _type(reader.text, Span(begin, reader.at))


def _argument_type(text: Text, span: Span) -> pa.DataType:
    """Return the type in `[argument] type`."""
    try:
        return _type(text, span)
    except SqlError:
        if len(span.places) < 2:
            raise
        return _type(text, Span(span.start + 1, span.stop))


def _type(text: Text, span: Span) -> pa.DataType:
    """Return a type as Spark names it: its TIMESTAMP has a zone."""
    if span.is_empty:
        raise text.error("a type is expected here", Span(span.start, span.start + 1))
    words = [text.tokens[place].text for place in span.places]
    zoned = [
        "TIMESTAMPTZ" if word.upper() == "TIMESTAMP" and after.upper() not in ("WITH", "WITHOUT") else word
        for word, after in zip(words, [*words[1:], ""], strict=True)
    ]
    try:
        return parse_type(" ".join(zoned))
    except (RejectedError, ValueError) as error:
        message = error.message if isinstance(error, RejectedError) else str(error)
        raise text.error(message.replace("TIMESTAMPTZ", "TIMESTAMP"), span) from None


def _function(catalog: Catalog, declared: _Declared) -> FunctionHandle:
    """Return the function that a statement names. Raises RejectedError."""
    if declared.link is not None:
        functions = catalog.link(declared.link)
        if not declared.is_source:
            return functions[declared.function]
        return functions.register(_of_source(declared))[declared.name]
    if declared.is_source:
        return catalog.embed(declared.name, _of_source(declared))
    if ":" in declared.function:
        return catalog.embed(declared.name, _of_module(declared.function))
    return catalog.embedded[declared.function]


def _of_module(written: str) -> Function:
    module_name, _, class_name = written.partition(":")
    found = Registry.load([module_name]).authored
    try:
        source = getattr(importlib.import_module(module_name), class_name)
    except AttributeError:
        classes = ", ".join(each.cls.__name__ for each in found if isinstance(each, Function))
        raise RejectedError("MODULE", f"{module_name} has no class {class_name}; it has {classes}") from None
    return _only(Registry.load([source]), written)


def _only(registry: Registry, what: str) -> Function:
    if len(registry.authored) != 1:
        names = ", ".join(function.name for function in registry.authored)
        raise RejectedError("SIGNATURE", f"{what} has {len(registry.authored)} functions ({names}); give one")
    (function,) = registry.authored
    if not isinstance(function, Function):
        raise RejectedError("SIGNATURE", f"{what} is not an aggregate function", function=function.name)
    return function


def _of_source(declared: _Declared) -> Function:
    """Return the only function of source code: a class under @udaf, or functions as RisingWave has them.

    The source is executed in this process. Its module has a name of its own for each text, so that a replaced function
    does not change results that use the one before.
    """
    code = textwrap.dedent(declared.function)
    digest = hashlib.sha256(code.encode()).hexdigest()[:8]
    module = ModuleType(f"foldflight_sql_{declared.name}_{digest}")
    file = f"<CREATE AGGREGATE {declared.name}>"
    sys.modules[module.__name__] = module
    linecache.cache[file] = (len(code), None, code.splitlines(keepends=True), file)
    try:
        exec(compile(code, file, "exec"), module.__dict__)  # noqa: S102 - the user's own code is what the statement gives
        if "create_state" in module.__dict__:
            _make_class(module, declared)
    except FoldflightError:
        raise
    except Exception as error:  # noqa: BLE001 - whatever the user's code raises
        line = f", line {error.lineno}" if isinstance(error, SyntaxError) else ""
        raise RejectedError("MODULE", f"the source cannot be executed{line}: {type(error).__name__}: {error}") from None
    return replace(_only(Registry.load([module]), "the source"), name=declared.name)


_CLASS: Final = """
class {name}:
    def create_accumulator(self):
        return create_state()

    def accumulate(self, state, {arguments}):
        return accumulate(state, {arguments})

    def get_value(self, state):
        return {value}
"""
_RETRACT: Final = """
    def retract(self, state, {arguments}):
        return retract(state, {arguments})
"""
_MERGE: Final = """
    def merge(self, state, other):
        return merge(state, other)
"""


def _make_class(module: ModuleType, declared: _Declared) -> None:
    """Add a class for the functions `create_state`, `accumulate`, `finish`, and optionally `retract` and `merge`."""
    defined = module.__dict__
    arguments = ", ".join(f"argument_{place}" for place, _ in enumerate(declared.types))
    code = _CLASS + (_RETRACT if "retract" in defined else "") + (_MERGE if "merge" in defined else "")
    value = "finish(state)" if "finish" in defined else "state"
    exec(code.format(name="Aggregate", arguments=arguments, value=value), defined)  # noqa: S102 - our own text
    from foldflight import udaf

    decorated = udaf(input_types=declared.types, result_type=declared.returns, name=declared.name)
    defined["Aggregate"] = decorated(defined["Aggregate"])


def _check(declared: _Declared, handle: FunctionHandle, reader: _Reader) -> None:
    """Check the declared types and APPEND ONLY against the function. Raises SqlError."""
    info = handle.info
    if info.input_types is not None:
        known = [parse_type(each) for each in info.input_types]
        if known != list(declared.types):
            raise reader.error(
                f"{info.signature} takes ({', '.join(map(spark_name, known))}), and "
                f"({', '.join(map(spark_name, declared.types))}) is declared",
                declared.name_at,
            )
    required = [each.name for each in info.parameters if each.required]
    if not required:  # direct arguments may decide the type of the result
        columns = [pa.field(str(place), type_) for place, type_ in enumerate(declared.types)]
        call = Call(handle.name, tuple(each.name for each in columns))
        schema = pa.schema([pa.field("slot", pa.int32()), *columns])
        opened = handle.transport.describe(Open((call,), schema, returns=Returns(states=False)))
        result = opened.schema.field("output_0").type
        if result != declared.returns:
            raise reader.error(
                f"{declared.name} returns {spark_name(result)}, and {spark_name(declared.returns)} is declared",
                declared.name_at,
            )
    if not info.retract and not declared.append_only:
        raise reader.error(
            f"{declared.name} has no retract, so rows cannot be taken back; declare it: write APPEND ONLY before "
            "LANGUAGE or AS, or define retract",
            declared.name_at,
        )


def _drop(catalog: Catalog, reader: _Reader) -> None:
    may_miss = reader.take("IF", "EXISTS")
    place = reader.at
    name = reader.name("the name of an aggregate").lower()
    if reader.text.says(reader.at, "("):  # DROP AGGREGATE name(types), as in the RFC
        reader.at = reader.text.partner[reader.at] + 1
    reader.end()
    if name in catalog.entries:
        catalog.drop(name)
    elif not may_miss:
        close = catalog.closest(name)
        hint = f"; did you mean {close}?" if close else ""
        raise reader.error(f"there is no aggregate {name}{hint}", place)


def _listing(spark: SparkSession, catalog: Catalog) -> DataFrame:
    rows = [
        (
            entry.name,
            entry.handle.info.signature if entry.types is None else ", ".join(map(spark_name, entry.types)),
            "yes" if entry.append_only else "no",
            entry.where,
        )
        for entry in sorted(catalog.entries.values(), key=lambda entry: entry.name)
    ]
    return spark.createDataFrame(rows, "name string, arguments string, append_only string, `where` string")
