"""Read a class of a jar by reflection into a `Function`, and call its methods.

A class is a function if it is public and has the public methods `createAccumulator`, `accumulate` and `getValue`;
`retract`, `merge`, `open`, `close`, `isDeterministic`, and `serialize` with `deserialize` are optional. It need not
implement an interface of ours, so classes that were written for Flink qualify.

Functions of jars have names such as `functions.jar::com.acme.WeightedAvg`.
"""

from __future__ import annotations

import datetime
import decimal
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

import pyarrow as pa

from foldflight.errors import FunctionError, RejectedError
from foldflight.ext.java.bridge import UnknownType, Value, bridge_of, has_loop, hint_of, into_object, value_of
from foldflight.ext.java.jvm import Jar, java, limit_heap, loaders
from foldflight.functions.author.declarations import snake_case
from foldflight.functions.author.spec import Capabilities, Function, Methods, Parameter
from foldflight.functions.types.serializer import StateSerializer, serializer_of_type
from foldflight.functions.types.values import CastError

_METHODS: Final = ("accumulate", "retract", "merge", "getValue", "createAccumulator", "open", "close", "serialize")
_ITERABLE: Final = "java.lang.Iterable"
_FLINK: Final = "org.apache.flink."
# The Python class of direct arguments by Arrow type, against which values in queries are checked.
_PYTHON: Final[tuple[tuple[Callable[[pa.DataType], bool], type], ...]] = (
    (pa.types.is_boolean, bool),
    (pa.types.is_integer, int),
    (pa.types.is_floating, float),
    (pa.types.is_string, str),
    (pa.types.is_binary, bytes),
    (pa.types.is_decimal, decimal.Decimal),
    (pa.types.is_date, datetime.date),
)


@dataclass(frozen=True)
class JavaField:
    """One public field of an accumulator, or one component of a record."""

    name: str
    value: Value
    part: Any


@dataclass(frozen=True)
class Accumulator:
    """The description of the class of accumulators.

    Args:
        type: The `java.lang.Class`.
        arrow: The type of its typed states; None if they are not typed.
        reason: The reason for the codec of its states.
        out: Converts an accumulator to a plain Python value of that type.
        into: Converts a plain Python value to an accumulator.
        is_immutable: Whether it cannot be changed in place.
        fields: Its fields, if it is an object; empty otherwise.
    """

    type: Any
    arrow: pa.DataType | None
    reason: str
    out: Callable[[Any], Any]
    into: Callable[[Any], Any]
    is_immutable: bool = False
    is_record: bool = False
    fields: tuple[JavaField, ...] = ()


@dataclass(frozen=True)
class JavaForm:
    """Creates the methods of a Java class. It is sent to other processes with the bytes of the jar."""

    jar: Jar
    class_name: str

    def __call__(self, literals: Mapping[str, Any]) -> Methods:
        return load_class(self.jar, self.class_name).bound_methods(literals)


class JavaSerializer(StateSerializer):
    """Converts accumulators of a Java class to the typed states that a Python class with the same attributes has."""

    def __init__(self, jar: Jar, class_name: str, arrow: pa.DataType, *, immutable: bool) -> None:
        self.jar = jar
        self.class_name = class_name
        self.arrow = arrow
        self.immutable = immutable

    def to_arrow(self, values: Sequence[Any]) -> pa.Array:
        out = load_class(self.jar, self.class_name).accumulator.out
        plain = []
        for index, value in enumerate(values):
            try:
                plain.append(None if value is None else out(value))
            except (ValueError, OverflowError) as error:  # for example a date in the year 10000
                raise CastError(index, "RESULT_TYPE", str(error)) from None
        return _plain_serializer(self.arrow).to_arrow(plain)

    def from_arrow(self, array: pa.Array) -> list[Any]:
        author = load_class(self.jar, self.class_name)
        into = author.accumulator.into
        try:
            return [None if value is None else into(value) for value in _plain_serializer(self.arrow).from_arrow(array)]
        except author.jpype.JException as error:  # raised by the constructor of a record
            raise ValueError(str(error)) from error


@functools.lru_cache(maxsize=64)
def _plain_serializer(arrow: pa.DataType) -> StateSerializer:
    return serializer_of_type(arrow)


