"""Symbolic execution of authors' methods: one run for each path through their branches.

A run collects facts: the conditions on its path and their results. Everything that is not understood is unsupported, so
a run that ends has the effect of the method on every row for which its facts hold.
"""

from __future__ import annotations

import abc
import ast
import builtins
import dataclasses
import datetime
import decimal
import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from types import FunctionType, MethodType, ModuleType
from typing import Any, Final, cast

from foldflight.ext.lift.method_source import Source, source_of
from foldflight.ext.lift.tree import (
    FALSE,
    NONE,
    TRUE,
    Expr,
    add,
    as_float,
    as_int,
    compare,
    const,
    digits_of,
    divide,
    is_decimal,
    multiply,
    negate,
    not_,
    null,
    quotient,
    scale_of,
)
from foldflight.fold.mode import Unsupported

_RUNS_MAX: Final = 128  # paths through a method
_STEPS_MAX: Final = 5_000  # expressions and statements of a run
_DEPTH_MAX: Final = 16  # nested calls
# Floats represent all integers up to this magnitude exactly.
_WHOLE_MAX: Final = 1 << 53
# Up to this magnitude, an engine converts integers to the nearest float, as Python does.
_LONG_MAX: Final = 1 << 63
# Spark negates DECIMALs in Scala's context of 34 digits; it adds them exactly.
_NEGATED_DIGITS_MAX: Final = 34
_CONSTANTS: Final = (bool, int, float, str, type(None))
_OPERATORS: Final = {
    ast.FloorDiv: "//",
    ast.Mod: "%",
    ast.Pow: "**",
    ast.LShift: "<<",
    ast.RShift: ">>",
    ast.BitAnd: "&",
    ast.BitOr: "|",
    ast.BitXor: "^",
    ast.MatMult: "@",
    ast.Invert: "~",
}


class RaisingRun(Exception):  # noqa: N818 - what the author's method does, not a failure of the analysis
    """The method raises for the rows of this run.

    Args:
        text: The error, for users.
        by_null: Whether it raises because an argument is NULL.
    """

    def __init__(self, text: str, *, by_null: bool = False) -> None:
        super().__init__(text)
        self.by_null = by_null


class _Return(Exception):  # noqa: N818
    def __init__(self, value: Any) -> None:
        super().__init__()
        self.value = value


@dataclass(eq=False)
class Record:
    """An object that was created in this run, or the accumulator.

    Args:
        cls: Its class.
        attributes: Its attributes so far.
    """

    cls: type
    attributes: dict[str, Any] = dataclass_field(default_factory=dict)


@dataclass(frozen=True)
class Tuple:
    """A tuple, with the names of its members if it is a named one."""

    items: tuple[Any, ...]
    cls: type = tuple


@dataclass(frozen=True, eq=False)
class Instance:
    """The instance of the author's class that holds the direct arguments. Its methods do not change it.

    Args:
        of: The instance.
    """

    of: Any


@dataclass(frozen=True)
class KnownObject:
    """A Python object that the methods use: a module, a class, a function, or a Decimal that a sum starts with."""

    of: Any


@dataclass(frozen=True, eq=False)
class _BoundMethod:
    """A method with its receiver."""

    function: FunctionType
    receiver: Any


def _creates() -> None:
    """The function of a stack frame that only creates an object."""


_CREATES: Final = cast("FunctionType", _creates)


class Run:
    """One path through the methods.

    Args:
        trail: The results of the first conditions of the path; later ones are true.
        nullable: Which arguments and fields may be NULL.
        divides: Whether integers beyond 2**53 may be divided.
    """

    def __init__(self, trail: Sequence[bool], nullable: Callable[[Expr], bool], *, divides: bool = False) -> None:
        self.divides = divides
        self.facts: dict[Expr, bool] = {}
        self.decided: list[bool] = []
        self._trail = trail
        self._nullable = nullable
        self._steps = 0

    def decide(self, condition: Expr) -> bool:
        """Return the result of a condition in this run, and add it to the facts."""
        if condition.is_const:
            return bool(condition.value)
        if condition.op == "not":
            return not self.decide(condition.parts[0])
        if condition.op == "and":
            return all(self.decide(each) for each in condition.parts)
        if condition.op == "null" and not self._nullable(condition.parts[0]):
            return False
        if condition not in self.facts:
            index = len(self.decided)
            self.facts[condition] = self._trail[index] if index < len(self._trail) else True
            self.decided.append(self.facts[condition])
        return self.facts[condition]

    def call(self, function: Any, arguments: Sequence[Any]) -> Any:
        """Return the result of a function or method of the author. Raises Raised, Unsupported."""
        if isinstance(function, MethodType) and isinstance(function.__func__, FunctionType):
            return _StackFrame(self, function.__func__, [Instance(function.__self__), *arguments], {}, 0).run()
        if isinstance(function, FunctionType):
            return _StackFrame(self, function, list(arguments), {}, 0).run()
        raise Unsupported(f"{getattr(function, '__name__', function)!s} is not a plain method")

    def create(self, cls: type, literals: Mapping[str, Any]) -> Record:
        """Return a new instance of a class with direct arguments."""
        caller = _StackFrame(self, None, [], {}, 0)
        record = caller.create(cls, [], {name: const(value) for name, value in literals.items()})
        assert isinstance(record, Record)
        return record

    def attribute_of(self, record: Record, name: str) -> Any:
        """Return an attribute of an object, or the constant of its class."""
        return _StackFrame(self, None, [], {}, 0).attribute(record, name)

    def is_null(self, value: Any) -> bool:
        """Return whether a value is None in this run."""
        return isinstance(value, Expr) and self.decide(null(value))

    def step(self) -> None:
        """Count a step. Raises Unsupported after too many."""
        self._steps += 1
        if self._steps > _STEPS_MAX:
            raise Unsupported("it takes too many steps for one row")


