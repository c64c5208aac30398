"""A pass over numba's typed intermediate code that rejects code with another result than in Python.

Where branches meet, numba unifies types: it converts an int to a float, or a bool to a number. Python does not. And if
a container replaces one of the accumulator, compiled code copies it into the old one, so other variables would change.
"""

from __future__ import annotations

from typing import Any

from numba.core import analysis, ir, ir_utils, types
from numba.core.compiler_machinery import AnalysisPass, register_pass

from foldflight.ext.compiler.containers import EMPTIES, ContainerType, put_whole
from foldflight.ext.compiler.records import Items, Reference
from foldflight.ext.compiler.value_types import Struct, describe_type, kind_of
from foldflight.ext.compiler.vectors import VectorType
from foldflight.fold.machine_values import DECIMALS
from foldflight.fold.mode import Unsupported


@register_pass(mutates_CFG=False, analysis_only=True)
class Check(AnalysisPass):
    """The pass; it raises Unsupported."""

    _name = "foldflight_check"

    def __init__(self) -> None:
        AnalysisPass.__init__(self)

    def run_pass(self, state: Any) -> bool:
        for block in state.func_ir.blocks.values():
            for statement in block.body:
                try:
                    _check_statement(statement, state)
                except Unsupported as error:
                    raise error.at(statement.loc) from None
        _check_replacements(state)
        return False


def _check_statement(statement: ir.Stmt, state: Any) -> None:
    match statement:
        case ir.Assign():
            _check_assignment(statement, state.typemap)
        case ir.SetAttr():
            reference = state.typemap[statement.target.name]
            expected, actual = reference.type_of(statement.attr), state.typemap[statement.value.name]
            if isinstance(actual, types.Optional) and not isinstance(expected, types.Optional):
                actual = actual.type  # storing None raises, and the interpreter repeats the row
            _check_same(f"the attribute {statement.attr}", expected, actual)
        case ir.Return():
            if isinstance(state.return_type, VectorType):
                raise Unsupported("it returns a vector")  # its items may be on the stack of the function
            _check_same("its return value", state.return_type, state.typemap[statement.value.name])


def _check_replacements(state: Any) -> None:
    """Reject variables that refer to, or iterate over, a container of the accumulator while it is replaced.

    In Python such a variable keeps the old list, or is the new list of the accumulator.
    """
    blocks, typemap = state.func_ir.blocks, state.typemap
    role = state.func_id.func.__dict__["foldflight"]
    flow = analysis.compute_cfg_from_blocks(blocks)
    use_defs = analysis.compute_use_defs(blocks)
    live_at = analysis.compute_live_map(flow, blocks, use_defs.usemap, use_defs.defmap)
    for label, block in blocks.items():
        live = {name for following, _ in flow.successors(label) for name in live_at[following]}
        for statement in reversed(block.body):
            if isinstance(statement, ir.Del):
                continue
            names = {var.name for var in statement.list_vars()}
            if isinstance(statement, ir.Assign):
                live.discard(statement.target.name)
                names.discard(statement.target.name)
                if _replaces(statement.value, typemap, role):
                    role.author.replacing.add(role.function)
                    is_own = isinstance(typemap[statement.value.func.name], types.Dispatcher)
                    other = None if is_own else _creating_call(statement.value.args[1], state)
                    holders = sorted(name for name in live if _may_be(name, other, state))
                    if holders:
                        holder = (
                            "a value" if holders[0].startswith("$") else f"the variable {holders[0].partition('.')[0]}"
                        )
                        problem = Unsupported(f"it replaces a container of the accumulator while {holder} holds one")
                        raise problem.at(statement.loc)
            live |= names


def _replaces(value: Any, typemap: dict[str, types.Type], role: Any) -> bool:
    """Return whether a call replaces a container of the accumulator, directly or in a function that it calls."""
    if not _is_call(value):
        return False
    function = typemap[value.func.name]
    if isinstance(function, types.Dispatcher):
        called_function = getattr(function.dispatcher, "py_func", None)
        called_role = getattr(called_function, "__dict__", {}).get("foldflight")
        return called_role is not None and called_role.function in role.author.replacing
    if put_whole not in (getattr(function, "typing_key", None), getattr(function, "key", None)):
        return False
    other = typemap[value.args[1].name]
    return isinstance(other, ContainerType) and other.is_new