class JavaAuthor:
    """The base of Python classes that represent Java classes. Creating an instance checks the direct arguments."""

    form: JavaForm

    def __init__(self, **literals: Any) -> None:
        self.form(literals)


def function_name(class_name: str) -> str:
    """Return the name of the function of a Java class: `com.acme.WeightedAvg` is `weighted_avg`."""
    return snake_case(class_name.rpartition(".")[2].rpartition("$")[2])


def function_in(jar: Jar, class_name: str) -> Function:
    """Return the function of a Java class. Its name is the class name in snake case.

    Raises:
        RejectedError: MODULE, if the class is not in the jar or cannot be loaded; SIGNATURE, for a class that is not a
            function, with the method and the remedy.
    """
    return load_class(jar, class_name).function


@functools.lru_cache(maxsize=256)
def load_class(jar: Jar, class_name: str) -> JavaClass:
    """Return a class after loading it in this process. Raises the errors of `function_in`."""
    return JavaClass(jar, class_name)


@dataclass
class JavaClass:
    """A Java class that is a function, in this process.

    Args:
        jar: Its jar.
        name: Its name in Java.

    Raises:
        RejectedError: As `function_in`.
    """

    jar: Jar
    name: str
    jpype: Any = field(init=False, repr=False)
    function: Function = field(init=False, repr=False)
    accumulator: Accumulator = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.jpype = java()
        self.loops = loaders(self.jar).loops
        self.type = self._load()
        self.short = self.name.rpartition(".")[2].replace("$", ".")
        try:
            self._read()
        except self.jpype.JClass("java.lang.NoClassDefFoundError") as error:
            raise RejectedError(
                "MODULE",
                f"the Java class {self.name} needs a class that is not in {self.jar.name}: {error.toString()}; build "
                "a jar with everything that it needs",
            ) from None
        except self.jpype.JException as error:
            raise RejectedError(
                "MODULE",
                f"the Java class {self.name} of {self.jar.name} cannot be loaded: {error.getCause() or error}; it is "
                "raised by its constructor or by the values of its static fields",
            ) from None

    def _read(self) -> None:
        """Read the class by reflection. It may raise exceptions of Java."""
        if not _is_public(self.jpype, self.type):
            raise self.error(" is not public", "declare it as a public class, or as a public static nested class")
        if self.jpype.JClass("java.lang.reflect.Modifier").isAbstract(self.type.getModifiers()):
            raise self.error(" is abstract", "name a class that extends it")
        self.methods = {method_name: self._method(method_name) for method_name in _METHODS}
        create, accumulate, get_value = (self._require(v) for v in ("createAccumulator", "accumulate", "getValue"))
        self.literals = self._direct_arguments()
        self.accumulator = self._accumulator(create)
        self.inputs = self._arguments(accumulate)
        result = self._value("getValue", "the result", create=get_value)
        self.result = result
        self._check_methods()
        self.function = self._function(result)

    def error(self, wrong: str, remedy: str) -> RejectedError:
        """Return the error for a mistake of the author, with its remedy."""
        return RejectedError(
            "SIGNATURE", f"the Java class {self.name}{wrong}; {remedy}", function=function_name(self.name)
        )

    # --- reflection -----------------------------------------------------------------------------------------------

    def _load(self) -> Any:
        throwable = self.jpype.JClass("java.lang.Throwable")
        try:
            return loaders(self.jar).authors.loadClass(self.name)
        except self.jpype.JClass("java.lang.ClassNotFoundException"):
            raise RejectedError(
                "MODULE",
                f"there is no Java class {self.name} in {self.jar.name}{self._similar()}; write its package, too, and "
                "a nested class as Outer$Inner",
            ) from None
        except throwable as error:
            raise RejectedError(
                "MODULE",
                f"the Java class {self.name} of {self.jar.name} cannot be loaded: {error.toString()}; build the jar "
                f"for Java {self.jpype.JClass('java.lang.System').getProperty('java.specification.version')} or "
                "older, with all classes that it needs",
            ) from None

    def _similar(self) -> str:
        import io
        import zipfile

        try:
            with zipfile.ZipFile(io.BytesIO(self.jar.code)) as file:
                names = [name[:-6].replace("/", ".") for name in file.namelist() if name.endswith(".class")]
        except zipfile.BadZipFile:
            return ", which is not a jar"
        simple = self.name.rpartition(".")[2]
        close = [name for name in names if name.rpartition(".")[2] == simple] or names[:5]
        return f" (it has {', '.join(sorted(close))})" if close else " (it has no class)"

    def _method(self, method_name: str) -> Any:
        """Return the only public method of this name, or None. Raises RejectedError SIGNATURE if it is overloaded."""
        candidates = [each for each in self.type.getMethods() if str(each.getName()) == method_name]
        # Methods of Flink's base class do nothing, and some have parameters that only Flink can pass.
        candidates = [each for each in candidates if not str(each.getDeclaringClass().getName()).startswith(_FLINK)]
        methods = [each for each in candidates if not each.isBridge()] or [_bridge_target(each) for each in candidates]
        if len(methods) > 1:
            texts = ", ".join(sorted(f"{method_name}({_types(each)})" for each in methods))
            raise self.error(
                f" has {len(methods)} public methods {method_name}: {texts}",
                "a function has one signature: leave one public, and put the others into classes of their own",
            )
        return methods[0] if methods else None

    def _require(self, method_name: str) -> Any:
        if self.methods[method_name] is None:
            raise self.error(f" has no public method {method_name}", f"define public ... {method_name}(...)")
        return self.methods[method_name]

    def _value(self, method_name: str, what: str, *, create: Any) -> Value:
        """Return the conversion of the result of a method."""
        try:
            return value_of(self.jpype, create.getGenericReturnType(), hint_of(create.getAnnotations()))
        except UnknownType as why:
            raise self.error(f".{method_name}, {what}: {why}", "change its type") from None

    def _direct_arguments(self) -> tuple[tuple[Parameter, Value], ...]:
        """Return the parameters of the only public constructor; none if there is one without parameters."""
        constructors = list(self.type.getConstructors())
        if any(each.getParameterCount() == 0 for each in constructors):
            return ()
        if len(constructors) != 1:
            raise self.error(
                f" has {len(constructors)} public constructors with parameters"
                if constructors
                else " has no public constructor",
                "define one without parameters, or exactly one whose parameters are the direct arguments",
            )
        arguments = []
        for each in constructors[0].getParameters():
            if not each.isNamePresent():
                raise self.error(
                    f" has no constructor without parameters, and the names of ({_types(constructors[0])}) are unknown",
                    "define one without parameters, or compile it with javac -parameters",
                )
            try:
                value = value_of(self.jpype, each.getParameterizedType(), hint_of(each.getAnnotations()))
            except UnknownType as why:
                raise self.error(f", direct argument {each.getName()}: {why}", "change its type") from None
            python = next((python for fits, python in _PYTHON if fits(value.arrow)), Any)
            annotation = getattr(python, "__name__", "")
            arguments.append((Parameter(str(each.getName()), True, None, annotation, python), value))
        return tuple(arguments)

    def _accumulator(self, create: Any) -> Accumulator:
        type_ = create.getReturnType()
        if str(type_.getName()) == "void":
            raise self.error(".createAccumulator returns nothing", "return a new accumulator")
        try:
            value = value_of(self.jpype, create.getGenericReturnType())
        except UnknownType:
            return self._object(type_)
        into = into_object(self.jpype, value)
        return Accumulator(type_, value.arrow, f"it is {value.java}", value.out, into, value.is_immutable)

    def _object(self, type_: Any) -> Accumulator:
        """Return the description of accumulators that are objects."""
        if not _is_public(self.jpype, type_):
            raise self.error(f": its accumulator {type_.getName()} is not public", "declare it as public static")
        fields, why = self._fields(type_)
        make = self.jpype.JClass(type_)
        names = tuple(each.name for each in fields)
        if why:
            return Accumulator(type_, None, why, _identity, _identity)
        arrow = pa.struct([(each.name, each.value.arrow) for each in fields])
        intos = [into_object(self.jpype, each.value) for each in fields]
        outs = [each.value.out for each in fields]
        # By reflection, because JPype renames members whose names are keywords of Python, such as `from`.
        reads = [each.part.getAccessor().invoke if type_.isRecord() else each.part.get for each in fields]

        def read(value: Any) -> dict[str, Any]:
            return {name: out(get(value)) for name, out, get in zip(names, outs, reads, strict=True)}

        if type_.isRecord():

            def write(plain: Mapping[str, Any]) -> Any:
                return make(*[into(plain[name]) for name, into in zip(names, intos, strict=True)])

        else:
            sets = [each.part.set for each in fields]

            def write(plain: Mapping[str, Any]) -> Any:
                java_object = make()
                for name, into, put in zip(names, intos, sets, strict=True):
                    put(java_object, into(plain[name]))
                return java_object

        is_record = bool(type_.isRecord())
        return Accumulator(type_, arrow, "its public fields", read, write, is_record, is_record, fields)

    def _fields(self, type_: Any) -> tuple[tuple[JavaField, ...], str]:
        """Return the fields of a typed state, and an empty reason, or the reason why the state is not typed."""
        modifier = self.jpype.JClass("java.lang.reflect.Modifier")
        fields: list[JavaField] = []
        if type_.isRecord():
            parts = [(part, part.getGenericType()) for part in type_.getRecordComponents()]
        else:
            declared_fields: list[Any] = []
            cls = type_
            while cls is not None and str(cls.getName()) != "java.lang.Object":
                own = [each for each in cls.getDeclaredFields() if not modifier.isStatic(each.getModifiers())]
                declared_fields, cls = own + declared_fields, cls.getSuperclass()
            stored_fields = [each for each in declared_fields if not modifier.isTransient(each.getModifiers())]
            for each in stored_fields:
                if not modifier.isPublic(each.getModifiers()) or modifier.isFinal(each.getModifiers()):
                    return (), f"its field {each.getName()} is final or not public"
            if modifier.isAbstract(type_.getModifiers()):
                return (), f"{type_.getSimpleName()} is abstract"
            if not any(each.getParameterCount() == 0 for each in type_.getConstructors()):
                return (), f"{type_.getSimpleName()} has no public constructor without parameters"
            names = [str(each.getName()) for each in stored_fields]
            if len(set(names)) < len(names):
                return (), f"{type_.getSimpleName()} has a field of the same name as one of its superclass"
            for each in stored_fields:
                each.setAccessible(True)  # the field may belong to a superclass that is not public
            parts = [(each, each.getGenericType()) for each in stored_fields]
        if not parts:
            return (), f"{type_.getSimpleName()} has no public field"
        for part, generic in parts:
            try:
                value = value_of(self.jpype, generic, hint_of(part.getAnnotations()))
            except UnknownType as why:
                return (), f"its field {part.getName()}: {why}"
            fields.append(JavaField(str(part.getName()), value, part))
        return tuple(fields), ""

    def _arguments(self, method: Any) -> tuple[Value, ...]:
        """Return the conversions of the parameters of `accumulate` after the accumulator."""
        parameters = list(method.getParameters())
        if not parameters or not parameters[0].getType().isAssignableFrom(self.accumulator.type):
            raise self.error(
                f".accumulate({_types(method)}) does not take the accumulator first",
                f"declare it as accumulate({self.accumulator.type.getSimpleName()} accumulator, ...)",
            )
        values = []
        for index, each in enumerate(parameters[1:], 1):
            try:
                values.append(value_of(self.jpype, each.getParameterizedType(), hint_of(each.getAnnotations())))
            except UnknownType as why:
                raise self.error(f".accumulate, argument {index}: {why}", "change its type") from None
        return tuple(values)

    def _check_methods(self) -> None:
        """Check that the signatures of the other methods fit `accumulate` and the accumulator."""
        accumulate, retract, merge = (self.methods[method_name] for method_name in ("accumulate", "retract", "merge"))
        name = self.accumulator.type.getSimpleName()
        if retract is not None and _generic(retract) != _generic(accumulate):
            raise self.error(
                f".retract({_types(retract)}) does not take what accumulate({_types(accumulate)}) takes",
                "give both the same parameters",
            )
        if merge is not None:
            types = [str(each.getName()) for each in merge.getParameterTypes()]
            own = str(self.accumulator.type.getName())
            if len(types) != 2 or types[0] != own or types[1] not in (own, _ITERABLE):
                raise self.error(
                    f".merge({_types(merge)}) does not take two accumulators",
                    f"declare it as merge({name} accumulator, {name} other), or with Iterable<{name}>",
                )
        for method_name in ("accumulate", "retract", "merge"):
            method = self.methods[method_name]
            if method is None:
                continue
            return_type = str(method.getReturnType().getName())
            if return_type == "void" and self.accumulator.is_immutable:
                raise self.error(
                    f".{method_name} returns nothing, but an accumulator of type {name} cannot change in place",
                    f"return the new {name}",
                )
            if return_type not in ("void", str(self.accumulator.type.getName())):
                raise self.error(f".{method_name} returns {return_type}", f"return nothing, or the accumulator, {name}")
        if self.methods["open"] is not None and _types(self.methods["open"]) not in ("", "Map"):
            raise self.error(
                f".open({_types(self.methods['open'])}) takes what foldflight does not have",
                "declare it as open(), or as open(Map<String, String> jobParameters)",
            )

    def _function(self, result: Value) -> Function:
        codec, reason = self._codec()
        methods, accumulator = self.methods, self.accumulator
        nulls = {each.is_primitive for each in self.inputs}
        return Function(
            name=self._constant("NAME") or function_name(self.name),
            declared_version=self._constant("VERSION") or "1",
            doc=f"The Java class {self.name} of {self.jar.name}.",
            cls=type(
                self.short.rpartition(".")[2],
                (JavaAuthor,),
                {
                    "__module__": self.name.rpartition(".")[0] or "java",
                    "__qualname__": self.short,
                    "form": JavaForm(self.jar, self.name),
                },
            ),
            instantiate=JavaForm(self.jar, self.name),
            input_names=self._input_names(),
            declared_inputs=tuple(each.arrow for each in self.inputs),
            declared_result=result.arrow,
            declared_state=None,
            serializer=(
                JavaSerializer(self.jar, self.name, accumulator.arrow, immutable=accumulator.is_immutable)
                if codec == "typed" and accumulator.arrow is not None
                else None
            ),
            accumulator_class=None,
            # A primitive parameter cannot be null. If only some are primitive, the calls skip these rows themselves.
            skip_nulls=nulls == {True},
            capabilities=Capabilities(
                retract=methods["retract"] is not None,
                merge=methods["merge"] is not None,
                invertible=False,
                deterministic=self._is_deterministic(),
                codec=codec,
                codec_reason=reason,
            ),
            parameters=tuple(parameter for parameter, _ in self.literals),
            returns=self._returns(),
            compile=False,
            language="java",
        )

    def _codec(self) -> tuple[Literal["typed", "custom", "pickle"], str]:
        if self.methods["serialize"] is not None:
            self._check_own_states()
            return "custom", "the class defines serialize and deserialize"
        if self.accumulator.arrow is not None:
            return "typed", self.accumulator.reason
        serializable = self.jpype.JClass("java.io.Serializable").class_
        if not serializable.isAssignableFrom(self.accumulator.type) or self.loops is None:
            raise self.error(
                f": the state of its accumulator is not typed ({self.accumulator.reason})",
                "give it public fields of known types and a public constructor without parameters, define serialize "
                "and deserialize, or implement java.io.Serializable"
                + ("" if self.loops is not None else " (which needs an installation with Loops.class)"),
            )
        return "pickle", f"it is serialized by Java: {self.accumulator.reason}"

    def _check_own_states(self) -> None:
        serialize, deserialize = self.methods["serialize"], self._method("deserialize")
        name = self.accumulator.type.getSimpleName()
        if deserialize is None:
            raise self.error(" has serialize but no deserialize", "define it: deserialize(byte[] serialized)")
        own = str(self.accumulator.type.getName())
        for method, takes, gives, remedy in (
            (serialize, own, "[B", f"byte[] serialize({name} accumulator)"),
            (deserialize, "[B", own, f"{name} deserialize(byte[] serialized)"),
        ):
            types = [str(each.getName()) for each in method.getParameterTypes()]
            if types != [takes] or str(method.getReturnType().getName()) != gives:
                signature = f"{method.getReturnType().getSimpleName()} {method.getName()}({_types(method)})"
                raise self.error(f" has {signature}, which is not for its states", f"declare it as {remedy}")

    def _input_names(self) -> tuple[str, ...]:
        parameters = list(self.methods["accumulate"].getParameters())[1:]
        return tuple(
            str(each.getName()) if each.isNamePresent() else f"argument{index}"
            for index, each in enumerate(parameters, 1)
        )

    def _returns(self) -> Literal["some", "may"]:
        author_methods = [
            self.methods[method_name]
            for method_name in ("accumulate", "retract", "merge")
            if self.methods[method_name] is not None
        ]
        return "may" if any(str(each.getReturnType().getName()) == "void" for each in author_methods) else "some"

    def _constant(self, name: str) -> str:
        """Return the text of a public static field; empty if there is none."""
        modifier = self.jpype.JClass("java.lang.reflect.Modifier")
        for each in self.type.getFields():
            if str(each.getName()) == name and modifier.isStatic(each.getModifiers()):
                return str(each.get(None) or "")
        return ""

    def _is_deterministic(self) -> bool:
        if self._method("isDeterministic") is None or self.literals:
            return True
        return bool(self.jpype.JClass(self.type)().isDeterministic())

    # --- calls ----------------------------------------------------------------------------------------------------

    def instance(self, literals: Mapping[str, Any]) -> Any:
        """Return a new instance with the direct arguments."""
        arguments = [
            literals[parameter.name] if value.into is None else value.into(literals[parameter.name])
            for parameter, value in self.literals
        ]
        return self.jpype.JClass(self.type)(*arguments)

    def bound_methods(self, literals: Mapping[str, Any]) -> Methods:
        """Return the methods of a new instance."""
        java()  # raises after a fork, and registers the thread, so that it is detached when it ends
        instance, methods, out = self.instance(literals), self.methods, self.result.out
        get_value, create = instance.getValue, instance.createAccumulator

        def create_checked() -> Any:
            accumulator = create()
            if accumulator is None:
                raise self._badly_created("null; return a new accumulator")
            if self.accumulator.fields and accumulator.getClass() != self.accumulator.type:
                name = self.accumulator.type.getSimpleName()
                raise self._badly_created(
                    f"a {accumulator.getClass().getName()}; the state would lose what {name} has not"
                )
            return accumulator

        return Methods(
            create_accumulator=create_checked,
            accumulate=self._with_conversion(instance.accumulate),
            get_value=lambda accumulator: out(get_value(accumulator)),
            retract=None if methods["retract"] is None else self._with_conversion(instance.retract),
            merge=None if methods["merge"] is None else self._merge_method(instance.merge),
            open=None if methods["open"] is None else self._open_method(instance.open),
            close=None if methods["close"] is None else instance.close,
            loops=None if self.loops is None or not has_loop(self.inputs) else bridge_of(self.loops, instance, self),
            **self._state_methods(instance),
        )

    def _badly_created(self, what: str) -> FunctionError:
        return FunctionError("RESULT_TYPE", f"createAccumulator returned {what}", function=self.function.name)

    def _with_conversion(self, method: Any) -> Any:
        """Return `accumulate` or `retract` with conversion of its arguments; the method itself if it needs none."""
        intos = [each.into for each in self.inputs]
        primitive = [index for index, each in enumerate(self.inputs) if each.is_primitive]
        skips = bool(primitive) and len(primitive) < len(intos)
        if not skips and not any(intos):
            return method

        def call(accumulator: Any, *arguments: Any) -> Any:
            if skips and any(arguments[index] is None for index in primitive):
                return accumulator
            converted_arguments = [
                value if into is None else into(value) for value, into in zip(arguments, intos, strict=True)
            ]
            return method(accumulator, *converted_arguments)

        return call

    def _merge_method(self, method: Any) -> Any:
        if str(self.methods["merge"].getParameterTypes()[1].getName()) != _ITERABLE:
            return method
        one = self.jpype.JClass("java.util.Collections").singletonList
        return lambda accumulator, other: method(accumulator, one(other))

    def _open_method(self, method: Any) -> Any:
        if not self.methods["open"].getParameterCount():
            return lambda _: method()

        def open_instance(context: Any) -> None:
            parameters = self.jpype.JClass("java.util.HashMap")()
            for name, value in context.job_parameters.items():
                parameters.put(name, value)
            method(parameters)

        return open_instance

    def _state_methods(self, instance: Any) -> dict[str, Any]:
        """Return the methods for states that are not typed."""
        array = self.jpype.JArray(self.jpype.JByte)
        codec = self.function.capabilities.codec
        if codec == "custom":
            serialize, deserialize = instance.serialize, instance.deserialize
            return {
                "serialize": lambda accumulator: _copy_bytes(serialize(accumulator)),
                "deserialize": lambda state: _require_accumulator(deserialize(array(state))),
            }
        if codec == "pickle":
            return {"pickles": _JavaSerialized(self.loops, array, self.accumulator.type)}
        return {}


