"""Statements about functions: CREATE, DROP and SHOW.

CREATE [OR REPLACE] AGGREGATE [IF NOT EXISTS] name ( [argument] type, ... ) [RETURNS type] [APPEND ONLY]
    [LANGUAGE python] AS 'function' | 'module:Class' | $$ source $$  [USING LINK 'grpc://host:port']
CREATE [OR REPLACE] AGGREGATE [IF NOT EXISTS] name ( [argument] type, ... ) [RETURNS type] [APPEND ONLY]
    LANGUAGE java AS 'com.acme.Class' USING LINK 'functions.jar' | 'grpc://host:port'
    LANGUAGE java AS 'functions.jar::com.acme.Class'  [USING LINK 'grpc://host:port']
DROP AGGREGATE [IF EXISTS] name
SHOW AGGREGATES

CREATE [OR REPLACE] [TEMPORARY] FUNCTION [IF NOT EXISTS] name ( [argument] type, ... )
    RETURNS type | RETURNS TABLE ( column type, ... )
    LANGUAGE python AS 'function' | 'module:function' | $$ source $$  [USING LINK 'grpc://host:port']
DROP [TEMPORARY] FUNCTION [IF EXISTS] name
SHOW FOLDFLIGHT FUNCTIONS

A CREATE FUNCTION without LANGUAGE python, USING LINK and $$ is Spark's, as is a DROP FUNCTION of another function.
"""

from __future__ import annotations

import difflib
import hashlib
import linecache
import re
import sys
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from foldflight.client import FunctionHandle, Functions, connect
from foldflight.engine.query.layout import REAL, SLOT
from foldflight.errors import FoldflightError, RejectedError
from foldflight.exchange.frames import Open, Returns
from foldflight.functions import (
    AnyFunction,
    Call,
    Function,
    FunctionKind,
    Registry,
    Step,
    StepArgument,
    aggregate_of,
    function_of,
    import_module,
    parse_type,
    udf,
    udtf,
)
from foldflight.functions.registry import JAVA, java_functions
from foldflight.spark.columns import quote_name, spark_name
from foldflight.sql.calls import GRAMMAR
from foldflight.sql.catalog import Catalog, Entry, ScalarEntry
from foldflight.sql.text import Span, SqlError, Text, Token

_CLAUSES: Final = ("APPEND", "LANGUAGE", "AS", "USING")


def run_statement(spark: SparkSession, catalog: Catalog, text: Text) -> DataFrame | None:
    """Run a statement about functions, or return None for another statement.

    Raises:
        SqlError: For a mistake in the statement, or a function that is not as declared.
    """
    reader = _Reader(text)
    if reader.take("CREATE"):
        replaces = reader.take("OR", "REPLACE")
        is_temporary = reader.take("TEMPORARY")
        _refuse_similar(reader, "CREATE", "AGGREGATE")
        if is_temporary and reader.text.says(reader.at, "AGGREGATE"):
            raise reader.error(
                "an aggregate is not TEMPORARY; leave it out: the aggregate ends with its session, unless "
                "enable(spark, file) keeps it",
                reader.at - 1,
            )
        if reader.take("AGGREGATE") and not is_temporary:
            _create(spark, catalog, reader, replaces=replaces)
        elif reader.take("FUNCTION") and _is_in_python(text):
            _create(spark, catalog, reader, is_aggregate=False, replaces=replaces, is_temporary=is_temporary)
        else:
            _refuse_without_language(reader)
            return None
        return empty_result(spark)
    if reader.take("DROP", "AGGREGATE"):
        _drop(spark, catalog, reader)
        return empty_result(spark)
    if reader.take("DROP", "FUNCTION") or reader.take("DROP", "TEMPORARY", "FUNCTION"):
        return empty_result(spark) if _drop_function(spark, catalog, reader) else None
    if reader.take("SHOW", "AGGREGATES"):
        reader.end()
        return _listing(spark, catalog)
    if reader.take("SHOW", "FOLDFLIGHT", "FUNCTIONS"):
        reader.end()
        return _listing_of_functions(spark, catalog)
    if reader.take("DROP"):
        _refuse_similar(reader, "DROP", "AGGREGATE")
    elif reader.take("SHOW"):
        _refuse_similar(reader, "SHOW", "AGGREGATES")
    elif reader.take("EXPLAIN"):
        _refuse_similar(reader, "EXPLAIN", "FOLDFLIGHT")
    return None


