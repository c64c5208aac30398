"""A pass over numba's untyped intermediate code that gives it Python's semantics.

It replaces operators and calls of built-in functions by the implementations in `operators`, calls of the author's
methods and functions by compiled ones, and code that always ends in an exception by an immediate exception. `check` is
a second pass, over typed code.
"""

from __future__ import annotations

import datetime
import decimal
import dis
import inspect
import operator
import string
import sys
import types as python
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final

import numba
from numba.core import ir, ir_utils, types
from numba.core.compiler import CompilerBase, DefaultPassBuilder, run_frontend
from numba.core.compiler_machinery import FunctionPass, register_pass
from numba.core.typed_passes import NopythonTypeInference
from numba.core.untyped_passes import IRProcessing

from foldflight.ext.compiler import (
    containers,
    datetimes,
    decimals,
    formats,
    operators,
    string_ops,
    strings,
    vectors,
)
from foldflight.ext.compiler.arena import Contents, Element
from foldflight.ext.compiler.check import Check
from foldflight.ext.compiler.generated import INNER
from foldflight.ext.compiler.literals import EMPTY, Fill, attribute_of, inline_comprehensions
from foldflight.ext.compiler.records import EXACTLY, Items, Reference, is_named_tuple, put_tuple
from foldflight.ext.compiler.value_types import (
    OPTIONALS,
    Struct,
    class_of,
    decode_kind,
    describe_type,
    field_of,
    implementation,
    kind_of,
    require_value,
    takes,
)
from foldflight.ext.compiler.vectors import VectorType
from foldflight.fold.mode import Unsupported

_CONSTANTS: Final = (int, float, bool, type(None))
# The classes of constants that code may read from its class, in addition to dates and times.
_NAMED: Final = (*_CONSTANTS, decimal.Decimal, str, bytes, dict, list, tuple, set, frozenset)
# Classes and functions whose calls with constant arguments are evaluated when code is compiled.
_FOLDED: Final = (datetime.date, datetime.datetime, datetime.time, datetime.timedelta, decimal.Decimal, float, int)
_ALLOWED: Final = (
    *("build_tuple", "call", "cast", "exhaust_iter", "iternext", "null", "pair_first", "pair_second", "phi"),
    *("static_getitem", "undef"),
)
_UTF8: Final = ("utf-8", "utf8", "UTF-8", "UTF8")
# What `encode` does with what UTF-8 cannot write, which texts of compiled code do not hold.
_ERRORS: Final = ("strict", "ignore", "replace", "backslashreplace", "xmlcharrefreplace", "surrogateescape")
_AS_TEXT, _HAS_FORMAT = 1, 4  # flags of the argument of FORMAT_VALUE
_SUMS: Final = (operator.add, operator.sub, operator.mul)  # they give a float of an int beside a float
_EXACT_MAX: Final = 1 << 53  # the largest of the whole numbers that are all floats exactly
_ARGUMENT_MAX: Final = 255  # of a step of one byte code
_SEQUENCE_MAX: Final = 64  # items of a constant list or tuple
_CHAINED_MAX: Final = 8  # constants of a collection that are compared one by one
# The methods of str, bytes, numbers, dates and times.
_OF_VALUES: Final = {
    **datetimes.METHODS,
    **strings.METHODS,
    **string_ops.METHODS,
    **operators.METHODS,
    **formats.METHODS,
}
_ENDS: Final = (strings.METHODS["startswith"], strings.METHODS["endswith"])
_BUILT_IN: Final = python.BuiltinMethodType
_REPLACE: Final = object()  # stands for the method `_replace` of a NamedTuple
_OF_CONTAINERS: Final = (*containers.METHODS.values(), containers.get_number)
_LACKING: Final = (containers.METHODS["get"], containers.METHODS["pop"])
_TAKING_OUT: Final = (*_LACKING, containers.METHODS["setdefault"], containers.METHODS["popleft"])
# Functions that accept a container that is None. All others raise, so the interpreter handles the row.
_TAKING_NONE: Final = (require_value, operators.is_none, operators.is_some, operators.truth, operators.not_true)
_NAMES: Final = {"build_string": "text", "make_function": "a generator or a function", "yield": "yield"}


@dataclass
class ClassCompiler:
    """Compiles the functions of one author's class, each once.

    Args:
        dispatchers: The dispatchers by function and result cast.
        calls: The functions that each function calls. Recursion is unsupported, because it could exhaust the stack.
        replacing: The functions that replace a container of an accumulator.
        accumulator: The record of the accumulator, which may be a NamedTuple.
        own_names: The names of the methods and properties of the author's classes whose objects may change.
    """

    accumulator: Reference | None = None
    own_names: frozenset[str] = frozenset()
    dispatchers: dict[tuple[Any, Any], Any] = field(default_factory=dict)
    calls: dict[Any, set[Any]] = field(default_factory=dict)
    replacing: set[Any] = field(default_factory=set)

    def compile(self, function: Any, result: Any = None) -> Any:
        """Return the dispatcher of a function that applies `result` to its return value. Raises Unsupported."""
        if not isinstance(function, python.FunctionType):
            raise Unsupported(f"{function!r} is not a plain function")
        key = (function, result)
        if key not in self.dispatchers:
            _check_code(function)
            function_copy = readable_copy(function)
            function_copy.__dict__["foldflight"] = _Role(self, function, result)
            self.dispatchers[key] = numba.njit(pipeline_class=_Pipeline, nogil=True, no_cpython_wrapper=True, **INNER)(
                function_copy
            )
        return self.dispatchers[key]

    def check(self, function: Any, arguments: tuple[types.Type, ...]) -> None:
        """Run only this pass, to find unsupported code early. Only the types of the first arguments are known."""
        _check_code(function)
        code = run_frontend(readable_copy(function))
        inline_comprehensions(code, self.own_names)
        unknown_types = (types.undefined,) * (code.arg_count - len(arguments))
        _Rewriter(_Role(self, function, None), code, (*arguments, *unknown_types)).run()

    def compile_callee(self, caller: Any, function: Any) -> Any:
        """Return the dispatcher of a function that another one calls."""
        self.calls.setdefault(caller, set()).add(function)
        if self._reaches(function, caller, set()):
            raise Unsupported(f"{function.__name__} calls itself")
        return self.compile(function)

    def _reaches(self, start: Any, goal: Any, seen_functions: set[Any]) -> bool:
        if start is goal:
            return True
        seen_functions.add(start)
        return any(
            self._reaches(each, goal, seen_functions)
            for each in self.calls.get(start, ())
            if each not in seen_functions
        )


@dataclass(frozen=True)
class _Role:
    author: ClassCompiler
    function: Any
    result: Any


def _check_code(function: Any) -> None:
    code, why, before = function.__code__, "", None
    for step in dis.get_instructions(code):
        # Since Python 3.12 comprehensions also have exception tables, but only `try` and `with` handle exceptions.
        if step.opname in ("BEFORE_WITH", "LOAD_SPECIAL"):
            why = "uses with"
        elif _is_unknown_format(step, before):
            why = "writes a value with !r, !a or a format that is not constant"
        elif step.opname in ("DICT_UPDATE", "DICT_MERGE") and not (before and before.opname.startswith("BUILD_")):
            why = (
                "makes a dict of another one by **; make an empty one, and put the items into it by update or in a loop"
            )
        if why:
            line = step.positions.lineno if step.positions is not None else None
            raise Unsupported(f"{function.__name__} {why}").at(ir.Loc(code.co_filename, line or code.co_firstlineno))
        before = step
    if code.co_flags & (inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR):
        why = f"{function.__name__} is a generator or coroutine"
    elif code.co_kwonlyargcount or code.co_flags & inspect.CO_VARKEYWORDS:
        why = f"{function.__name__} has keyword-only parameters"
    if why:
        raise Unsupported(why).at(ir.Loc(code.co_filename, code.co_firstlineno))


def _is_unknown_format(step: dis.Instruction, before: dis.Instruction | None) -> bool:
    if step.opname == "CONVERT_VALUE":
        return step.arg != _AS_TEXT
    writes = step.opname == "FORMAT_WITH_SPEC" or (step.opname == "FORMAT_VALUE" and step.arg not in (0, _AS_TEXT))
    return writes and _format_of(step, before) is None


def readable_copy(function: Any) -> Any:
    """Return a copy of a function without exception tables, and with formats that numba can read.

    The interpreter repeats a row that raises, with what `try` does then. So compiled code has no handlers.
    """
    code = _readable(function.__code__.replace(co_exceptiontable=b""))
    function_copy = python.FunctionType(
        code, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )
    function_copy.__kwdefaults__ = function.__kwdefaults__
    return function_copy


class Format(str):
    """A constant format of an f-string: the second item of a pair with the value, in the code that numba reads."""

    __slots__ = ()


class _TextFormat(Format):
    """A constant format of the text of a value, as in f"{day!s:>12}"."""

    __slots__ = ()