def runs(
    execute: Callable[[Run], Any], nullable: Callable[[Expr], bool], *, divides: bool = False
) -> Iterator[tuple[Run, Any]]:
    """Yield each run of `execute` with its result, or with the Raised that ended it. Raises Unsupported."""
    pending: list[list[bool]] = [[]]
    count = 0
    while pending:
        trail = pending.pop()
        count += 1
        if count > _RUNS_MAX:
            raise Unsupported(f"it has more than {_RUNS_MAX} ways through its conditions")
        run = Run(trail, nullable, divides=divides)
        try:
            result: Any = execute(run)
        except RaisingRun as error:
            result = error
        pending += [[*run.decided[:index], False] for index in range(len(trail), len(run.decided))]
        yield run, result


class _StackFrame:
    """One call of a function.

    Args:
        run: The run that it is a part of.
        function: The function; None for a stack frame that only creates an object.
        arguments: Its arguments.
        keywords: Its arguments by name.
        depth: How many calls it is within.
    """

    def __init__(
        self, run: Run, function: FunctionType | None, arguments: list[Any], keywords: dict[str, Any], depth: int
    ) -> None:
        self.running = run
        self.function = function or _CREATES
        self.depth = depth
        self.arguments, self.named = arguments, keywords
        self.locals: dict[str, Any] = {}
        self.source: Source | None = None
        self.line = 0

    # --- the call -------------------------------------------------------------------------------------------------

    def run(self) -> Any:
        """Return the result of the call."""
        if self.depth > _DEPTH_MAX:
            raise Unsupported(f"{self.function.__name__} calls others too deeply, or itself")
        self.source = source_of(self.function)
        code = self.function.__code__
        self.line = code.co_firstlineno
        if code.co_flags & (inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR):
            raise self.unsupported("it is a generator or coroutine")
        private = next((each for each in map(_private, ast.walk(self.source.node)) if each), "")
        if private:
            raise self.unsupported(f"it uses {private}, a name that Python changes within a class")
        self.bind()
        try:
            self.block(self.source.node.body)
        except _Return as signal:
            return signal.value
        return NONE

    def bind(self) -> None:
        """Bind the arguments to the parameters."""
        if "__signature__" in vars(self.function):
            raise self.unsupported("it has a __signature__, which may differ from the signature of its code")
        try:
            bound = inspect.signature(self.function, follow_wrapped=False).bind(*self.arguments, **self.named)
        except TypeError as error:
            raise RaisingRun(f"TypeError: {error}") from None
        for name, parameter in bound.signature.parameters.items():
            if parameter.kind is parameter.VAR_KEYWORD:
                raise self.unsupported("it takes **keywords")
            if parameter.kind is parameter.VAR_POSITIONAL:
                self.locals[name] = Tuple(tuple(bound.arguments.get(name, ())))
            elif name in bound.arguments:
                self.locals[name] = bound.arguments[name]
            else:
                self.locals[name] = self.constant(parameter.default, f"the default of {name}")

    def unsupported(self, why: str) -> Unsupported:
        """Return the exception for a reason, with the line that is executed."""
        return Unsupported(f"{why} ({self.where})")

    @property
    def where(self) -> str:
        """The file and the line that is executed."""
        file = "" if self.source is None else self.source.file
        return f"{self.function.__name__}, {file}:{self.line}"

    def constant(self, value: Any, what: str) -> Any:
        """Return a value that the run cannot change."""
        if type(value) in _CONSTANTS and not _is_odd(value):
            return const(value)
        if type(value) is tuple and all(type(each) in _CONSTANTS for each in value):
            return Tuple(tuple(self.constant(each, what) for each in value))
        if type(value) is decimal.Decimal:
            return KnownObject(value)
        raise self.unsupported(f"{what} is {type(value).__name__}, not a number, text, truth value or None")

    # --- statements -----------------------------------------------------------------------------------------------

    def block(self, body: Sequence[ast.stmt]) -> None:
        for statement in body:
            self.running.step()
            self.line = statement.lineno
            self.statement(statement)

    def statement(self, statement: ast.stmt) -> None:
        match statement:
            case ast.Expr(value=ast.Constant()) | ast.Pass():
                pass
            case ast.Expr(value=value):
                self.value(value)
            case ast.Assign(targets=targets, value=value):
                new_value = self.value(value)
                for target in targets:
                    self.assign(target, new_value)
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                self.assign(target, self.value(value))
            case ast.AugAssign(target=target, op=op, value=value):
                if any(isinstance(each, ast.Call) for each in ast.walk(target)):
                    raise self.unsupported(f"it assigns {ast.unparse(target)}, the result of a call")
                before = self.value(_load(target))
                self.assign(target, self.binary(op, before, self.value(value), statement))
            case ast.If(test=test, body=then, orelse=otherwise):
                self.block(then if self.truth(self.value(test)) else otherwise)
            case ast.Return(value=value):
                raise _Return(NONE if value is None else self.value(value))
            case ast.Raise():
                raise RaisingRun(f"{ast.unparse(statement)} ({self.where})")
            case ast.Assert(test=test):
                if __debug__ and not self.truth(self.value(test)):
                    raise RaisingRun(f"{ast.unparse(statement)} ({self.where})")
            case _:
                name = type(statement).__name__.lower()
                raise self.unsupported(f"it uses `{name}`, and only conditions, assignments and calls are lifted")

    def assign(self, target: ast.expr, value: Any) -> None:
        match target:
            case ast.Name(id=name):
                self.locals[name] = value
            case ast.Attribute(value=owner, attr=name):
                record = self.value(owner)
                if not isinstance(record, Record):
                    raise self.unsupported(
                        f"it assigns {ast.unparse(target)}, and only fields of the accumulator may change"
                    )
                attribute = inspect.getattr_static(record.cls, name, None)
                if hasattr(type(attribute), "__set__") and not inspect.ismemberdescriptor(attribute):
                    raise self.unsupported(f"{record.cls.__name__}.{name} is a property")
                if any("__setattr__" in vars(base) for base in record.cls.__mro__[:-1]):
                    raise self.unsupported(f"{record.cls.__name__} decides itself what is assigned to it")
                record.attributes[name] = value
            case ast.Tuple(elts=targets) if isinstance(value, Tuple) and len(targets) == len(value.items):
                for each, item in zip(targets, value.items, strict=True):
                    self.assign(each, item)
            case _:
                raise self.unsupported(f"it assigns {ast.unparse(target)}")

    # --- expressions ----------------------------------------------------------------------------------------------

    def value(self, node: ast.expr) -> Any:
        self.running.step()
        match node:
            case ast.Constant(value=value):
                return self.constant(value, ast.unparse(node))
            case ast.Name(id=name):
                return self.name(name)
            case ast.Attribute(value=owner, attr=name):
                return self.attribute(self.value(owner), name)
            case ast.BinOp(left=left, op=op, right=right):
                return self.binary(op, self.value(left), self.value(right), node)
            case ast.UnaryOp(op=op, operand=operand):
                return self.unary(op, self.value(operand), node)
            case ast.BoolOp(op=op, values=values):
                ends = isinstance(op, ast.Or)
                for each in values[:-1]:
                    result = self.value(each)
                    if self.truth(result) is ends:
                        return result
                return self.value(values[-1])
            case ast.Compare(left=left, ops=ops, comparators=others):
                return self.chain(self.value(left), ops, others, node)
            case ast.IfExp(test=test, body=then, orelse=otherwise):
                return self.value(then if self.truth(self.value(test)) else otherwise)
            case ast.Tuple(elts=items) if not any(isinstance(each, ast.Starred) for each in items):
                return Tuple(tuple(self.value(each) for each in items))
            case ast.Subscript(value=owner, slice=ast.Constant(value=int() as index)):
                sequence = self.value(owner)
                if isinstance(sequence, Tuple) and -len(sequence.items) <= index < len(sequence.items):
                    return sequence.items[index]
                raise self.unsupported(f"it reads {ast.unparse(node)}, an item of something other than a tuple")
            case ast.Call(func=function, args=arguments, keywords=keywords):
                return self.call(function, arguments, keywords, node)
            case _:
                raise self.unsupported(f"it uses {ast.unparse(node)!r}")

    def name(self, name: str) -> Any:
        code = self.function.__code__
        if name in self.locals:
            return self.locals[name]
        if name in code.co_freevars or name in code.co_cellvars:
            raise self.unsupported(f"it uses {name} of an enclosing function")
        if name in code.co_varnames:
            raise RaisingRun(f"UnboundLocalError: {name} ({self.where})")
        if name in self.function.__globals__:
            target = self.function.__globals__[name]
            if isinstance(target, (FunctionType, ModuleType, type)) or inspect.isbuiltin(target):
                return KnownObject(target)
            self.check_global(name, target)
            return self.constant(target, name)
        if hasattr(builtins, name):
            return KnownObject(getattr(builtins, name))
        raise RaisingRun(f"NameError: {name} ({self.where})")

    def check_global(self, name: str, value: Any) -> None:
        """Raise Unsupported unless a global is assigned once, in its module, and still has that value."""
        assert self.source is not None
        stores = [
            node
            for node in ast.walk(self.source.module)
            if (isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Store))
            or (isinstance(node, ast.Global) and name in node.names)
        ]
        initial = None
        for each in self.source.module.body:
            match each:
                case ast.Assign(targets=[ast.Name(id=target_name)], value=expr) if target_name == name:
                    initial = expr
                case ast.AnnAssign(target=ast.Name(id=target_name), value=ast.expr() as expr) if target_name == name:
                    initial = expr
                case _:
                    pass
        try:
            same = initial is not None and repr(ast.literal_eval(initial)) == repr(value)
        except (ValueError, TypeError):
            same = False
        if len(stores) != 1 or not same:
            raise self.unsupported(f"it reads the global {name}, which is not one constant of its module")

    def attribute(self, owner: Any, name: str) -> Any:
        if isinstance(owner, Record):
            _plain_attributes(owner.cls, self)
            if name in owner.attributes:
                return owner.attributes[name]
            return self.of_class(owner, owner.cls, name)
        if isinstance(owner, Instance):
            return self.of_instance(owner, name)
        if isinstance(owner, Tuple) and name in getattr(owner.cls, "_fields", ()):
            return owner.items[owner.cls._fields.index(name)]  # type: ignore[attr-defined]
        if isinstance(owner, KnownObject) and isinstance(owner.of, ModuleType):
            attribute = getattr(owner.of, name, None)
            if owner.of is math and isinstance(attribute, float):
                return self.constant(attribute, f"math.{name}")
            if isinstance(attribute, FunctionType) or inspect.isbuiltin(attribute) or attribute is decimal.Decimal:
                return KnownObject(attribute)
        raise self.unsupported(f"it uses the attribute {name} of something other than the accumulator and self")

    def of_class(self, owner: Any, cls: type, name: str) -> Any:
        """Return an attribute of the class, for an object that has none of this name."""
        attribute = inspect.getattr_static(cls, name, None)
        if isinstance(attribute, FunctionType):
            return _BoundMethod(attribute, owner)
        if isinstance(attribute, staticmethod) and isinstance(attribute.__func__, FunctionType):
            return KnownObject(attribute.__func__)
        if type(attribute) in (*_CONSTANTS, decimal.Decimal) and name in {
            each for base in cls.__mro__ for each in vars(base)
        }:
            return self.constant(attribute, name)
        raise self.unsupported(f"{cls.__name__}.{name} is neither a plain method nor a constant")

    def of_instance(self, owner: Instance, name: str) -> Any:
        """Return an attribute of the instance that holds the direct arguments."""
        cls = type(owner.of)
        _plain_attributes(cls, self)
        attributes = vars(owner.of) if hasattr(owner.of, "__dict__") else {}
        if name not in attributes and type(inspect.getattr_static(cls, name, None)) not in _CONSTANTS:
            return self.of_class(owner, cls, name)
        if hasattr(type(inspect.getattr_static(cls, name, None)), "__set__"):
            raise self.unsupported(f"{cls.__name__}.{name} is a property")
        for base in cls.__mro__[:-1]:
            for method, function in vars(base).items():
                plain = getattr(function, "__func__", function)
                if isinstance(plain, FunctionType) and method != "__init__" and _may_assign(plain, name):
                    raise self.unsupported(f"self.{name} is assigned in {method}, so it is not the same for all rows")
        return (
            self.constant(attributes[name], f"self.{name}") if name in attributes else self.of_class(owner, cls, name)
        )

    # --- operators ------------------------------------------------------------------------------------------------

    def require_value(self, value: Any, node: ast.AST) -> Expr:
        """Return a value. If it is None in this run, the method raises."""
        if not isinstance(value, Expr):
            raise self.unsupported(f"it computes {ast.unparse(node)!r} with something other than numbers")
        if self.running.is_null(value):
            raise RaisingRun(f"TypeError: {ast.unparse(node)} with None, a NULL value ({self.where})", by_null=True)
        return value

    def number(self, value: Any, node: ast.AST) -> Expr:
        """Return an int or float. If it is None in this run, the method raises."""
        value = self.require_value(value, node)
        if value.kind == "bool":
            known_fact = self.running.facts.get(value)
            return as_int(value) if known_fact is None else const(int(known_fact))
        if value.kind not in ("int", "float"):
            raise self.unsupported(f"it computes {ast.unparse(node)!r} with values of the type {value.kind}")
        return value

    def as_float(self, value: Expr, node: ast.AST, end: int = _WHOLE_MAX) -> Expr:
        """Return a number as a float. Integers beyond `end` are unsupported."""
        if value.kind == "float":
            return value
        if not -end <= value.low <= value.high <= end:
            power = end.bit_length() - 1
            raise self.unsupported(f"{ast.unparse(node)!r} mixes floats with integers that may exceed 2**{power}")
        return as_float(value)

    def divide(self, one: Expr, other: Expr, node: ast.AST) -> Expr:
        """Return the quotient of two numbers, rounded once."""
        zero = const(0) if other.kind == "int" else const(0.0)
        if self.running.decide(compare("eq", other, zero)):
            raise RaisingRun(f"ZeroDivisionError: {ast.unparse(node)} ({self.where})")
        are_whole = {one.kind, other.kind} == {"int"}
        fit = all(each.low >= -_LONG_MAX and each.high < _LONG_MAX for each in (one, other))
        if are_whole and fit and self.running.divides:
            return quotient(one, other)
        end = _WHOLE_MAX if are_whole else _LONG_MAX
        return divide(self.as_float(one, node, end), self.as_float(other, node, end))

    def binary(self, op: ast.operator, left: Any, right: Any, node: ast.AST) -> Expr:
        if type(op) in _OPERATORS:
            raise self.unsupported(f"it uses the operator {_OPERATORS[type(op)]} in {ast.unparse(node)!r}")
        if any(isinstance(each, Expr) and is_decimal(each.kind) for each in (left, right)):
            return self.decimal(op, self.require_value(left, node), self.require_value(right, node), node)
        one, other = self.number(left, node), self.number(right, node)
        if isinstance(op, ast.Div):
            return self.divide(one, other, node)
        if "float" in (one.kind, other.kind):
            one, other = self.as_float(one, node, _LONG_MAX), self.as_float(other, node, _LONG_MAX)
        match op:
            case ast.Add():
                return add(one, other)
            case ast.Sub():
                return add(one, negate(other))
            case ast.Mult():
                return multiply(one, other)
            case _:
                raise self.unsupported(f"it uses {ast.unparse(node)!r}")

    def decimal(self, op: ast.operator, one: Expr, other: Expr, node: ast.AST) -> Expr:
        """Return a field plus a DECIMAL of its scale, or a signed DECIMAL: only these are exact in engines."""
        if isinstance(op, ast.Mult):
            for factor, rest in ((one, other), (other, one)):
                if factor.is_const and factor.kind == "int" and factor.value in (1, -1):
                    return rest if factor.value == 1 else self.negate(rest, node)
        if isinstance(op, ast.Add) and not one.uses("field"):
            one, other = other, one
        are_alike = all(is_decimal(each.kind) for each in (one, other)) and scale_of(one.kind) == scale_of(other.kind)
        grows = one.uses("field") and not any(other.uses(each) for each in ("field", "add"))
        if are_alike and grows and isinstance(op, (ast.Add, ast.Sub)):
            return add(one, other if isinstance(op, ast.Add) else self.negate(other, node))
        raise self.unsupported(
            f"it computes {ast.unparse(node)!r} with DECIMALs, of which only a field's sum is lifted"
        )

    def negate(self, value: Expr, node: ast.AST) -> Expr:
        """Return a DECIMAL with the other sign."""
        if digits_of(value.kind) > _NEGATED_DIGITS_MAX:
            why = f"a DECIMAL of more than {_NEGATED_DIGITS_MAX} digits, which Spark rounds when it changes the sign"
            raise self.unsupported(f"it subtracts {why}, in {ast.unparse(node)!r}")
        return negate(value)

    def unary(self, op: ast.unaryop, value: Any, node: ast.AST) -> Expr:
        if isinstance(op, ast.Not):
            return const(not self.truth(value)) if not _is_condition(value) else not_(value)
        if isinstance(op, ast.Invert):
            raise self.unsupported(f"it uses the operator ~ in {ast.unparse(node)!r}")
        number = self.number(value, node)
        return negate(number) if isinstance(op, ast.USub) else number

    def truth(self, value: Any) -> bool:
        """Return whether a value is true in this run."""
        if isinstance(value, Tuple):
            return bool(value.items)
        if not isinstance(value, Expr):
            raise self.unsupported("it uses an object as a condition")
        if self.running.is_null(value):
            return False
        match value.kind:
            case "bool":
                return self.running.decide(value)
            case "none":
                return False
            case "int":
                return not self.running.decide(compare("eq", value, const(0)))
            case "float":
                return not self.running.decide(compare("eq", value, const(0.0)))
            case "string":
                return not self.running.decide(compare("eq", value, const("")))
            case kind:
                raise self.unsupported(f"it uses a value of the type {kind} as a condition")

    def chain(self, left: Any, ops: Sequence[ast.cmpop], others: Sequence[ast.expr], node: ast.AST) -> Expr:
        holds: Expr = TRUE
        for index, (op, comparator) in enumerate(zip(ops, others, strict=True)):
            right = self.value(comparator)
            holds = self.compare(op, left, right, node)
            if index < len(ops) - 1 and not self.running.decide(holds):
                return FALSE
            left = right
        return holds

    def compare(self, op: ast.cmpop, left: Any, right: Any, node: ast.AST) -> Expr:
        match op:
            case ast.Is() | ast.IsNot():
                if left == NONE:
                    left, right = right, left
                if right != NONE or isinstance(left, KnownObject):
                    raise self.unsupported(f"it uses `is` with something other than None in {ast.unparse(node)!r}")
                return const(self.running.is_null(left) is isinstance(op, ast.Is))
            case ast.In() | ast.NotIn():
                if not isinstance(right, Tuple):
                    raise self.unsupported(f"it looks into something other than a tuple in {ast.unparse(node)!r}")
                if any(each == left and isinstance(each, Expr) and each.kind == "float" for each in right.items):
                    raise self.unsupported(
                        f"it looks for a float, which may be NaN, in itself in {ast.unparse(node)!r}"
                    )
                is_in = any(self.running.decide(self.equal(left, each, node)) for each in right.items)
                return const(is_in is isinstance(op, ast.In))
            case ast.Eq():
                return self.equal(left, right, node)
            case ast.NotEq():
                return not_(self.equal(left, right, node))
            case ast.Lt():
                return self.compare_order("lt", left, right, node)
            case ast.LtE():
                return self.compare_order("le", left, right, node)
            case ast.Gt():
                return self.compare_order("lt", right, left, node)
            case ast.GtE():
                return self.compare_order("le", right, left, node)
            case _:
                raise self.unsupported(f"it uses {ast.unparse(node)!r}")

    def equal(self, left: Any, right: Any, node: ast.AST) -> Expr:
        if not isinstance(left, Expr) or not isinstance(right, Expr):
            raise self.unsupported(f"it compares objects in {ast.unparse(node)!r}")
        one, other = self.running.is_null(left), self.running.is_null(right)
        if one or other:
            return const(one and other)
        return compare("eq", *self.comparable(left, right, node))

    def compare_order(self, op: str, left: Any, right: Any, node: ast.AST) -> Expr:
        if not isinstance(left, Expr) or not isinstance(right, Expr):
            raise self.unsupported(f"it compares objects in {ast.unparse(node)!r}")
        if self.running.is_null(left) or self.running.is_null(right):
            raise RaisingRun(f"TypeError: {ast.unparse(node)} with None, a NULL value ({self.where})", by_null=True)
        return compare(op, *self.comparable(left, right, node))

    def comparable(self, left: Expr, right: Expr, node: ast.AST) -> tuple[Expr, Expr]:
        """Return two values of one kind, for a comparison with Python's result."""
        kinds = {left.kind, right.kind}
        if kinds == {"bool"}:
            return as_int(left), as_int(right)
        if kinds <= {"bool", "int", "float"}:
            one, other = self.number(left, node), self.number(right, node)
            if "float" in kinds:
                return self.as_float(one, node), self.as_float(other, node)
            return one, other
        if len(kinds) > 1 or kinds & {"other", "none"}:
            raise self.unsupported(
                f"it compares values of the types {left.kind} and {right.kind} in {ast.unparse(node)!r}"
            )
        if left.uses("add") or right.uses("add"):
            raise self.unsupported(f"it compares a sum of DECIMALs in {ast.unparse(node)!r}")
        return left, right

    # --- calls ----------------------------------------------------------------------------------------------------

    def call(
        self, function: ast.expr, arguments: Sequence[ast.expr], keywords: Sequence[ast.keyword], node: ast.AST
    ) -> Any:
        target = self.value(function)
        values: list[Any] = []
        for each in arguments:
            if isinstance(each, ast.Starred):
                sequence = self.value(each.value)
                if not isinstance(sequence, Tuple):
                    raise self.unsupported(f"it passes *arguments in {ast.unparse(node)!r}")
                values += sequence.items
            else:
                values.append(self.value(each))
        if any(each.arg is None for each in keywords):
            raise self.unsupported(f"it passes **keywords in {ast.unparse(node)!r}")
        by_name = {str(each.arg): self.value(each.value) for each in keywords}
        if isinstance(target, _BoundMethod):
            return self.inner(target.function, [target.receiver, *values], by_name)
        if not isinstance(target, KnownObject):
            raise self.unsupported(f"it calls {ast.unparse(function)}, which is not a plain function or method")
        callee = target.of
        if isinstance(callee, FunctionType):
            return self.inner(callee, values, by_name)
        built_in = None if by_name else _BUILT_IN.get(callee) if isinstance(callee, _HASHABLE) else None
        if built_in is not None:
            return built_in(self, values, node)
        if isinstance(callee, type) and callee.__module__ != "builtins":
            return self.create(callee, values, by_name)
        raise self.unsupported(f"it calls {ast.unparse(function)}, of which the engine has no exact equal")

    def inner(self, function: FunctionType, arguments: list[Any], keywords: dict[str, Any]) -> Any:
        if function.__code__.co_freevars:
            raise self.unsupported(f"it calls {function.__name__}, which uses names of an enclosing function")
        return _StackFrame(self.running, function, arguments, keywords, self.depth + 1).run()

    def create(self, cls: type, arguments: list[Any], keywords: dict[str, Any]) -> Any:
        """Return a new object of an author's class."""
        fields = getattr(cls, "_fields", None)
        if issubclass(cls, tuple) and isinstance(fields, tuple):
            defaults = getattr(cls, "_field_defaults", {})
            items = dict(zip(fields, arguments, strict=False)) | keywords
            defaults_used = {each: self.constant(defaults[each], each) for each in fields if each in defaults}
            items = defaults_used | items
            if items.keys() != set(fields) or len(arguments) > len(fields):
                raise RaisingRun(f"TypeError: {cls.__name__} is created with other arguments ({self.where})")
            return Tuple(tuple(items[each] for each in fields), cls)
        bases = [base for base in cls.__mro__ if base is not object]
        is_special = type(cls) not in (type, abc.ABCMeta) or any("__new__" in vars(base) for base in bases)
        if is_special or any(base.__module__ == "builtins" for base in bases):
            raise self.unsupported(f"it creates a {cls.__name__}, which is not a plain class")
        record = Record(cls)
        _plain_attributes(cls, self)
        init = inspect.getattr_static(cls, "__init__")
        if dataclasses.is_dataclass(cls) and not _is_written(init):
            self.fill(record, arguments, keywords)
        elif isinstance(init, FunctionType):
            self.inner(init, [record, *arguments], keywords)
        elif arguments or keywords:
            raise RaisingRun(f"TypeError: {cls.__name__} takes no arguments ({self.where})")
        return record

    def fill(self, record: Record, arguments: list[Any], keywords: dict[str, Any]) -> None:
        """Set the attributes of a new dataclass."""
        if hasattr(record.cls, "__post_init__"):
            raise self.unsupported(f"{record.cls.__name__} has __post_init__")
        arguments = list(arguments)
        for each in dataclasses.fields(record.cls):
            if not each.init or each.kw_only or not _is_missing(each.default_factory):
                raise self.unsupported(f"{record.cls.__name__}.{each.name} is not a plain field")
            if arguments:
                record.attributes[each.name] = arguments.pop(0)
            elif each.name in keywords:
                record.attributes[each.name] = keywords[each.name]
            elif not _is_missing(each.default):
                record.attributes[each.name] = self.constant(each.default, each.name)
            else:
                raise RaisingRun(f"TypeError: {record.cls.__name__} is created without {each.name} ({self.where})")