def _refuse_similar(reader: _Reader, verb: str, word: str) -> None:
    """Refuse a misspelt word of our statements. Spark's error would tell its own statements only."""
    word_here = reader.text.upper(reader.at)
    if word_here != word and difflib.get_close_matches(word_here, [word], cutoff=0.8):
        raise reader.error(f"there is no statement {verb} {word_here}; did you mean {verb} {word}?")


def _refuse_without_language(reader: _Reader) -> None:
    """Refuse CREATE FUNCTION name (...) RETURNS type AS 'text'. Spark has AS only directly behind a name."""
    text, has_type = reader.text, False
    for index in text.flat(Span(reader.at, len(text))):
        has_type = has_type or text.says(index, "RETURNS")
        if text.says(index, "RETURN"):
            return
        if has_type and text.says(index, "AS"):
            raise reader.error("LANGUAGE python is expected before AS", index)


def name_of(text: Text) -> str:
    """Return the name of the function that a CREATE statement of a catalogue creates; empty for another statement."""
    reader = _Reader(text)
    if not reader.take("CREATE"):
        return ""
    reader.take("OR", "REPLACE")
    if not (reader.take("AGGREGATE") or reader.take("FUNCTION")):
        return ""
    reader.take("IF", "NOT", "EXISTS")
    return reader.name("the name of a function").lower()


def empty_result(spark: SparkSession) -> DataFrame:
    """Return the result of a statement that has none."""
    return spark.createDataFrame([], "ok string")