def _format_of(step: dis.Instruction, before: dis.Instruction | None) -> type[Format] | None:
    """Return how a step writes a value with a constant format; None if it does something else."""
    is_constant = before is not None and before.opname == "LOAD_CONST"
    if step.opname == "FORMAT_WITH_SPEC":  # since Python 3.13
        return Format if is_constant else None
    formats = {_HAS_FORMAT: Format, _HAS_FORMAT | _AS_TEXT: _TextFormat}
    return formats.get(step.arg or 0) if step.opname == "FORMAT_VALUE" and is_constant else None


def _readable(code: python.CodeType) -> python.CodeType:
    """Replace the steps that numba does not read.

    Those that write a value with a constant format become pairs of both. In `(name := value)`, the copy of the value
    becomes another use of the variable: numba forgets the copy.
    """
    steps, constants = bytearray(code.co_code), [*code.co_consts]
    constants = [_readable(each) if isinstance(each, python.CodeType) else each for each in constants]
    before = None
    for step in dis.get_instructions(code):
        format_type = _format_of(step, before)
        if format_type is not None and before is not None and len(constants) <= _ARGUMENT_MAX:
            steps[before.offset + 1] = len(constants)
            constants.append(format_type(before.argval))
            steps[step.offset : step.offset + 2] = bytes((dis.opmap["BUILD_TUPLE"], 2))
        elif step.opname == "FORMAT_VALUE" and step.arg == _AS_TEXT:  # numba reads it as `str` without the argument
            steps[step.offset + 1] = 0
        elif step.opname == "SET_ADD":  # numba puts the item into the iterator; see `literals._name_additions`
            steps[step.offset] = dis.opmap["LIST_APPEND"]
        elif step.opname == "STORE_FAST" and before is not None and before.opname == "COPY" and before.arg == 1:
            steps[before.offset : step.offset + 2] = bytes(
                (dis.opmap["STORE_FAST"], step.arg or 0, dis.opmap["LOAD_FAST"], step.arg or 0)
            )
        elif step.opname == "CONVERT_VALUE" and step.arg == _AS_TEXT:  # since Python 3.13
            steps[step.offset : step.offset + 2] = bytes((dis.opmap["FORMAT_SIMPLE"], 0))
        before = step
    return code.replace(co_code=bytes(steps), co_consts=tuple(constants))


@register_pass(mutates_CFG=True, analysis_only=False)
class _Replace(FunctionPass):
    _name = "foldflight_replace"

    def __init__(self) -> None:
        FunctionPass.__init__(self)

    def run_pass(self, state: Any) -> bool:
        role: _Role = state.func_id.func.__dict__["foldflight"]
        inline_comprehensions(state.func_ir, role.author.own_names)
        _Rewriter(role, state.func_ir, state.args).run()
        return True


@dataclass
class _Method:
    dispatcher: Any
    receiver: ir.Var | None
    parameters: tuple[str, ...] = ()  # of a method of a value; it receives None for omitted ones
    cls: Any = None  # of the NamedTuple whose `_replace` it is