def _is_missing(default: object) -> bool:
    """Return whether a field of a dataclass has no default. A class that was pickled has a copy of `MISSING`."""
    return isinstance(default, type(dataclasses.MISSING))


def _private(node: ast.AST) -> str:
    """Return the name in a node if Python mangles it (`__name` in a class)."""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name) | ast.keyword(arg=str(name)):
            return name if name.startswith("__") and not name.endswith("__") else ""
        case _:
            return ""


def _is_odd(value: Any) -> bool:
    """Return whether a constant is NaN, which equals nothing, or a text that is not Unicode."""
    if isinstance(value, str):
        return any("\ud800" <= letter <= "\udfff" for letter in value)
    return isinstance(value, float) and math.isnan(value)


def _is_written(function: Any) -> bool:
    """Return whether a function was written by an author, not made by `dataclass`."""
    return isinstance(function, FunctionType) and function.__code__.co_filename != "<string>"


def _load(target: ast.expr) -> ast.expr:
    """Return the expression that reads the target of an assignment."""
    match target:
        case ast.Name(id=name):
            return ast.copy_location(ast.Name(name, ast.Load()), target)
        case ast.Attribute(value=value, attr=name):
            return ast.copy_location(ast.Attribute(value, name, ast.Load()), target)
        case _:
            return target