def _is_in_python(text: Text) -> bool:
    """Return whether CREATE FUNCTION is a statement of ours, not of Spark."""
    return any(
        text.says(index, "LANGUAGE", "PYTHON")
        or text.says(index, "USING", "LINK")
        or text.tokens[index].kind == "dollar"
        for index in text.flat(Span(0, len(text)))
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
        index = self.at if at is None else at
        return self.text.error(message, Span(index, index + 1))

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

    def end(self, advice: str = "") -> None:
        """Refuse further tokens."""
        if self.at < len(self.text):
            raise self.error(f"the statement should end here{advice}")


@dataclass(frozen=True)
class _Declared:
    """What CREATE AGGREGATE or CREATE FUNCTION declares.

    Args:
        kind: Whether it is an aggregate, a scalar or a table function.
        name: Its name, in lower case.
        name_at: The place of its name.
        types: The types of its arguments.
        returns: The type of its result; for a table function, the struct of its columns.
        append_only: Whether APPEND ONLY is written.
        function: The text behind AS.
        function_at: The place of that text.
        is_source: Whether it is source code.
        link: The URL behind USING LINK. The path of a jar is part of the function.
        link_at: The place of that text.
        is_java: Whether it is in Java.
    """

    kind: FunctionKind
    name: str
    name_at: int
    types: tuple[pa.DataType, ...]
    returns: pa.DataType
    append_only: bool
    function: str
    function_at: int
    is_source: bool
    link: str | None
    link_at: int
    is_java: bool = False

    @property
    def statement(self) -> str:
        """The words with which such a function is created."""
        return "CREATE AGGREGATE" if self.kind is FunctionKind.AGGREGATE else "CREATE FUNCTION"


def _create(
    spark: SparkSession,
    catalog: Catalog,
    reader: _Reader,
    *,
    is_aggregate: bool = True,
    replaces: bool,
    is_temporary: bool = False,
) -> None:
    keeps = reader.take("IF", "NOT", "EXISTS")
    declaration = _read_declaration(reader, is_aggregate=is_aggregate)
    if _is_taken(catalog, declaration, reader) and not replaces:
        if keeps:
            return
        word = "an aggregate" if is_aggregate else "a function"
        raise reader.error(
            f"there is already {word} {declaration.name}; write CREATE OR REPLACE {word.split()[1].upper()}",
            declaration.name_at,
        )
    text = reader.text
    index = declaration.link_at
    try:
        if declaration.link is not None:
            catalog.link(declaration.link)
        index = declaration.function_at
        with catalog.unchanged_on_error():
            handle = _function(catalog, declaration)
            _check(declaration, handle, reader)
            where = declaration.link or ("source" if declaration.is_source else declaration.function)
            # Without comments around it: one at its end would hide the `;` of the catalogue's file.
            statement = "" if is_temporary else text.slice(Span(0, len(text)))
            if is_aggregate:
                entry = Entry(declaration.name, handle, declaration.types, where, statement, declaration.append_only)
                catalog.register(spark, entry)
            else:
                scalar_entry = ScalarEntry(
                    declaration.name, handle, declaration.types, declaration.returns, where, statement
                )
                catalog.register_scalar(spark, scalar_entry)
    except SqlError:
        raise
    except RejectedError as error:
        raise text.error(error.message, Span(index, index + 1), code=error.code) from None


def _is_taken(catalog: Catalog, declaration: _Declared, reader: _Reader) -> bool:
    """Return whether there is a function of this kind and name. Raises SqlError for one of another kind."""
    is_aggregate = declaration.kind is FunctionKind.AGGREGATE
    if declaration.name in (catalog.mapped if is_aggregate else catalog.entries):
        is_, drop = ("a function", "FUNCTION") if is_aggregate else ("an aggregate", "AGGREGATE")
        raise reader.error(
            f"{declaration.name} is the name of {is_}; choose another name, or write DROP {drop} {declaration.name} "
            "before",
            declaration.name_at,
        )
    return declaration.name in (catalog.entries if is_aggregate else catalog.mapped)


def _read_declaration(reader: _Reader, *, is_aggregate: bool) -> _Declared:
    """Read the statement behind CREATE [OR REPLACE] AGGREGATE | FUNCTION [IF NOT EXISTS]."""
    text, name_at = reader.text, reader.at
    word = "aggregate" if is_aggregate else "function"
    name = reader.name(f"the name of the {word}").lower()
    if text.upper(name_at).lower() in GRAMMAR:
        raise reader.error(
            f"{name} is a word of SQL's grammar; choose another name, or write it in backquotes here and in each call: "
            f"{quote_name(name)}",
            name_at,
        )
    if not name.strip():
        raise reader.error(f"the name of the {word} is empty; give it one", name_at)
    if not text.says(reader.at, "("):
        raise reader.error("the types of the arguments are expected here, in parentheses: (BIGINT, INT)")
    closing = text.partner[reader.at]
    types = tuple(_argument_type(text, each) for each in _split_types(text, Span(reader.at + 1, closing)))
    reader.at = closing + 1
    kind = FunctionKind.AGGREGATE
    if is_aggregate:
        returns = _returns(reader, types)
    elif text.says(reader.at, "RETURNS", "TABLE", "("):
        kind, returns = FunctionKind.TABLE, _columns(reader)
    elif text.says(reader.at, "RETURNS"):
        kind, returns = FunctionKind.SCALAR, _returns(reader, types)
    else:
        raise reader.error("RETURNS type or RETURNS TABLE (column type, ...) is expected here")
    append_only = is_aggregate and reader.take("APPEND", "ONLY")
    if is_aggregate and reader.take("APPEND"):
        raise reader.error("ONLY is expected here: APPEND ONLY")
    language = reader.name("a language").lower() if reader.take("LANGUAGE") else "python"
    if language not in (("python", "java") if is_aggregate else ("python",)):
        languages = "an aggregate is python or java" if is_aggregate else "a function is python"
        raise reader.error(f"the language of {languages}", reader.at - 1)
    function, function_at, is_source = name, name_at, False
    if reader.take("AS"):
        function_at = reader.at
        function = reader.string("'function', 'module:Class' or $$ source $$")
        is_source = text.tokens[function_at].kind == "dollar" or "\n" in function
    link, link_at = None, function_at
    if reader.take("USING"):
        if not reader.take("LINK"):
            raise reader.error("LINK 'grpc://host:port' is expected here")
        link_at = reader.at
        link = reader.string("'grpc://host:port'").replace("http://", "grpc://").replace("https://", "grpc+tls://")
    reader.end(f"; the order of the clauses is RETURNS, {'APPEND ONLY, ' * is_aggregate}LANGUAGE, AS, USING LINK")
    is_java = language == "java"
    if is_java and is_source:
        expectation = "a Java class is expected here, compiled: AS 'com.acme.WeightedAvg' USING LINK 'functions.jar'"
        raise reader.error(expectation, function_at)
    if is_java and link is not None and link.lower().endswith(".jar"):
        function, link = f"{link.removeprefix('file://')}::{function}", None
    return _Declared(
        kind, name, name_at, types, returns, append_only, function, function_at, is_source, link, link_at, is_java
    )


def _returns(reader: _Reader, types: tuple[pa.DataType, ...]) -> pa.DataType:
    if not reader.take("RETURNS"):
        if len(types) != 1:
            raise reader.error("RETURNS type is expected here; only with one argument it may be left out")
        return types[0]
    begin = reader.at
    while reader.at < len(reader.text) and reader.text.upper(reader.at) not in _CLAUSES:
        reader.at += 1
    return _type(reader.text, Span(begin, reader.at))


def _columns(reader: _Reader) -> pa.StructType:
    """Read `RETURNS TABLE (column type, ...)`, and return the struct of the columns."""
    text, parenthesis = reader.text, reader.at + 2
    reader.at = text.partner[parenthesis] + 1
    fields: list[pa.Field] = []
    for each in _split_types(text, Span(parenthesis + 1, text.partner[parenthesis])):
        if each.is_empty or not text.tokens[each.start].is_name:
            index = min(each.start, text.partner[parenthesis])
            raise text.error("the name and the type of a column are expected here", Span(index, index + 1))
        name = text.tokens[each.start].name
        if name.lower() in {field.name.lower() for field in fields}:
            raise text.error(f"{name} is the name of two columns; give each its own", Span(each.start, each.start + 1))
        fields.append(pa.field(name, _type(text, Span(each.start + 1, each.stop))))
    if not fields:
        raise text.error("a column is expected here: (word STRING, ...)", Span(parenthesis + 1, parenthesis + 2))
    return pa.struct(fields)


def _split_types(text: Text, span: Span) -> list[Span]:
    """Cut a list of types at its commas. The comma of `MAP<STRING, INT>` is part of a type."""
    types: list[Span] = []
    depth = 0
    for part in text.split(span):
        if depth:
            types[-1] = Span(types[-1].start, part.stop)
        else:
            types.append(part)
        depth += sum({"<": 1, ">": -1}.get(text.upper(index), 0) for index in text.flat(part))
    return types


def _argument_type(text: Text, span: Span) -> pa.DataType:
    """Return the type in `[argument] type`."""
    try:
        return _type(text, span)
    except SqlError:
        if len(span.indexes) < 2 or not text.tokens[span.start + 1].is_name:
            raise
        return _type(text, Span(span.start + 1, span.stop))


def _type(text: Text, span: Span) -> pa.DataType:
    """Return a type as Spark names it: its TIMESTAMP has a zone."""
    if span.is_empty:
        raise text.error("a type is expected here", Span(span.start, span.start + 1))
    words = [text.tokens[index].text for index in span.indexes]
    zoned_words = [
        "TIMESTAMPTZ" if word.upper() == "TIMESTAMP" and after.upper() not in ("WITH", "WITHOUT") else word
        for word, after in zip(words, [*words[1:], ""], strict=True)
    ]
    try:
        return parse_type(" ".join(zoned_words))
    except RejectedError as error:
        raise text.error(error.message.replace("TIMESTAMPTZ", "TIMESTAMP"), span) from None


def _function(catalog: Catalog, declaration: _Declared) -> FunctionHandle:
    """Return the function that a statement names. Raises RejectedError."""
    if declaration.is_java:
        return _java_function(catalog, declaration)
    is_own = declaration.is_source or ":" in declaration.function
    if is_own and declaration.name in Registry():
        raise RejectedError(
            "SIGNATURE",
            f"{declaration.name} is the name of a built-in function of foldflight; choose another name, such as "
            f"my_{declaration.name}",
            function=declaration.name,
        )
    is_embedded = declaration.link is None and (declaration.is_source or ":" in declaration.function)
    if not is_embedded:
        catalog.release(declaration.name)
    if declaration.link is not None:
        functions = catalog.link(declaration.link)
        if declaration.is_source:
            return functions.register(_of_source(declaration))[declaration.name]
        if ":" in declaration.function:
            return _link(functions, _of_module(declaration), declaration)
        return functions[declaration.function]
    if declaration.is_source:
        function = _of_source(declaration)
    elif ":" in declaration.function:
        function = replace(_of_module(declaration), name=declaration.name)
    else:
        return catalog.embedded_functions[declaration.function]
    if isinstance(function, Function):
        return catalog.embed(declaration.name, function)
    return connect(function)[declaration.name]


def _java_function(catalog: Catalog, declaration: _Declared) -> FunctionHandle:
    """Return the function of a Java class: of a jar, or of a server that serves it or is sent the jar."""
    jar, _, class_name = declaration.function.rpartition("::")
    link = declaration.link
    if link is not None and not jar:
        catalog.release(declaration.name)
        return catalog.link(link)[JAVA.load().function_name(class_name)]
    function = replace(java_functions([class_name], jar or None)[0], name=declaration.name)
    if link is None:
        return catalog.embed(declaration.name, function)
    catalog.release(declaration.name)
    return catalog.link(link).register(function)[declaration.name]


def _link(functions: Functions, function: AnyFunction, declaration: _Declared) -> FunctionHandle:
    """Return a function of a module on a server: the server's own function of this name, or a bundle of it.

    Raises:
        RejectedError: SIGNATURE, if the server's function of this name is another version; SETTINGS and the other
            errors of `Functions.register`, if it has none and takes no bundles.
    """
    served_info = next((info for info in functions.transport.infos() if info.name == function.name), None)
    if served_info is None:
        return functions.register(replace(function, name=declaration.name))[declaration.name]
    if (served_info.signature, served_info.version) != (function.signature, function.version):
        raise RejectedError(
            "SIGNATURE",
            f"the server has {served_info.signature} in version {served_info.version}, and {declaration.function} is "
            f"{function.signature} in version {function.version}; write AS '{function.name}' for the server's, "
            "or give yours another name",
            function=function.name,
        )
    return FunctionHandle(served_info, functions.transport)


def _of_module(declaration: _Declared) -> AnyFunction:
    module_name, _, object_name = declaration.function.partition(":")
    if not module_name or not object_name:
        raise RejectedError("MODULE", f"{declaration.function!r} names no function of a module; write 'module:Class'")
    module = import_module(module_name)
    source = getattr(module, object_name, None)
    if source is None:
        names = ", ".join(each.source.__name__ for each in Registry.load([module]).authored)
        raise RejectedError("MODULE", f"{module_name} has no function or class {object_name}; it has {names}")
    if declaration.kind is FunctionKind.AGGREGATE and isinstance(source, type) and function_of(source) is None:
        return _of_class(source, declaration)
    return _only(Registry.load([source]), declaration.function)


def _of_class(cls: type, declaration: _Declared) -> Function:
    """Return the function of a class without a decorator: the statement declares what the decorator would."""
    return aggregate_of(cls, input_types=declaration.types, result_type=declaration.returns, name=declaration.name)


def _only(registry: Registry, what: str) -> AnyFunction:
    if len(registry.authored) != 1:
        names = ", ".join(function.name for function in registry.authored)
        raise RejectedError("SIGNATURE", f"{what} has {len(registry.authored)} functions ({names}); give one")
    return registry.authored[0]


def _of_source(declaration: _Declared) -> AnyFunction:
    """Return the only function of source code: a decorated object, a class, or functions as RisingWave has them.

    The source is executed in this process. Its module has a name of its own for each text, so that a replaced function
    does not change results that use the one before.
    """
    code = textwrap.dedent(declaration.function)
    digest = hashlib.sha256(code.encode()).hexdigest()[:8]
    plain = re.sub(r"\W", "_", declaration.name)  # with a dot in the name, pickle would look for a package
    module = ModuleType(f"foldflight_sql_{plain}_{digest}")
    file = f"<{declaration.statement} {declaration.name}>"
    sys.modules[module.__name__] = module
    linecache.cache[file] = (len(code), None, code.splitlines(keepends=True), file)
    try:
        exec(compile(code, file, "exec"), module.__dict__)  # noqa: S102 - the user's own code is what the statement gives
    except FoldflightError:
        raise
    except Exception as error:  # noqa: BLE001 - whatever the user's code raises
        line = f", line {error.lineno}" if isinstance(error, SyntaxError) else ""
        raise RejectedError("MODULE", f"the source cannot be executed{line}: {type(error).__name__}: {error}") from None
    if declaration.kind is not FunctionKind.AGGREGATE:
        _decorate(module, declaration)
    elif (aggregate := _aggregate_in(module, declaration)) is not None:
        return aggregate
    try:
        return replace(_only(Registry.load([module]), "the source"), name=declaration.name)
    except RejectedError as error:
        raise RejectedError(error.code, error.message.replace(f"module {module.__name__}", "the source")) from None


def _decorate(module: ModuleType, declaration: _Declared) -> None:
    """Register the function or class with the declared name, if the source has no decorator."""
    own = [each for each in vars(module).values() if getattr(each, "__module__", None) == module.__name__]
    if any(function_of(each) is not None for each in own):
        return
    same_named = [each for each in own if each.__name__.lower() == declaration.name]
    if not same_named and own:
        raise RejectedError(
            "SIGNATURE",
            f"the source defines {_names_of(own)}, and none is named {declaration.name}; give the def or class the "
            "name of the statement",
        )
    if not same_named:
        return
    target = same_named[0]
    if declaration.kind is FunctionKind.TABLE:
        columns = {field.name: field.type for field in declaration.returns}
        udtf(input_types=declaration.types, result_types=columns, name=declaration.name)(target)
    else:
        udf(input_types=declaration.types, result_type=declaration.returns, name=declaration.name)(target)


_STATE_FUNCTIONS: Final = ("create_state", "accumulate", "retract", "merge", "finish")


def _aggregate_in(module: ModuleType, declaration: _Declared) -> Function | None:
    """Return the aggregate of source code without a decorator; None if there is none."""
    own = [each for each in vars(module).values() if getattr(each, "__module__", None) == module.__name__]
    classes = [each for each in own if isinstance(each, type)]
    if any(function_of(each) is not None for each in classes):
        return None
    if "create_state" in vars(module):
        state_functions = {name: staticmethod(each) for name, each in vars(module).items() if name in _STATE_FUNCTIONS}
        aggregate = type("Aggregate", (), {**state_functions, "__module__": module.__name__})
        setattr(module, aggregate.__name__, aggregate)
        return _of_class(aggregate, declaration)
    candidates = [each for each in classes if each.__name__.lower() == declaration.name.replace("_", "")] or classes
    if len(candidates) > 1:
        class_name = "".join(part.capitalize() for part in declaration.name.split("_"))
        raise RejectedError(
            "SIGNATURE",
            f"the source has the classes {_names_of(candidates)}, and it is unclear which is {declaration.name}; name "
            f"it {class_name}, or write @udaf above it",
        )
    if not candidates and own:
        raise RejectedError(
            "SIGNATURE",
            f"the source defines {_names_of(own)}, which is no aggregate; define a class, or the functions "
            "create_state, accumulate and finish",
        )
    return _of_class(candidates[0], declaration) if candidates else None


def _names_of(definitions: Sequence[Callable[..., object]]) -> str:
    return ", ".join(each.__name__ for each in definitions)


_ADVICE: Final = {
    FunctionKind.AGGREGATE: "is an aggregate; write CREATE AGGREGATE",
    FunctionKind.SCALAR: "is a scalar function; write CREATE FUNCTION name(type, ...) RETURNS type LANGUAGE python",
    FunctionKind.TABLE: "is a table function; write CREATE FUNCTION name(type, ...) RETURNS TABLE (column type, ...)",
}


def _check(declaration: _Declared, handle: FunctionHandle, reader: _Reader) -> None:
    """Check the kind, the declared types and APPEND ONLY against the function. Raises SqlError."""
    info = handle.info
    if info.kind is not declaration.kind:
        raise reader.error(f"{info.signature} {_ADVICE[info.kind]}", declaration.function_at)
    if info.input_types is not None:
        input_types = [parse_type(each) for each in info.for_types(declaration.types).input_types or ()]
        input_types = input_types[: max(info.inputs_min, len(declaration.types))]
        if input_types != list(declaration.types):
            raise reader.error(
                f"{info.signature} takes ({', '.join(map(spark_name, input_types))}), and "
                f"({', '.join(map(spark_name, declaration.types))}) is declared",
                declaration.name_at,
            )
    required_names = [each.name for each in info.parameters if each.required]
    if not required_names:  # direct arguments may decide the type of the result
        result = _result_type(declaration, handle)
        if result != declaration.returns:
            raise reader.error(
                f"{declaration.name} returns {_type_text(result, declaration)}, and "
                f"{_type_text(declaration.returns, declaration)} is declared",
                declaration.name_at,
            )
    if declaration.kind is FunctionKind.AGGREGATE and not info.retract and not declaration.append_only:
        raise reader.error(
            f"{declaration.name} has no retract, so rows cannot be taken back; declare it: write APPEND ONLY before "
            "LANGUAGE or AS, or define retract",
            declaration.name_at,
        )


def _result_type(declaration: _Declared, handle: FunctionHandle) -> pa.DataType:
    """Return the type of the function's result for the declared types. Raises RejectedError."""
    columns = [pa.field(str(index), type_) for index, type_ in enumerate(declaration.types)]
    if declaration.kind is FunctionKind.AGGREGATE:
        call = Call(handle.name, tuple(each.name for each in columns))
        open_request = Open((call,), pa.schema([pa.field(SLOT, pa.int32()), *columns]), returns=Returns(states=False))
    else:
        step = Step(handle.name, tuple(StepArgument(column=each.name) for each in columns))
        open_request = Open((), pa.schema(columns or [pa.field(REAL, pa.bool_())]), steps=(step,), outputs=(0,))
    return handle.transport.describe(open_request).schema.field("output_0").type


def _type_text(type_: pa.DataType, declaration: _Declared) -> str:
    if declaration.kind is not FunctionKind.TABLE:
        return spark_name(type_)
    return f"TABLE ({_columns_shown(type_)})"


def _drop(spark: SparkSession, catalog: Catalog, reader: _Reader) -> None:
    may_miss = reader.take("IF", "EXISTS")
    index = reader.at
    name = reader.name("the name of an aggregate").lower()
    if reader.text.says(reader.at, "("):  # DROP AGGREGATE name(types), as in the RFC
        reader.at = reader.text.partner[reader.at] + 1
    reader.end()
    if name in catalog.entries:
        try:
            catalog.drop(spark, name)
        except RejectedError as error:
            raise reader.error(error.message, index) from None
    elif name in catalog.mapped:
        raise reader.error(f"{name} is a scalar or table function; write DROP FUNCTION {name}", index)
    elif not may_miss:
        close = catalog.closest(name)
        hint = f"; did you mean {close}?" if close else ""
        raise reader.error(f"there is no aggregate {name}{hint}", index)


def _drop_function(spark: SparkSession, catalog: Catalog, reader: _Reader) -> bool:
    """Drop a scalar or table function, and return whether it was one of the catalogue."""
    reader.take("IF", "EXISTS")
    token = reader.next_token()
    name = token.name.lower() if token is not None and token.is_name else ""
    if name in catalog.entries:
        raise reader.error(f"{name} is an aggregate; write DROP AGGREGATE {name}")
    if name not in catalog.mapped or reader.text.says(reader.at + 1, "."):
        return False
    reader.at += 1
    reader.end()
    catalog.drop(spark, name)
    return True


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


def _listing_of_functions(spark: SparkSession, catalog: Catalog) -> DataFrame:
    rows = [
        (
            entry.name,
            _columns_shown(entry.arguments),
            f"TABLE ({_columns_shown(entry.returns)})" if entry.is_table else spark_name(entry.returns),
            entry.where,
        )
        for entry in sorted(catalog.mapped.values(), key=lambda entry: entry.name)
    ]
    return spark.createDataFrame(rows, "name string, arguments string, returns string, `where` string")


def _columns_shown(columns: pa.StructType) -> str:
    return ", ".join(f"{field.name} {spark_name(field.type)}" for field in columns)