class _Rewriter:
    """Rewrites one function."""

    def __init__(self, role: _Role, code: ir.FunctionIR, arguments: tuple[types.Type, ...]) -> None:
        self.role = role
        self.code = code
        self.arguments = arguments
        # Variables that have no type because they refer to Python objects, or to methods before their call.
        self.constants: dict[str, Any] = {}
        self.methods: dict[str, _Method] = {}
        self.output: list[ir.Stmt] = []
        # Vectors that operators have made, or changed in place: then with the record and the attribute.
        self.vectors: dict[str, tuple[Any, str] | None] = {}
        self.is_repeated = False  # whether the block is in a loop
        # Calls of `get` whose default is an int that may stand for a float, and the operators that use their results.
        self.defaults: set[int] = set()
        self.sums: set[int] = set()
        # Variables that hold the return value of each branch. The cast is inserted where they are assigned.
        self.returned: set[str] = set()

    def find_sums(self) -> None:
        """Find `known.get(key, 0) + value`, in which 0 stands for 0.0 if the dict and the value are floats.

        In Python the result is the float of 0.0 + value. It is not, if the 0 is used otherwise.
        """
        statements = [each for block in self.code.blocks.values() for each in block.body]
        uses = Counter(var.name for each in statements if not isinstance(each, ir.Del) for var in each.list_vars())

        def call_of(call: Any) -> ir.Expr | None:
            while isinstance(call, ir.Var) and uses[call.name] == 2:  # it is assigned once and used once
                call = self.code._definitions[call.name][0]
            if not isinstance(call, ir.Expr) or call.op != "call":
                return None
            default = self.root(call.args[1]) if len(call.args) == 2 and not call.kws else None
            number = default.value if isinstance(default, (ir.Const, ir.Global, ir.FreeVar)) else None
            is_default = type(number) is int and abs(number) <= _EXACT_MAX
            return call if is_default and attribute_of(self.root(call.func)) == "get" else None

        for statement in statements:
            expr = statement.value if isinstance(statement, ir.Assign) else None
            if not isinstance(expr, ir.Expr) or expr.op not in ("binop", "inplace_binop"):
                continue
            if (expr.fn if expr.op == "binop" else expr.immutable_fn) not in _SUMS:
                continue
            calls = [each for each in map(call_of, (expr.lhs, expr.rhs)) if each is not None]
            if len(calls) == 1:  # of two defaults, the sum is an int
                self.defaults.add(id(calls[0]))
                self.sums.add(id(expr))

    def split_whole_assignments(self) -> None:
        """Replace `items[:] = [a, b]`, of a list of fixed length, by the assignment of each item.

        As in Python, all values are known before the first is assigned.
        """
        statements = [each for block in self.code.blocks.values() for each in block.body]
        uses = Counter(var.name for each in statements if not isinstance(each, ir.Del) for var in each.list_vars())
        for block in self.code.blocks.values():
            body: list[ir.Stmt] = []
            for statement in block.body:
                is_item = isinstance(statement, (ir.SetItem, ir.StaticSetItem))
                count = self.length_of(statement.target) if is_item else None
                if count is None or not self.is_slice(statement.index, (None, None)):
                    body.append(statement)
                    continue
                try:
                    body += self.item_assignments(statement, count)
                except Unsupported as error:
                    raise error.at(statement.loc) from None
                made = self.code._definitions.get(statement.value.name, [None])[0]
                # A list that is assigned once and used once need not be made.
                if isinstance(made, ir.Expr) and made.op == "build_list" and uses[statement.value.name] == 2:
                    body = [each for each in body if getattr(each, "value", None) is not made]
            block.body = body

    def item_assignments(self, statement: ir.SetItem, count: int) -> list[ir.Stmt]:
        """Return the assignments of the items of a list of fixed length, given the assignment of all of them."""
        loc, value = statement.loc, self.root(statement.value)
        is_display = isinstance(value, ir.Expr) and value.op in ("build_list", "build_tuple")
        is_copy = self.length_of(statement.value) == count
        if not is_copy and not (is_display and len(value.items) == count):
            raise Unsupported(f"it assigns all items of a list of {count}, but not as in `items[:] = [a, b]`")
        assignments: list[ir.Stmt] = []
        for index in range(count):
            index_var = self.fresh(loc)
            assignments.append(ir.Assign(ir.Const(index, loc), index_var, loc))
            item = None if is_copy else value.items[index]
            if item is None:
                item = self.fresh(loc)
                assignments.append(ir.Assign(ir.Expr.getitem(statement.value, index_var, loc), item, loc))
            assignments.append(ir.SetItem(statement.target, index_var, item, loc))
        return assignments

    def length_of(self, var: ir.Var) -> int | None:
        """Return the number of items of a list of fixed length; None for any other variable."""
        type_ = self.type_of(var)
        if isinstance(type_, Items):
            return type_.length if type_.kind != "byte" else None
        if isinstance(type_, Reference) and type_.cls is list:
            return type_.count
        return None

    def run(self) -> None:
        self.split_whole_assignments()
        self.find_sums()
        raising_blocks = self.raising_blocks()
        if self.role.result is not None:
            self.find_return_variables()
        # Values on the stack, such as a function to call, are known before they are used, whatever the blocks' numbers:
        # the numbers of comprehensions, and of the code after them, are the highest.
        flow = ir_utils.compute_cfg_from_blocks(self.code.blocks)
        repeated_labels = {label for loop in flow.loops().values() for label in loop.body}
        for label in flow.topo_order():
            block = self.code.blocks[label]
            self.is_repeated = label in repeated_labels
            if label in raising_blocks:
                # The interpreter repeats the row, so the code before the exception need not run.
                block.body = [ir.StaticRaise(ArithmeticError, None, block.loc)]
                continue
            self.output = []
            for statement in block.body:
                try:
                    self.statement(statement)
                except Unsupported as error:
                    raise error.at(statement.loc) from None
            block.body = self.output
        for label in ir_utils.compute_cfg_from_blocks(self.code.blocks).dead_nodes():
            del self.code.blocks[label]
        self.check_leftovers()
        self.code._definitions = ir_utils.build_definitions(self.code.blocks)

    def raising_blocks(self) -> set[int]:
        """Return the blocks from which every path ends in an exception."""
        raising_blocks = {label for label, block in self.code.blocks.items() if isinstance(block.body[-1], ir.Raise)}
        more = True
        while more:
            more = False
            for label, block in self.code.blocks.items():
                ways = block.terminator.get_targets()
                if label not in raising_blocks and ways and raising_blocks.issuperset(ways):
                    raising_blocks.add(label)
                    more = True
        return raising_blocks

    def find_return_variables(self) -> None:
        """Find the compiler's variables for the value of `return a if c else b`, which are assigned on each branch."""
        definitions = self.code._definitions
        for block in self.code.blocks.values():
            if isinstance(block.terminator, ir.Return):
                (cast,) = definitions[block.terminator.value.name]
                operand = getattr(cast, "value", None)
                if isinstance(operand, ir.Var) and operand.name.startswith("$") and len(definitions[operand.name]) > 1:
                    self.returned.add(operand.name)
                    self.returned.add(block.terminator.value.name)

    def check_leftovers(self) -> None:
        """Raise Unsupported for uses of Python objects that the pass has not replaced."""
        for block in self.code.blocks.values():
            for statement in block.body:
                if isinstance(statement, ir.Del):
                    continue
                for var in statement.list_vars():
                    own = isinstance(statement, ir.Assign) and var == statement.target
                    if not own and (var.name in self.methods or self.is_opaque(var.name)):
                        problem = Unsupported(f"it uses {self.describe(var.name)} as a value")
                        raise problem.at(statement.loc)

    def is_opaque(self, name: str) -> bool:
        return name in self.constants and self.is_opaque_object(self.constants[name])

    def is_opaque_object(self, value: Any) -> bool:
        """Return whether a constant is a Python object that compiled code cannot represent."""
        if (type(value) is tuple and all(type(each) in _CONSTANTS for each in value)) or _is_sequence(value):
            return False
        if type(value) is decimal.Decimal:
            return decimals.constant_of(value) is None
        return type(value) not in (*_CONSTANTS, str, bytes) and datetimes.number_of(value) is None

    def is_true(self, var: ir.Var) -> bool:
        """Return whether a constant number is true. Other objects, such as lists, are unsupported: they may change."""
        if self.is_opaque(var.name):
            raise Unsupported(f"it uses {self.describe(var.name)} as a condition")
        return bool(self.constants[var.name])

    def describe(self, name: str) -> str:
        value = self.constants.get(name, "a method")
        return getattr(value, "__name__", None) or repr(value)[:60]

    # --- statements -----------------------------------------------------------------------------------------------

    def statement(self, statement: ir.Stmt) -> None:
        match statement:
            case ir.Assign():
                self.assign(statement)
            case ir.Return() if self.role.result is not None and statement.value.name not in self.returned:
                result_var = self.call(self.role.result, (statement.value,), statement.loc)
                self.output.append(ir.Return(result_var, statement.loc))
            case ir.Branch() if statement.cond.name in self.constants:
                branch = statement.truebr if self.is_true(statement.cond) else statement.falsebr
                self.output.append(ir.Jump(branch, statement.loc))
            case ir.SetAttr():
                reference = self.reference(statement.target)
                if reference is None and self.root(statement.target) is None:
                    raise Unsupported(
                        f"it assigns {statement.attr} of one of several objects; assign it in each branch instead"
                    )
                if reference is None or not reference.changeable or reference.is_plain:
                    raise Unsupported(
                        f"it assigns {statement.attr} to self or in get_value, where only reading is allowed"
                    )
                self.set_member(statement, reference)
            case ir.SetItem() | ir.StaticSetItem() if self.is_record(statement.target):
                reference = self.reference(statement.target)
                assert reference is not None
                name = self.key(reference, statement.index)
                if not reference.changeable:
                    raise Unsupported(f"it assigns {name} in get_value, where only reading is allowed")
                self.set_member(ir.SetAttr(statement.target, name, statement.value, statement.loc), reference)
            case ir.SetItem():
                actual = (statement.target, statement.index, statement.value)
                self.call(operators.set_item, actual, statement.loc)
            case ir.DelItem():
                self.call(containers.delete_item, (statement.target, statement.index), statement.loc)
            case ir.StaticSetItem():
                actual = (statement.target, statement.index_var, statement.value)
                self.call(operators.set_item, actual, statement.loc)
            case ir.Return() | ir.Branch() | ir.Jump() | ir.Del() | ir.StaticRaise():
                self.output.append(statement)
            case _:
                raise Unsupported(f"it has a statement that cannot be compiled: {type(statement).__name__}")

    def set_member(self, statement: ir.SetAttr, reference: Reference) -> None:
        """Replace the assignment of an attribute of the accumulator, or of the value of a fixed key."""
        if statement.attr in reference.parts:
            raise Unsupported(f"it replaces the object {statement.attr}; only its members can be assigned")
        if statement.attr in reference.tuples:
            name = self.constant(statement.attr, statement.loc)
            self.call(put_tuple, (statement.target, name, statement.value), statement.loc)
            return
        if statement.attr not in reference.fields:
            lacks = "a new accumulator does not have" if reference.layout.exact else "its class does not annotate"
            raise Unsupported(f"it assigns {statement.attr}, which {lacks}")
        if reference.fields[statement.attr].vector:
            self.put_vector(statement)
            return
        if reference.fields[statement.attr].length:
            raise Unsupported(f"it replaces the list {statement.attr}; only its items can be assigned")
        if reference.fields[statement.attr].contents is not None:
            mine = self.fresh(statement.loc)
            getattr_expr = ir.Expr.getattr(statement.target, statement.attr, statement.loc)
            self.output.append(ir.Assign(getattr_expr, mine, statement.loc))
            self.call(containers.put_whole, (mine, statement.value), statement.loc)
            return
        if reference.layout.exact:
            member = reference.fields[statement.attr]
            convert = OPTIONALS[member.kind] if member.optional else EXACTLY.get(member.kind)
            if convert is not None:
                value = self.call(convert, (statement.value,), statement.loc)
                statement = ir.SetAttr(statement.target, statement.attr, value, statement.loc)
        self.output.append(statement)

    def assign(self, statement: ir.Assign) -> None:
        value, target = statement.value, statement.target
        match value:
            case ir.Global() | ir.FreeVar() | ir.Const():
                self.object(statement, value.value)
            case ir.Expr():
                self.expression(statement, value)
            case ir.Var():
                if value.name in self.methods or self.is_opaque(value.name):
                    raise Unsupported(f"it assigns {self.describe(value.name)} to a variable")
                if target.name in self.returned:
                    value = self.call(self.role.result, (value,), statement.loc)
                self.output.append(ir.Assign(value, target, statement.loc))
            case _:
                self.output.append(statement)

    def object(self, statement: ir.Assign, value: Any) -> None:
        """Record a known object as the value of a variable. Only numbers stay in the code."""
        if len(self.code._definitions.get(statement.target.name, ())) <= 1:
            self.constants[statement.target.name] = value
        elif self.is_opaque_object(value):
            # With several assignments, the variable has this value only after one of them.
            raise Unsupported(f"it assigns {getattr(value, '__name__', value)} to a variable")
        if type(value) is int and not -(1 << 63) <= value < 1 << 63:
            raise Unsupported(f"it uses the number {value}, which exceeds 64 bits")
        if type(value) in _CONSTANTS:
            self.output.append(ir.Assign(ir.Const(value, statement.loc), statement.target, statement.loc))
        elif _is_sequence(value):
            self.sequence(statement, value)
        elif type(value) in (str, bytes):
            function, literal = strings.constant_of(value)
            self.emit_call(statement.target, function, (self.constant(literal, statement.loc),), statement.loc)
        elif decimals.constant_of(value) is not None:
            literal = self.constant(str(value), statement.loc)
            self.emit_call(statement.target, decimals.constant, (literal,), statement.loc)
        elif (moment := datetimes.number_of(value)) is not None:
            number = self.constant(moment[1], statement.loc)
            self.emit_call(statement.target, decode_kind(moment[0]), (number,), statement.loc)

    def sequence(self, statement: ir.Assign, values: Any) -> None:
        """Make a tuple of a constant list or tuple."""
        items = []
        for value in values:
            items.append(self.fresh(statement.loc))
            self.object(ir.Assign(ir.Const(None, statement.loc), items[-1], statement.loc), value)
        tuple_expr = ir.Expr.build_tuple(items, statement.loc)
        self.output.append(ir.Assign(tuple_expr, statement.target, statement.loc))

    def expression(self, statement: ir.Assign, expr: ir.Expr) -> None:
        loc, target = statement.loc, statement.target
        if expr.op in ("binop", "inplace_binop"):
            self.binary(statement, expr)
        elif expr.op == "unary":
            function = expr.fn
            if function is operator.not_ and expr.value.name in self.constants:
                self.object(statement, not self.is_true(expr.value))
            elif function in vectors.OPERATORS and self.is_vector(expr.value):
                self.make_vector(target, function, (expr.value,), loc)
            else:
                self.emit_call(target, self.implementation(function), (expr.value,), loc)
        elif expr.op == "getattr":
            self.attribute(statement, expr)
        elif expr.op == "call":
            self.rewrite_call(statement, expr)
        elif expr.op == "build_tuple" and self.is_format(expr.items):
            value, spec = expr.items[0], self.constants[expr.items[1].name]
            if type(spec) is _TextFormat:
                value = self.call(operators.CALLS[str], (value,), loc)
            self.write(target, value, str(spec), loc)
        elif expr.op == "build_tuple" and expr.items and all(item.name in self.constants for item in expr.items):
            self.constants[target.name] = tuple(self.constants[item.name] for item in expr.items)
            if not self.is_opaque(target.name):
                self.output.append(statement)
        elif expr.op in ("getitem", "static_getitem") and self.item(statement, expr):
            pass
        elif expr.op in ("build_list", "build_set", "build_map"):
            self.container(statement, expr.op.removeprefix("build_").replace("map", "dict"), expr.items)
        elif expr.op == "getiter":
            if isinstance(self.type_of(expr.value), types.Optional):
                expr = ir.Expr.getiter(self.call(require_value, (expr.value,), loc), loc)
            elif self.root(expr.value) is not None and self.may_lack(expr.value):
                expr = ir.Expr.getiter(self.call(containers.require_container, (expr.value,), loc), loc)
            self.output.append(ir.Assign(expr, target, loc))
        elif expr.op == "exhaust_iter" and self.is_record(expr.value):
            reference = self.reference(expr.value)
            if reference is None or reference.cls is dict or expr.count != reference.count:
                raise Unsupported("it unpacks a dict, or a list into another number of variables")
            self.output.append(ir.Assign(expr.value, target, loc))
        elif expr.op == "exhaust_iter" and self.may_be_no_tuple(expr.value):
            items = ir.Expr.exhaust_iter(self.without_optional(expr.value, loc), expr.count, loc)
            self.output.append(ir.Assign(items, target, loc))
        elif expr.op in _ALLOWED:
            self.output.append(statement)
        else:
            raise Unsupported(f"it creates {_NAMES.get(expr.op, expr.op)}")

    def item(self, statement: ir.Assign, expr: ir.Expr) -> bool:
        """Replace the use of an item. Return whether there is one; False for an item by an index that numba reads."""
        loc, target = statement.loc, statement.target
        if self.is_record(expr.value):
            reference = self.reference(expr.value)
            assert reference is not None
            name = self.key(reference, expr.index)
            if reference.type_of(name) is None:
                raise Unsupported(f"it uses the key {name!r}, which a new accumulator does not have")
            self.output.append(ir.Assign(ir.Expr.getattr(expr.value, name, loc), target, loc))
        elif expr.op == "getitem" and self.is_member(expr):
            index, value = self.constants[expr.index.name], self.without_optional(expr.value, loc)
            self.output.append(ir.Assign(ir.Expr.static_getitem(value, index, expr.index, loc), target, loc))
        elif expr.op == "static_getitem" and self.may_be_no_tuple(expr.value):
            value = self.without_optional(expr.value, loc)
            self.output.append(ir.Assign(ir.Expr.static_getitem(value, expr.index, expr.index_var, loc), target, loc))
        elif self.struct(expr.value) is not None:
            index = expr.index if expr.op == "static_getitem" else self.constants.get(expr.index.name)
            self.field(statement, expr.value, index)
        elif expr.op == "getitem" and type(self.constants.get(expr.value.name)) is dict:
            constant_dict = self.constants[expr.value.name]
            find = strings.table_of(tuple(constant_dict), tuple(constant_dict.values()), without="error")
            self.emit_call(target, find, (expr.index,), loc)
        elif expr.op == "getitem" and self.is_slice(expr.index, (None, None, -1)):
            self.emit_call(target, operators.reverse, (expr.value,), loc)
        elif expr.op == "getitem":
            is_constant = type(self.constants.get(expr.index.name)) is int
            implementation = operators.get_constant_item if is_constant else operators.get_item
            self.emit_call(target, implementation, (expr.value, expr.index), loc)
        elif expr.index_var is not None and self.holds_items(expr.value):
            self.emit_call(target, operators.get_item, (expr.value, expr.index_var), loc)
        else:
            return False
        return True

    def is_record(self, var: ir.Var) -> bool:
        """Return whether a variable is a dict with fixed keys, or a list of several types, which is a record."""
        reference = self.reference(var)
        return reference is not None and reference.is_plain

    def key(self, reference: Reference, index: Any) -> str:
        """Return the name of the member that an index names, which is a variable or a constant."""
        constant_key = self.constants.get(index.name) if isinstance(index, ir.Var) else index
        name = reference.name_of(constant_key)
        if name is None:
            what = "a key" if reference.cls is dict else "an index"
            raise Unsupported(f"it uses {what} that is not constant of {describe_type(reference)}")
        return name

    def is_slice(self, index: Any, parts: tuple[int | None, ...]) -> bool:
        """Return whether an index is a slice of these constants, such as (None, None, -1) for `::-1`."""
        root = self.root(index) if isinstance(index, ir.Var) else index
        if type(root) is slice or isinstance(root, (ir.Const, ir.Global)):
            return bool(getattr(root, "value", root) == slice(*parts))
        if not isinstance(root, ir.Expr) or root.op != "call":
            return False
        function, *arguments = (self.root(each) for each in (root.func, *root.args))
        values = [each.value if isinstance(each, (ir.Const, ir.Global)) else each for each in (function, *arguments)]
        return values == [slice, *parts]

    def is_format(self, items: list[ir.Var]) -> bool:
        return len(items) == 2 and isinstance(self.constants.get(items[1].name), Format)

    def write(self, target: ir.Var, value: ir.Var, spec: str, loc: Any) -> None:
        """Write a value as a text with a format."""
        self.emit_call(target, formats.format_value, (value, self.constant(spec, loc)), loc)

    def join(self, target: ir.Var, pieces: list[Any], loc: Any) -> None:
        """Concatenate constant texts and variables that are texts."""
        parts = [each for each in pieces if each != ""]
        joined_var: Any = None
        for each in parts:
            part = each
            if isinstance(each, str):
                part = self.fresh(loc)
                function, literal = strings.constant_of(each)
                self.emit_call(part, function, (self.constant(literal, loc),), loc)
            joined_var = (
                part if joined_var is None else self.call(operators.OPERATORS[operator.add], (joined_var, part), loc)
            )
        if joined_var is None:
            raise Unsupported("it writes an empty text with a format")
        self.output.append(ir.Assign(joined_var, target, loc))

    def percent(self, statement: ir.Assign, template: str, values: ir.Var) -> None:
        """Replace `template % values`, where `values` is a tuple display or one value that is no tuple."""
        root, loc = self.root(values), statement.loc
        is_tuple = isinstance(root, ir.Expr) and root.op == "build_tuple"
        actual = list(root.items) if is_tuple else [values]
        pieces: list[Any] = []
        for literal, spec in formats.pieces_of(template):
            pieces.append(literal)
            if spec is None:
                continue
            if not actual:
                raise Unsupported("it writes fewer values than its format has places")
            value = actual.pop(0)
            if spec.endswith("f"):  # it converts decimals to floats first
                value = self.call(operators.CALLS[float], (value,), loc)
            elif spec.endswith("s"):  # the format has the width of the text, also of a bool or a date
                value = self.call(formats.text_of, (value,), loc)
            pieces.append(self.fresh(loc))
            self.write(pieces[-1], value, spec, loc)
        if actual:
            raise Unsupported("it writes more values than its format has places")
        self.join(statement.target, pieces, loc)

    def template(self, statement: ir.Assign, expr: ir.Expr, template: str) -> None:
        """Replace `template.format(...)`."""
        pieces: list[Any] = []
        keyword_values, field_number = dict(expr.kws), 0
        names = {name for _, name, _, _ in string.Formatter().parse(template)}
        if "" in names and any(name and name.isdecimal() for name in names):
            raise Unsupported(f"it uses the format {template!r}, with numbers and without, which Python refuses")
        if expr.vararg is not None:
            raise Unsupported("it calls format with starred arguments")
        for literal, name, spec, conversion in string.Formatter().parse(template):
            pieces.append(literal)
            if name is None:
                continue
            if conversion is not None or "{" in (spec or ""):
                raise Unsupported(f"it uses the format {template!r}, which is not compiled")
            key = name or str(field_number)
            field_number += name == ""
            value = expr.args[int(key)] if key.isdecimal() and int(key) < len(expr.args) else keyword_values.get(key)
            if value is None:
                raise Unsupported(f"it uses {{{name}}} in a format, which is no argument of format")
            pieces.append(self.fresh(statement.loc))
            self.write(pieces[-1], value, spec or "", statement.loc)
        self.join(statement.target, pieces, statement.loc)

    def container(self, statement: ir.Assign, shape: str, items: list[Any]) -> None:
        """Replace a list, dict or set display by an empty container to which the items are added."""
        self.emit_call(statement.target, EMPTY[shape], (), statement.loc)
        add_method = containers.METHODS[{"list": "append", "dict": "__setitem__", "set": "add"}[shape]]
        for item in items:
            self.call(add_method, (statement.target, *(item if isinstance(item, tuple) else (item,))), statement.loc)

    def binary(self, statement: ir.Assign, expr: ir.Expr) -> None:
        function = expr.immutable_fn if expr.op == "inplace_binop" else expr.fn
        if function in (operator.is_, operator.is_not):
            value, other = expr.lhs, expr.rhs
            if self.constants.get(value.name, "") is None:
                value, other = other, value
            if self.constants.get(other.name, "") is not None:
                raise Unsupported("it uses `is` with something other than None")
            asks = operators.is_none if function is operator.is_ else operators.is_some
            self.emit_call(statement.target, asks, (value,), statement.loc)
            return
        if function in vectors.OPERATORS and (self.is_vector(expr.lhs) or self.is_vector(expr.rhs)):
            self.of_vectors(statement, expr, function)
            return
        if function is operator.contains and self.contains(statement, expr.lhs, expr.rhs):
            return
        if function is operator.mod and type(self.constants.get(expr.lhs.name)) is str:
            self.percent(statement, self.constants[expr.lhs.name], expr.rhs)
            return
        replacement = self.implementation(function)
        if expr.op == "inplace_binop":
            replacement = operators.IN_PLACE.get(function, replacement)
        if id(expr) in self.sums:
            self.call(operators.check_same_kind, (expr.lhs, expr.rhs), statement.loc)
        self.emit_call(statement.target, replacement, (expr.lhs, expr.rhs), statement.loc)

    def of_vectors(self, statement: ir.Assign, expr: ir.Expr, function: Any) -> None:
        """Replace an operator of vectors."""
        if expr.op == "binop":
            self.make_vector(statement.target, function, (expr.lhs, expr.rhs), statement.loc)
            return
        getattr_expr = self.root(expr.lhs)
        if not (
            isinstance(getattr_expr, ir.Expr)
            and getattr_expr.op == "getattr"
            and isinstance(self.type_of(expr.lhs), VectorType)
        ):
            raise Unsupported("it changes a vector in place that is no attribute of the accumulator")
        self.vectors[statement.target.name] = (self.root(getattr_expr.value), getattr_expr.attr)
        self.emit_call(statement.target, vectors.IN_PLACE[function], (expr.lhs, expr.rhs), statement.loc)

    def make_vector(self, target: ir.Var, function: Any, operands: tuple[ir.Var, ...], loc: Any) -> None:
        if self.is_repeated:  # each turn would write to the same temporary array
            raise Unsupported("it makes a vector in a loop; only +=, -=, *= and /= of vectors are compiled there")
        self.vectors[target.name] = None
        self.emit_call(target, vectors.OPERATORS[function], operands, loc)

    def put_vector(self, statement: ir.SetAttr) -> None:
        """Omit an assignment that is a part of `accumulator.attr += value`; the operator has changed the items."""
        if self.vectors.get(statement.value.name) != (self.root(statement.target), statement.attr):
            raise Unsupported(
                f"it replaces the vector {statement.attr}, and others may refer to it; change it by +=, -=, *= or /="
            )

    def is_vector(self, var: ir.Var) -> bool:
        """Return whether a variable is certainly a vector."""
        while var.name not in self.vectors:
            type_ = self.type_of(var)
            if isinstance(getattr(type_, "type", type_), VectorType):
                return True
            definitions = self.code._definitions[var.name]
            if len(definitions) != 1 or not isinstance(definitions[0], ir.Var):
                return False
            var = definitions[0]
        return True

    def contains(self, statement: ir.Assign, holder: ir.Var, item: ir.Var) -> bool:
        """Replace `item in holder` of a collection of constants. Return whether it is one."""
        constant_items: Any = self.constants.get(holder.name)
        if type(constant_items) not in (tuple, list, set, frozenset, dict):
            return False
        if 0 < len(constant_items) <= _CHAINED_MAX and {int, float}.issuperset(map(type, constant_items)):
            equal, loc = operators.OPERATORS[operator.eq], statement.loc
            answers = [self.call(equal, (item, self.constant(each, loc)), loc) for each in constant_items]
            for answer in answers[1:]:
                answers[0] = self.call(operators.OPERATORS[operator.or_], (answers[0], answer), loc)
            self.output.append(ir.Assign(answers[0], statement.target, statement.loc))
            return True
        find = strings.table_of(tuple(constant_items), (True,) * len(constant_items))
        self.emit_call(statement.target, find, (item, self.constant(False, statement.loc)), statement.loc)
        return True

    def look_up(self, statement: ir.Assign, expr: ir.Expr, function: Any) -> bool:
        """Replace `known.get(key, default)` of a dict of constants, and `known.index(item)` of a list or tuple.

        Return whether it is such a call.
        """
        known = function.__self__ if isinstance(function, _BUILT_IN) else None
        if type(known) is dict and function.__name__ == "get":
            keys, values, most = tuple(known), tuple(known.values()), 2
            without = "none" if len(expr.args) == 1 else "default"
        elif isinstance(known, (list, tuple)) and function.__name__ == "index":
            if not {*map(type, known)} <= {str, bytes, int}:
                raise Unsupported("it calls index of constants that are no texts, bytes or whole numbers")
            keys, values, most, without = tuple(known), tuple(range(len(known))), 1, "error"
        else:
            return False
        if not 1 <= len(expr.args) <= most or expr.kws:
            raise Unsupported(f"it calls {function.__name__} of constants with named arguments, or with too many")
        find = strings.table_of(keys, values, without=without)
        self.emit_call(statement.target, find, tuple(expr.args), expr.loc)
        return True

    def implementation(self, function: Any) -> Any:
        if function not in operators.OPERATORS:
            raise Unsupported(f"it uses the operator {getattr(function, '__name__', function)}")
        return operators.OPERATORS[function]

    def attribute(self, statement: ir.Assign, expr: ir.Expr) -> None:
        base = expr.value.name
        if base in self.constants:
            constant_value = self.constants[base]
            if type(constant_value) is str and expr.attr == "format":
                self.methods[statement.target.name] = _Method(formats.format_value, expr.value)
                return
            if type(constant_value) in (str, bytes) and expr.attr in _OF_VALUES:
                self.methods[statement.target.name] = _Method(_OF_VALUES[expr.attr], expr.value)
                return
            if not hasattr(constant_value, expr.attr):
                raise Unsupported(f"{self.describe(base)} has no attribute {expr.attr}")
            self.object(statement, getattr(constant_value, expr.attr))
            return
        tuple_class = self.named_tuple(expr.value)
        if tuple_class is not None:
            self.member(statement, expr, tuple_class)
            return
        reference = self.reference(expr.value)
        if expr.attr == "get" and self.struct(expr.value) is not None:
            self.methods[statement.target.name] = _Method(field_of, expr.value)
            return
        if reference is None and expr.attr in containers.METHODS:
            self.methods[statement.target.name] = _Method(
                containers.METHODS[expr.attr], self.snapshot(expr.value, statement.loc)
            )
            return
        if reference is None:
            self.attribute_of_value(statement, expr)
            return
        if expr.attr in (*reference.fields, *reference.parts, *reference.tuples) and not reference.is_plain:
            self.output.append(statement)
            return
        if reference.is_plain:
            what = describe_type(reference)
            raise Unsupported(f"it uses {expr.attr} of {what}; use its items one by one")
        attribute = reference.static(expr.attr)
        if isinstance(attribute, property):
            self.emit_call(statement.target, self.compile_callee(attribute.fget), (expr.value,), statement.loc)
        elif isinstance(attribute, staticmethod):
            self.methods[statement.target.name] = _Method(self.compile_callee(attribute.__func__), None)
        elif isinstance(attribute, python.FunctionType):
            self.methods[statement.target.name] = _Method(self.compile_callee(attribute), expr.value)
        elif type(attribute) in _NAMED or datetimes.number_of(attribute) is not None:
            self.object(statement, attribute)
        else:
            raise Unsupported(f"it uses {reference.cls.__name__}.{expr.attr}, a {type(attribute).__name__}")

    def named_tuple(self, var: ir.Var) -> type | None:
        """Return the class of a variable that is a NamedTuple; None for others, and if it is not known."""
        while len(definitions := self.code._definitions[var.name]) == 1 and isinstance(definitions[0], ir.Var):
            var = definitions[0]
        if len(definitions) > 1:
            return self.class_of_all(definitions, {var.name})
        type_, root = self.type_of(var), self.root(var)
        type_ = type_.type if isinstance(type_, types.Optional) else type_
        if isinstance(type_, types.BaseTuple):
            return class_of(type_)
        element = self.element(root)
        if element is not None:
            return element.cls
        callee_name = root.func.name if isinstance(root, ir.Expr) and root.op == "call" else ""
        if callee_name in self.methods:
            method = self.methods[callee_name]
            return datetimes.IsoCalendarDate if method.dispatcher is datetimes.METHODS["isocalendar"] else method.cls
        made_by = self.constants.get(callee_name)
        return made_by if is_named_tuple(made_by) else None

    def class_of_all(self, definitions: list[Any], names: set[str]) -> type | None:
        """Return the class of a variable that is assigned several times, if all values are NamedTuples of one class.

        Args:
            definitions: The values, such as the argument `bar`, and `bar._replace(...)`.
            names: The variables that are followed, which may depend on each other.
        """
        classes = set()
        for definition in definitions:
            made = definition
            callee: Any = self.root(made.func) if isinstance(made, ir.Expr) and made.op == "call" else None
            if isinstance(callee, (ir.Global, ir.FreeVar)):
                classes.add(callee.value if is_named_tuple(callee.value) else None)
                continue
            made = callee.value if attribute_of(callee) == "_replace" else made
            while isinstance(made, ir.Var) and made.name not in names:
                names.add(made.name)
                made = self.root(made) or made
            if isinstance(made, ir.Arg):
                type_ = self.arguments[made.index]
                classes.add(class_of(type_) if isinstance(type_, types.BaseTuple) else None)
            elif not isinstance(made, ir.Var):
                classes.add(None)
        return classes.pop() if len(classes) == 1 else None

    def element(self, root: Any) -> Element | None:
        """Return the type of a value that code takes out of a container, or that a loop over one yields.

        None if that is not known. `root` is the definition of the variable.
        """
        if not isinstance(root, ir.Expr):
            return None
        if root.op == "call":
            method = self.methods.get(root.func.name)
            contents = self.contents_of(method.receiver) if method and method.dispatcher in _TAKING_OUT else None
            return None if contents is None else contents.value or contents.key
        if root.op == "pair_first":
            yielded = self.yielded(root)
            return yielded[0] if len(yielded) == 1 else None
        if root.op not in ("getitem", "static_getitem"):
            return None
        contents = self.contents_of(root.value)
        if contents is not None:
            return contents.value or contents.key
        # The key and the value in a loop over the items of a dict are members of a pair, which is unpacked.
        pair = self.root(root.value)
        yielded = self.yielded(self.root(pair.value)) if isinstance(pair, ir.Expr) and pair.op == "exhaust_iter" else ()
        return yielded[root.index] if root.op == "static_getitem" and len(yielded) == 2 else None

    def yielded(self, item: Any) -> tuple[Element, ...]:
        """Return the types of what a loop over a container yields: two for the items of a dict; none if not known."""
        for op in ("pair_first", "iternext", "getiter"):
            if not isinstance(item, ir.Expr) or item.op != op:
                return ()
            item = item.value if op == "getiter" else self.root(item.value)
        call = self.root(item)
        method = self.methods.get(call.func.name) if isinstance(call, ir.Expr) and call.op == "call" else None
        contents = self.contents_of(item if method is None else method.receiver)
        views = {containers.METHODS[name]: name for name in ("items", "keys", "values")}
        view = "keys" if method is None else views.get(method.dispatcher, "")
        if contents is None or not view:
            return ()
        parts = (contents.key,) if contents.value is None else (contents.key, contents.value)
        return {"items": parts, "keys": parts[:1], "values": parts[1:]}[view]

    def contents_of(self, var: ir.Var | None) -> Contents | None:
        """Return the types in a variable that is a container of an accumulator or an argument; None for others."""
        type_ = None if var is None else self.type_of(var)
        type_ = type_.type if isinstance(type_, types.Optional) else type_
        return type_.contents if isinstance(type_, containers.ContainerType) and not type_.view else None

    def member(self, statement: ir.Assign, expr: ir.Expr, cls: Any) -> None:
        """Replace the use of an attribute of a NamedTuple, which may be None."""
        static = inspect.getattr_static(cls, expr.attr, None)
        if expr.attr == "_replace":
            self.methods[statement.target.name] = _Method(_REPLACE, self.snapshot(expr.value, statement.loc), cls=cls)
            return
        value = self.call(require_value, (expr.value,), statement.loc)
        if expr.attr in cls._fields:
            getattr_expr = ir.Expr.getattr(value, expr.attr, statement.loc)
            self.output.append(ir.Assign(getattr_expr, statement.target, statement.loc))
        elif isinstance(static, property):
            self.emit_call(statement.target, self.compile_callee(static.fget), (value,), statement.loc)
        elif isinstance(static, python.FunctionType):
            receiver = self.snapshot(value, statement.loc)
            self.methods[statement.target.name] = _Method(self.compile_callee(static), receiver)
        else:
            raise Unsupported(f"it uses {cls.__name__}.{expr.attr}")

    def make_named(self, statement: ir.Assign, expr: ir.Expr, cls: Any, members: dict[str, ir.Var]) -> None:
        """Replace a call that makes a NamedTuple; `members` has those that the call need not give."""
        members_by_name = {**members, **dict(zip(cls._fields, expr.args, strict=False)), **dict(expr.kws)}
        if expr.vararg is not None or len(expr.args) > len(cls._fields) or not members_by_name.keys() <= {*cls._fields}:
            raise Unsupported(f"it makes a {cls.__name__} with unknown or starred arguments")
        actual, accumulator_type = [], self.role.author.accumulator
        for name in cls._fields:
            if name not in members_by_name:
                if name not in cls._field_defaults:
                    raise Unsupported(f"it makes a {cls.__name__} without {name}")
                members_by_name[name] = self.fresh(statement.loc)
                self.object(
                    ir.Assign(ir.Const(None, statement.loc), members_by_name[name], statement.loc),
                    cls._field_defaults[name],
                )
                if self.is_opaque(members_by_name[name].name):
                    raise Unsupported(
                        f"it makes a {cls.__name__} with the default of {name}, which is not a plain value"
                    )
            # Members that may be None have the same type in all branches.
            type_ = (
                None
                if accumulator_type is None or accumulator_type.tuple_class is not cls
                else accumulator_type.type_of(name)
            )
            if isinstance(type_, types.Optional):
                members_by_name[name] = self.call(
                    OPTIONALS[str(kind_of(type_.type))], (members_by_name[name],), statement.loc
                )
            actual.append(members_by_name[name])
        self.emit_call(statement.target, cls, tuple(actual), statement.loc)

    def attribute_of_value(self, statement: ir.Assign, expr: ir.Expr) -> None:
        if expr.attr in datetimes.ATTRIBUTES:
            self.emit_call(statement.target, datetimes.ATTRIBUTES[expr.attr], (expr.value,), statement.loc)
        elif expr.attr in _OF_VALUES:
            receiver = self.snapshot(expr.value, statement.loc)
            self.methods[statement.target.name] = _Method(_OF_VALUES[expr.attr], receiver)
        elif expr.attr == "replace":
            self.methods[statement.target.name] = _Method(
                operators.replace_method, self.snapshot(expr.value, statement.loc), datetimes.REPLACE_PARAMETERS
            )
        else:
            self.emit_call(
                statement.target, member_of, (expr.value, self.constant(expr.attr, statement.loc)), statement.loc
            )

    def compile_callee(self, function: Any) -> Any:
        if (function.__module__ or "").partition(".")[0] in sys.stdlib_module_names:  # reasons would name its lines
            raise Unsupported(f"it calls {function.__module__}.{function.__qualname__}")
        return self.role.author.compile_callee(self.role.function, function)

    def rewrite_call(self, statement: ir.Assign, expr: ir.Expr) -> None:
        name = expr.func.name
        arguments = tuple(expr.args)
        if name in self.methods:
            self.calling_method(statement, expr, self.methods[name])
            return
        if name not in self.constants:
            raise self.unknown_function(self.root(expr.func))
        function = self.constants[name]
        if is_named_tuple(function):
            self.make_named(statement, expr, function, {})
            return
        if self.look_up(statement, expr, function) or self.inspect_value(statement, function, expr):
            return
        if function is bool and len(arguments) == 1 and arguments[0].name in self.constants:
            self.object(statement, self.is_true(arguments[0]))
        elif any(function is each for each in _FOLDED) and self.are_known(expr):
            self.object(statement, self.fold_constant(function, expr))
        elif function in (list, dict, set) and not arguments and not expr.kws and expr.vararg is None:
            self.container(statement, function.__name__, [])
        elif function is format and 1 <= len(arguments) <= 2 and not expr.kws:
            spec = self.constants.get(arguments[1].name) if len(arguments) == 2 else ""
            if type(spec) is not str:
                raise Unsupported("it calls format with a format that is not constant")
            self.write(statement.target, arguments[0], spec, statement.loc)
        elif function is datetime.timedelta:
            actual = self.by_name(statement, expr, tuple(datetimes.DURATION), 0)
            self.emit_call(statement.target, datetimes.duration_of, actual, statement.loc)
        elif function is zip and len(arguments) > 1 and [name for name, _ in expr.kws] == ["strict"]:
            if self.is_true(expr.kws[0][1]):
                for each in arguments[1:]:
                    self.call(operators.check_lengths, (arguments[0], each), statement.loc)
            self.emit_call(statement.target, zip, arguments, statement.loc)
        elif _is_known(function):
            if len(arguments) == len(expr.kws) == 1 and self.with_option(
                statement, function, arguments[0], *expr.kws[0]
            ):
                return
            if expr.kws or expr.vararg:
                raise Unsupported(f"it calls {function.__name__} with named or starred arguments")
            if function in (min, max) and len(arguments) == 1:
                self.emit_call(statement.target, operators.EXTREMES[function], arguments, statement.loc)
                return
            implementation = operators.CALLS[function]
            while function in (min, max) and len(arguments) > 2:
                arguments = (self.call(implementation, arguments[:2], statement.loc), *arguments[2:])
            if not takes(implementation, len(arguments)):
                remedy = "; round in get_value" if function is round else ""
                raise Unsupported(f"it calls {function.__name__} with {len(arguments)} arguments{remedy}")
            self.emit_call(statement.target, implementation, arguments, statement.loc)
        elif isinstance(function, python.FunctionType):
            self.emit_call(statement.target, self.compile_callee(function), arguments, statement.loc, expr)
        else:
            # A ufunc of NumPy 1 has no qualified name.
            name = getattr(function, "__name__", type(function).__name__)
            raise Unsupported(f"it calls {getattr(function, '__qualname__', name)}")

    def unknown_function(self, function: Any) -> Unsupported:
        """Return the error for a call of a function or method that is not known."""
        attribute = attribute_of(function)
        if attribute and self.reference(function.value) is None:
            return Unsupported(f"it uses the attribute {attribute} of a value")
        return Unsupported("it calls a function that is not known when it is compiled")

    def inspect_value(self, statement: ir.Assign, function: Any, expr: ir.Expr) -> bool:
        """Replace a call of `isinstance`, or of `getattr` with a constant name. Return whether it is one."""
        if expr.kws or expr.vararg is not None or not 2 <= len(expr.args) <= 3:
            return False
        constant = self.constants.get(expr.args[1].name)
        if function is isinstance and constant is not None and len(expr.args) == 2:
            self.is_instance(statement, expr.args[0], constant)
        elif function is getattr:
            if type(constant) is not str:
                raise Unsupported("it calls getattr with a name that is not constant")
            # What lacks the attribute is refused, or interpreted, so the default is never the result.
            self.attribute(statement, ir.Expr.getattr(expr.args[0], constant, statement.loc))
        else:
            return False
        return True

    def with_option(self, statement: ir.Assign, function: Any, values: ir.Var, name: str, option: ir.Var) -> bool:
        """Replace a call of one argument with an option by name. Return whether there is such a call."""
        if function in (min, max) and name == "default":
            self.emit_call(statement.target, operators.EXTREMES[function], (values, option), statement.loc)
        elif function is enumerate and name == "start":
            self.emit_call(statement.target, enumerate, (values, option), statement.loc)
        elif function is sorted and name == "reverse":
            self.sort(statement, values, option)
        else:
            return False
        return True

    def sort(self, statement: ir.Assign, values: ir.Var, reverse: ir.Var) -> None:
        """Replace `sorted(values, reverse=...)`: Python reverses before and after, so equal values keep their order."""
        if reverse.name not in self.constants:
            raise Unsupported("it calls sorted with reverse=, which is not constant")
        loc, sorted_call = statement.loc, operators.CALLS[sorted]
        if not self.is_true(reverse):
            self.emit_call(statement.target, sorted_call, (values,), loc)
            return
        backwards = self.call(containers.reversed_of, (self.call(containers.copy_of, (values,), loc),), loc)
        self.emit_call(statement.target, containers.reversed_of, (self.call(sorted_call, (backwards,), loc),), loc)

    def calling_method(self, statement: ir.Assign, expr: ir.Expr, method: _Method) -> None:
        arguments, dispatcher = tuple(expr.args), method.dispatcher
        if dispatcher is _REPLACE and method.receiver is not None:
            if arguments:
                raise Unsupported("it calls _replace with arguments without names")
            keyword_names = {name for name, _ in expr.kws}
            members = {name: self.fresh(statement.loc) for name in method.cls._fields if name not in keyword_names}
            receiver = self.call(require_value, (method.receiver,), statement.loc)
            for each, target in members.items():
                getattr_expr = ir.Expr.getattr(receiver, each, statement.loc)
                self.output.append(ir.Assign(getattr_expr, target, statement.loc))
            self.make_named(statement, expr, method.cls, members)
            return
        if dispatcher is formats.format_value and method.receiver is not None:
            self.template(statement, expr, self.constants[method.receiver.name])
            return
        if method.dispatcher is field_of and method.receiver is not None and 1 <= len(arguments) <= 2:
            self.field(statement, method.receiver, self.constants.get(arguments[0].name))
            return
        if dispatcher is containers.METHODS["get"] and id(expr) in self.defaults:
            dispatcher = containers.get_number
        if method.parameters:
            arguments = self.by_name(statement, expr, method.parameters, None)
            if expr.kws or len(expr.args) > 2:  # `replace` of a text is compiled with two arguments by position
                dispatcher = datetimes.replace_parts
            expr = ir.Expr.call(expr.func, (), (), expr.loc)
        elif dispatcher is formats.format_time:
            directives = self.constants.get(arguments[0].name) if len(arguments) == 1 else None
            if type(directives) is not str:
                raise Unsupported("it calls strftime with a format that is not constant")
            arguments = (self.constant(directives, statement.loc),)
        elif dispatcher is strings.encode_text:
            if not self.is_utf8(expr):
                raise Unsupported("it calls encode with another encoding than UTF-8")
            arguments, expr = (), ir.Expr.call(expr.func, (), (), expr.loc)
        elif dispatcher in _ENDS and len(arguments) == 1 and type(self.constants.get(arguments[0].name)) is tuple:
            self.any_end(statement, method, self.constants[arguments[0].name])
            return
        receiver = method.receiver
        if receiver is not None and dispatcher in _OF_CONTAINERS and self.may_lack(receiver):
            receiver = self.call(containers.require_container, (receiver,), statement.loc)
        actual = arguments if receiver is None else (receiver, *arguments)
        if expr.kws and hasattr(dispatcher, "__signature__"):
            try:
                dispatcher.__signature__.bind(*actual, **dict(expr.kws))
            except TypeError:
                name = getattr(self.root(expr.func), "attr", "a method")
                raise Unsupported(f"it calls {name} with the named argument {expr.kws[0][0]}") from None
        self.emit_call(statement.target, dispatcher, actual, statement.loc, expr)

    def any_end(self, statement: ir.Assign, method: _Method, ends: tuple[Any, ...]) -> None:
        """Replace `text.startswith((one, other))`."""
        loc = statement.loc
        if not 0 < len(ends) <= _CHAINED_MAX or {*map(type, ends)} != {str} or method.receiver is None:
            raise Unsupported(f"it compares the start or end of a text with {ends!r}")
        answers = []
        for each in ends:
            function, literal = strings.constant_of(each)
            text = self.call(function, (self.constant(literal, loc),), loc)
            answers.append(self.call(method.dispatcher, (method.receiver, text), loc))
        for answer in answers[1:]:
            answers[0] = self.call(operators.OPERATORS[operator.or_], (answers[0], answer), loc)
        self.output.append(ir.Assign(answers[0], statement.target, loc))

    def is_utf8(self, expr: ir.Expr) -> bool:
        """Return whether a call of `encode` has the constant arguments that mean UTF-8, whose errors never occur."""
        actual = {**dict(zip(("encoding", "errors"), expr.args, strict=False)), **dict(expr.kws)}
        constants_by_name = {name: self.constants.get(value.name) for name, value in actual.items()}
        is_known = expr.vararg is None and len(expr.args) + len(expr.kws) == len(constants_by_name) <= 2
        return (
            is_known
            and constants_by_name.get("encoding", "utf-8") in _UTF8
            and constants_by_name.get("errors", "strict") in _ERRORS
        )

    def are_known(self, expr: ir.Expr) -> bool:
        """Return whether all arguments of a call are constants."""
        actual = (*expr.args, *(value for _, value in expr.kws))
        return expr.vararg is None and all(each.name in self.constants for each in actual)

    def fold_constant(self, function: Any, expr: ir.Expr) -> Any:
        """Return the result of a function of constants."""
        actual = [self.constants[each.name] for each in expr.args]
        by_name = {name: self.constants[each.name] for name, each in expr.kws}
        try:
            return function(*actual, **by_name)
        except (ArithmeticError, TypeError, ValueError) as error:
            raise Unsupported(f"it calls {function.__name__}, which raises {type(error).__name__}") from None

    def by_name(
        self, statement: ir.Assign, expr: ir.Expr, parameters: tuple[str, ...], default: int | None
    ) -> tuple[ir.Var, ...]:
        """Return the arguments of a call in the order of the parameters, with defaults for missing ones."""
        keyword_values = dict(expr.kws)
        ordered_arguments = [*expr.args, *(keyword_values.pop(name, None) for name in parameters[len(expr.args) :])]
        if keyword_values or expr.vararg is not None or len(ordered_arguments) > len(parameters):
            raise Unsupported("it calls a function of datetime with unknown arguments")
        return tuple(self.constant(default, statement.loc) if each is None else each for each in ordered_arguments)

    def is_instance(self, statement: ir.Assign, value: ir.Var, classes: Any) -> None:
        actual = classes if isinstance(classes, tuple) else (classes,)
        if not all(isinstance(each, type) for each in actual):
            raise Unsupported("it calls isinstance with something that is not a class")
        type_ = self.type_of(value)
        kind = None if type_ is None else kind_of(type_)
        if kind in ("int", "float", "bool"):
            self.object(statement, issubclass({"int": int, "float": float, "bool": bool}[kind], actual))
        else:
            mask = self.constant(operators.mask_of(actual), statement.loc)
            self.emit_call(statement.target, operators.is_instance, (value, mask), statement.loc)

    # --- the parts of statements ----------------------------------------------------------------------------------

    def root(self, var: ir.Var) -> Any:
        """Return the definition of a variable, followed through other variables; None if there are several."""
        definition: Any = var
        while isinstance(definition, ir.Var):
            definitions = self.code._definitions[definition.name]
            if len(definitions) != 1:
                return None
            definition = definitions[0]
        return definition

    def type_of(self, var: ir.Var) -> types.Type | None:
        """Return the type of a parameter, or of an attribute of one; None for other variables."""
        root = self.root(var)
        if isinstance(root, ir.Arg):
            return self.arguments[root.index]
        if not isinstance(root, ir.Expr) or root.op not in ("exhaust_iter", "getattr", "getitem", "static_getitem"):
            return None
        reference = self.reference(root.value)
        if reference is None or root.op == "exhaust_iter":
            return reference
        if root.op == "getattr":
            return reference.type_of(root.attr)
        index = root.index if root.op == "static_getitem" else self.constants.get(root.index.name)
        name = reference.name_of(index) if reference.is_plain else None
        return None if name is None else reference.type_of(name)

    def struct(self, var: ir.Var) -> Struct | None:
        type_ = self.type_of(var)
        type_ = type_.type if isinstance(type_, types.Optional) else type_
        return type_ if isinstance(type_, Struct) else None

    def field(self, statement: ir.Assign, struct: ir.Var, name: Any) -> None:
        """Replace the use of a field of a struct, which is an argument. The field exists, so a default is not used."""
        struct_type = self.struct(struct)
        if struct_type is None or name not in struct_type.fields:
            raise Unsupported(f"it uses {name!r} of a struct, which is not the name of one of its fields")
        self.emit_call(statement.target, field_of, (struct, self.constant(name, statement.loc)), statement.loc)

    def reference(self, var: ir.Var) -> Reference | None:
        type_ = self.type_of(var)
        return type_ if isinstance(type_, Reference) else None

    def is_member(self, expr: ir.Expr) -> bool:
        """Return whether code reads a member of a tuple of the accumulator by a constant index in range."""
        type_, index = self.type_of(expr.value), self.constants.get(expr.index.name)
        type_ = type_.type if isinstance(type_, types.Optional) else type_
        return isinstance(type_, types.BaseTuple) and type(index) is int and -len(type_) <= index < len(type_)

    def may_be_no_tuple(self, var: ir.Var) -> bool:
        """Return whether a variable is a member of an accumulator that is a tuple or None."""
        type_ = self.type_of(var)
        return isinstance(type_, types.Optional) and isinstance(type_.type, types.BaseTuple)

    def holds_items(self, var: ir.Var) -> bool:
        """Return whether a variable is a list of fixed length, a container, or what a call returned."""
        root = self.root(var)
        is_made = isinstance(root, ir.Expr) and root.op in ("call", "getitem", "static_getitem")
        type_ = self.type_of(var)
        return is_made or isinstance(getattr(type_, "type", type_), (Items, containers.ContainerType))

    def may_lack(self, var: ir.Var) -> bool:
        """Return whether a variable may be a container or None, as `get` or `pop` of a dict of containers returns."""
        root = self.root(var)
        method = self.methods.get(root.func.name) if isinstance(root, ir.Expr) and root.op == "call" else None
        return root is None or (method is not None and method.dispatcher in _LACKING)

    def fresh(self, loc: Any) -> ir.Var:
        return next(iter(self.code.blocks.values())).scope.redefine("$foldflight", loc)

    def snapshot(self, var: ir.Var, loc: Any) -> ir.Var:
        """Return a copy of a variable, which may be assigned again before its method is called."""
        if len(self.code._definitions[var.name]) <= 1:
            return var
        target = self.fresh(loc)
        self.output.append(ir.Assign(var, target, loc))
        return target

    def constant(self, value: float | str | None, loc: Any) -> ir.Var:
        """Return a new variable with a constant."""
        target = self.fresh(loc)
        self.output.append(ir.Assign(ir.Const(value, loc), target, loc))
        return target

    def call(self, function: Any, arguments: tuple[ir.Var, ...], loc: Any) -> ir.Var:
        target = self.fresh(loc)
        self.emit_call(target, function, arguments, loc)
        return target

    def without_optional(self, var: ir.Var, loc: Any) -> ir.Var:
        """Return a container argument without Optional in its type (None raises); other variables unchanged."""
        type_ = self.type_of(var)
        is_container = isinstance(type_, types.Optional) and kind_of(type_) is None
        return self.call(require_value, (var,), loc) if is_container else var

    def emit_call(
        self, target: ir.Var, function: Any, arguments: tuple[ir.Var, ...], loc: Any, like: ir.Expr | None = None
    ) -> None:
        if function not in _TAKING_NONE and not hasattr(function, "py_func"):
            arguments = tuple(self.without_optional(each, loc) for each in arguments)
        callee = self.fresh(loc)
        self.output.append(ir.Assign(ir.Global(callee.name, function, loc), callee, loc))
        kws = () if like is None else like.kws
        vararg = None if like is None else like.vararg
        self.output.append(ir.Assign(ir.Expr.call(callee, arguments, kws, loc, vararg=vararg), target, loc))