def _is_condition(value: Any) -> bool:
    return isinstance(value, Expr) and value.kind == "bool" and value.op not in ("arg", "field")


def _plain_attributes(cls: type, caller: _StackFrame) -> None:
    """Raise Unsupported for a class that changes how attributes are read or written."""
    for base in cls.__mro__[:-1]:
        own = {"__getattribute__", "__getattr__", "__setattr__", "__bool__", "__len__"} & vars(base).keys()
        params = getattr(base, "__dataclass_params__", None)
        if own and not (params is not None and params.frozen):
            raise caller.unsupported(f"{base.__name__} defines {', '.join(sorted(own))}")


_INDIRECT: Final = frozenset({"setattr", "__dict__", "vars", "__setattr__", "delattr"})


def _may_assign(function: FunctionType, name: str) -> bool:
    """Return whether a method may assign an attribute of this name."""
    codes = [function.__code__]
    while codes:
        code = codes.pop()
        codes += [each for each in code.co_consts if inspect.iscode(each)]
        if _INDIRECT & set(code.co_names):
            return True
        stores = (each for each in _instructions(code) if each[0] in ("STORE_ATTR", "DELETE_ATTR"))
        if any(argument == name for _, argument in stores):
            return True
    return False


def _instructions(code: Any) -> Iterator[tuple[str, Any]]:
    import dis

    for each in dis.get_instructions(code):
        yield each.opname, each.argval