@dataclass(frozen=True)
class _JavaSerialized:
    """Serializes accumulators with Java's serialization instead of pickle."""

    loops: Any
    array: Any
    type: Any

    def dumps(self, accumulator: Any) -> bytes:
        return memoryview(self.loops.serialized(accumulator)).tobytes()

    def loads(self, data: bytes) -> Any:
        """Return an accumulator. Deserializing may execute code, so the bytes must be trusted."""
        return self.loops.deserialized(self.array(data), self.type)


def _identity(value: Any) -> Any:
    return value


def _copy_bytes(value: Any) -> bytes | None:
    return None if value is None else memoryview(value).tobytes()


def _require_accumulator(accumulator: Any) -> Any:
    if accumulator is None:
        raise ValueError("it returned null; return the accumulator")
    return accumulator


def _bridge_target(method: Any) -> Any:
    """Return the method that a bridge method calls.

    javac adds a bridge method to a public class for each public method of a superclass that is not public.
    """
    cls = method.getDeclaringClass().getSuperclass()
    while cls is not None:
        for each in cls.getDeclaredMethods():
            same = each.getName() == method.getName() and _types(each) == _types(method)
            if same and not each.isBridge():
                return each
        cls = cls.getSuperclass()
    return method


def _types(method: Any) -> str:
    """Return the simple names of the types of a method's parameters."""
    return ", ".join(str(each.getSimpleName()) for each in method.getParameterTypes())