def _is_sequence(value: Any) -> bool:
    """Return whether a value is a list or tuple of a few numbers, or of texts, with which code can work as a tuple."""
    kinds = {*map(type, value)} if type(value) in (list, tuple) else set()
    is_plain = len(kinds) == 1 and kinds <= {int, float, bool, str}
    return (
        is_plain and len(value) <= _SEQUENCE_MAX and all(type(each) is not int or abs(each) < 1 << 63 for each in value)
    )


def _is_known(function: Any) -> bool:
    try:
        return function in operators.CALLS
    except TypeError:
        return False


@implementation(literal=True)
def member_of(value: Any, name: Any) -> Any:
    """Implement the use of an attribute of a value of which is not known before whether it is a NamedTuple."""
    inner = value.type if isinstance(value, types.Optional) else value
    attribute = name.literal_value
    if attribute not in getattr(class_of(inner), "_fields", ()):
        raise Unsupported(f"it uses the attribute {attribute} of a value")
    position = inner.fields.index(attribute)
    return lambda value, name: require_value(value)[position]


class _Pipeline(CompilerBase):
    def define_pipelines(self) -> list[Any]:
        passes = DefaultPassBuilder.define_nopython_pipeline(self.state)
        passes.add_pass_after(_Replace, IRProcessing)
        passes.add_pass_after(Fill, NopythonTypeInference)
        # In this order: what containers hold, the types, and the check of the types.
        indexes = {each: index for index, (each, _) in enumerate(passes.passes)}
        passes.passes.insert(indexes[NopythonTypeInference], passes.passes.pop(indexes[Fill]))
        passes.add_pass_after(Check, NopythonTypeInference)
        passes.finalize()
        return [passes]