# --- functions of Python ------------------------------------------------------------------------------------------


def _extreme(op: str) -> Callable[[_StackFrame, list[Any], ast.AST], Any]:
    def choose(caller: _StackFrame, arguments: list[Any], node: ast.AST) -> Any:
        if len(arguments) < 2:
            raise caller.unsupported(f"it uses {ast.unparse(node)!r}; {op} takes two or more values here")
        best = arguments[0]
        for each in arguments[1:]:
            pair = (each, best) if op == "min" else (best, each)
            if caller.running.decide(caller.compare_order("lt", *pair, node)):
                best = each
        return best

    return choose


def _one(caller: _StackFrame, arguments: list[Any], node: ast.AST) -> Any:
    if len(arguments) != 1:
        raise caller.unsupported(f"it uses {ast.unparse(node)!r}")
    return arguments[0]


def _abs(caller: _StackFrame, arguments: list[Any], node: ast.AST) -> Expr:
    number = caller.number(_one(caller, arguments, node), node)
    if number.kind == "float":
        raise caller.unsupported(f"it uses {ast.unparse(node)!r} of a float")
    return negate(number) if caller.running.decide(compare("lt", number, const(0))) else number


def _bool(caller: _StackFrame, arguments: list[Any], node: ast.AST) -> Expr:
    value = _one(caller, arguments, node)
    return value if _is_condition(value) else const(caller.truth(value))