def _may_be(name: str, other: Any, state: Any) -> bool:
    """Return whether a variable may refer to the old or the new container, or iterate over one of them.

    Args:
        name: The variable.
        other: The call that creates the new container; None if it is unknown.
        state: The state of numba's compiler.
    """
    type_ = state.typemap[name]
    if "ContainerType(" not in str(type_) or isinstance(type_, types.Callable):
        return False
    creation = _creating_call(name, state) if isinstance(type_, ContainerType) and type_.is_new else None
    return creation is None or other is None or creation is other


def _creating_call(var: Any, state: Any) -> Any:
    """Return the call that creates the container of a variable; None if this function does not create it."""
    creation = ir_utils.guard(ir_utils.get_definition, state.func_ir, var)
    callee = ir_utils.guard(ir_utils.get_definition, state.func_ir, creation.func) if _is_call(creation) else None
    return creation if isinstance(callee, ir.Global) and callee.value in EMPTIES else None


def _is_call(value: Any) -> bool:
    return isinstance(value, ir.Expr) and value.op == "call"


def _check_assignment(statement: ir.Assign, typemap: dict[str, types.Type]) -> None:
    name = statement.target.name
    type_ = typemap[name]
    _check_type(type_)
    sources = [statement.value] if isinstance(statement.value, ir.Var) else []
    if isinstance(statement.value, ir.Expr) and statement.value.op == "phi":
        if any(each is ir.UNDEFINED for each in statement.value.incoming_values):
            raise Unsupported(f"the variable {name.partition('.')[0]} may have no value where it is used")
        sources = [each for each in statement.value.incoming_values if isinstance(each, ir.Var)]
    if isinstance(statement.value, ir.Expr) and statement.value.op == "cast":
        sources = [statement.value.value]
    for source in sources:
        # numba invents names for values in comprehensions.
        what = "a value" if name.startswith(("$", "closure__")) else f"the variable {name.partition('.')[0]}"
        _check_same(what, type_, typemap[source.name])


def _check_same(what: str, expected: types.Type, actual: types.Type) -> None:
    """Reject a conversion between kinds. Making a value optional is no conversion."""
    if isinstance(expected, types.Optional) and isinstance(expected.type, types.BaseTuple):
        if actual == types.none:
            return
        expected, actual = expected.type, getattr(actual, "type", actual)
    if isinstance(expected, types.BaseTuple) and isinstance(actual, types.BaseTuple) and len(expected) == len(actual):
        for one_expected, one_actual in zip(expected, actual, strict=True):
            _check_same(f"a member of {what}", one_expected, one_actual)
        return
    if kind_of(expected) is None and kind_of(actual) is None:
        return
    one, other = str(kind_of(expected)), str(kind_of(actual))
    if all(each.removesuffix("?") in DECIMALS for each in (one, other)) and one.endswith("?") >= other.endswith("?"):
        return  # the conversion is exact, or raises
    if one.endswith("?") and other == "none":
        return
    if one.removesuffix("?") != other.removesuffix("?") or (other.endswith("?") and not one.endswith("?")):
        names = {"int": "a whole number", "float": "a float", "bool": "a truth value", "none": "None"}
        kinds = [names.get(kind, f"a {kind}") for kind in (one.removesuffix("?"), other.removesuffix("?"))]
        if kinds[0] == kinds[1]:
            kinds[1] = "None"
        remedy = "; write whole numbers as floats, such as 0.0" if {one, other} == {"int", "float"} else ""
        raise Unsupported(f"{what} is {kinds[0]} in one place and {kinds[1]} in another{remedy}")


def _check_type(type_: types.Type) -> None:
    if kind_of(type_) is not None or isinstance(
        type_,
        (
            types.StringLiteral,  # the argument of a constant text
            Reference,
            Items,
            types.Function,
            types.Dispatcher,
            types.Module,
            types.NamedTupleClass,
            types.RangeType,
            types.RangeIteratorType,
            types.EnumerateType,
            types.SimpleIteratorType,
            types.ZipType,
            types.SliceType,
            types.Omitted,
            ContainerType,
            Struct,
            VectorType,
        ),
    ):
        return
    if isinstance(type_, types.Optional) and isinstance(type_.type, (ContainerType, Struct, VectorType)):
        return
    if isinstance(type_, types.Optional) and isinstance(type_.type, types.BaseTuple):
        type_ = type_.type
    if isinstance(type_, types.BaseTuple):
        for each in type_:
            _check_type(each)
        return
    if isinstance(type_, types.Pair):
        _check_type(type_.first_type)
        _check_type(type_.second_type)
        return
    raise Unsupported(f"it has a value of type {describe_type(type_)}")
