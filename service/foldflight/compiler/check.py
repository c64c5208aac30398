"""A pass over numba's typed intermediate code that refuses implicit conversions.

Where branches meet, numba unifies their types: it converts an int to a float, or a bool to a number. Python does not.
"""

from __future__ import annotations

from typing import Any

from numba.core import ir, types
from numba.core.compiler_machinery import AnalysisPass, register_pass

from foldflight.compiler.containers import Held
from foldflight.compiler.kinds import Refused, kind_of
from foldflight.compiler.records import Items, Reference

__all__ = ["Check"]


@register_pass(mutates_CFG=False, analysis_only=True)
class Check(AnalysisPass):
    """The pass; it raises Refused."""

    _name = "foldflight_check"

    def __init__(self) -> None:
        AnalysisPass.__init__(self)

    def run_pass(self, state: Any) -> bool:
        for block in state.func_ir.blocks.values():
            for statement in block.body:
                match statement:
                    case ir.Assign():
                        _check_assignment(statement, state.typemap)
                    case ir.SetAttr():
                        reference = state.typemap[statement.target.name]
                        wanted, given = reference.type_of(statement.attr), state.typemap[statement.value.name]
                        if isinstance(given, types.Optional) and not isinstance(wanted, types.Optional):
                            given = given.type  # storing None raises, and then the interpreter repeats the row
                        _check_same(f"the attribute {statement.attr}", wanted, given)
                    case ir.Return():
                        _check_same("its return value", state.return_type, state.typemap[statement.value.name])
        return False


def _check_assignment(statement: ir.Assign, typemap: dict[str, types.Type]) -> None:
    name = statement.target.name
    type_ = typemap[name]
    _check_type(type_)
    sources = [statement.value] if isinstance(statement.value, ir.Var) else []
    if isinstance(statement.value, ir.Expr) and statement.value.op == "phi":
        if any(each is ir.UNDEFINED for each in statement.value.incoming_values):
            raise Refused(f"the variable {name.partition('.')[0]} may have no value where it is used")
        sources = [each for each in statement.value.incoming_values if isinstance(each, ir.Var)]
    if isinstance(statement.value, ir.Expr) and statement.value.op == "cast":
        sources = [statement.value.value]
    for source in sources:
        shown = "a value" if name.startswith("$") else f"the variable {name.partition('.')[0]}"
        _check_same(shown, type_, typemap[source.name])


def _check_same(what: str, wanted: types.Type, given: types.Type) -> None:
    """Refuse a conversion from one kind to another. Adding None to a kind is not a conversion."""
    if isinstance(wanted, types.BaseTuple) and isinstance(given, types.BaseTuple) and len(wanted) == len(given):
        for one_wanted, one_given in zip(wanted, given, strict=True):
            _check_same(f"a member of {what}", one_wanted, one_given)
        return
    if kind_of(wanted) is None and kind_of(given) is None:
        return
    one, other = str(kind_of(wanted)), str(kind_of(given))
    if one.endswith("?") and other == "none":
        return
    if one.removesuffix("?") != other.removesuffix("?") or (other.endswith("?") and not one.endswith("?")):
        names = {"int": "a whole number", "float": "a float", "bool": "a truth value", "none": "None"}
        shown = [names.get(kind, f"a {kind}") for kind in (one.removesuffix("?"), other.removesuffix("?"))]
        if shown[0] == shown[1]:
            shown[1] = "None"
        raise Refused(f"{what} is {shown[0]} in one place and {shown[1]} in another")


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
            types.RangeType,
            types.RangeIteratorType,
            types.EnumerateType,
            types.SimpleIteratorType,
            types.ZipType,
            types.SliceType,
            types.Omitted,
            Held,
        ),
    ):
        return
    if isinstance(type_, types.BaseTuple):
        for each in type_:
            _check_type(each)
        return
    if isinstance(type_, types.Pair):
        _check_type(type_.first_type)
        _check_type(type_.second_type)
        return
    raise Refused(f"it has a value of type {type_}")