def _int(caller: _StackFrame, arguments: list[Any], node: ast.AST) -> Expr:
    number = caller.number(_one(caller, arguments, node), node)
    if number.kind == "float":
        raise caller.unsupported(f"it cuts off a fraction in {ast.unparse(node)!r}")
    return number


def _float(caller: _StackFrame, arguments: list[Any], node: ast.AST) -> Expr:
    return caller.as_float(caller.number(_one(caller, arguments, node), node), node)


def _decimal(caller: _StackFrame, arguments: list[Any], node: ast.AST) -> KnownObject:
    value = _one(caller, arguments, node)
    if not isinstance(value, Expr) or not value.is_const or value.kind not in ("int", "string"):
        raise caller.unsupported(f"it makes a Decimal of something other than a constant in {ast.unparse(node)!r}")
    try:
        return KnownObject(decimal.Decimal(value.value))
    except decimal.InvalidOperation:
        raise RaisingRun(f"InvalidOperation: {ast.unparse(node)} ({caller.where})") from None


def _test_operand(test: Callable[[Expr], Expr]) -> Callable[[_StackFrame, list[Any], ast.AST], Expr]:
    def call(caller: _StackFrame, arguments: list[Any], node: ast.AST) -> Expr:
        return test(caller.as_float(caller.number(_one(caller, arguments, node), node), node))

    return call