def _generic(method: Any) -> list[str]:
    return [str(each.getTypeName()) for each in method.getGenericParameterTypes()]


def _is_public(jpype: Any, type_: Any) -> bool:
    """Return whether a class and its enclosing classes are public, and nested classes are static."""
    modifier = jpype.JClass("java.lang.reflect.Modifier")
    while type_ is not None:
        outer = type_.getEnclosingClass()
        if not modifier.isPublic(type_.getModifiers()):
            return False
        if outer is not None and not modifier.isStatic(type_.getModifiers()):
            return False
        type_ = outer
    return True


__all__ = ["function_name", "java_functions", "limit_heap"]

_SEPARATOR: Final = "::"


def java_functions(named: Iterable[str], jar: str | None = None) -> list[Function]:
    """Return the functions of classes in jars.

    Args:
        named: `"functions.jar::com.acme.WeightedAvg"`, or `"com.acme.WeightedAvg"` for a class of `jar`.
        jar: The path of the jar of classes that are named without one.

    Raises:
        RejectedError: MODULE, if a jar cannot be read, a class is not in it or cannot be loaded, or Java is missing;
            SIGNATURE, for a class that is not a function.
    """
    functions = []
    for name in named:
        path, separator, class_name = name.rpartition(_SEPARATOR)
        where = path if separator else jar
        if where is None:
            raise RejectedError(
                "MODULE", f"the Java class {name!r} has no jar; write it as functions.jar{_SEPARATOR}{name}"
            )
        functions.append(function_in(_jar(where), class_name))
    return functions


def _jar(path: str) -> Jar:
    file = Path(path)
    try:
        status = file.stat()
        return _read(file.resolve(), status.st_mtime_ns, status.st_size)
    except OSError as error:
        raise RejectedError("MODULE", f"the jar {path} cannot be read: {error.strerror}") from None


@functools.lru_cache(maxsize=16)
def _read(file: Path, modified_ns: int, size: int) -> Jar:  # noqa: ARG001 - a jar that has changed is another one
    return Jar(file.name, file.read_bytes())