def _isfinite(caller: _StackFrame, arguments: list[Any], node: ast.AST) -> Expr:
    number = caller.number(_one(caller, arguments, node), node)
    if number.kind == "int":
        return TRUE
    ends = (compare("lt", const(-math.inf), number), compare("lt", number, const(math.inf)))
    return const(all(caller.running.decide(each) for each in ends))


_TYPES: Final[dict[str, type]] = {"int": int, "float": float, "bool": bool, "string": str, "binary": bytes}


def _type_of(kind: str) -> type:
    """Return the type of the values of an Arrow type, given as text."""
    if kind.startswith("decimal"):
        return decimal.Decimal
    return datetime.datetime if kind.startswith("timestamp") else datetime.date


def _isinstance(caller: _StackFrame, arguments: list[Any], node: ast.AST) -> Expr:
    if len(arguments) != 2 or not isinstance(arguments[0], Expr):
        raise caller.unsupported(f"it uses {ast.unparse(node)!r}")
    value, classes = arguments
    members = classes.items if isinstance(classes, Tuple) else (classes,)
    classes = [each.of for each in members if isinstance(each, KnownObject)]
    if len(classes) < len(members) or not all(isinstance(each, type) for each in classes):
        raise caller.unsupported(f"it asks for something other than types in {ast.unparse(node)!r}")
    if any(type(each) is not type for each in classes):
        raise caller.unsupported(f"it asks for a type that decides itself what belongs to it in {ast.unparse(node)!r}")
    if caller.running.is_null(value) or value.kind == "none":
        return FALSE
    if value.kind == "other":
        raise caller.unsupported(f"it asks for the type of a struct, array or map in {ast.unparse(node)!r}")
    own = _TYPES.get(value.kind) or _type_of(value.kind)
    return const(any(issubclass(own, each) for each in classes))


_HASHABLE: Final = (type, type(len))
_BUILT_IN: Final[dict[Any, Callable[[_StackFrame, list[Any], ast.AST], Any]]] = {
    max: _extreme("max"),
    min: _extreme("min"),
    abs: _abs,
    bool: _bool,
    int: _int,
    float: _float,
    decimal.Decimal: _decimal,
    isinstance: _isinstance,
    math.isnan: _test_operand(lambda value: not_(compare("eq", value, value))),
    math.isfinite: _isfinite,
}
