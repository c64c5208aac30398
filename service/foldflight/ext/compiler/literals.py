"""Lists, dicts and sets that code creates: comprehensions become loops, and types are inferred from use."""

from __future__ import annotations

import dis
import inspect
import operator
import re
import warnings
from collections.abc import Collection, Iterator
from types import CodeType
from typing import Any, Final

from numba.core import ir, ir_utils, postproc, types
from numba.core.compiler_machinery import FunctionPass, register_pass
from numba.core.errors import TypingError
from numba.core.inline_closurecall import inline_closure_call
from numba.core.typed_passes import type_inference_stage

from foldflight.ext.compiler import containers, operators
from foldflight.ext.compiler.arena import Contents, Element
from foldflight.ext.compiler.value_types import KINDS, class_of, implementation, inner_kind
from foldflight.fold.machine_values import DECIMALS
from foldflight.fold.mode import Unsupported

# They consume the whole generator, so its values may be calculated in advance.
_TAKING: Final = (list, max, min, sorted, sum)
# They may stop before its end. Its values are calculated in advance if that changes nothing: an exception has the row
# interpreted in any case.
_STOPPING: Final = (any, all)
# What generators may call without changing anything: functions, and methods of texts, dates and dicts.
_KNOWN_NAMES: Final = ("abs", "float", "int", "len", "max", "min", "round", "str")
# The name that numba gives to a function before it is called, also in comprehensions; a variable may be of an earlier
# one, whose own variables have other values when it is called.
_LAMBDA: Final = re.compile(r"(\$|_v)\d+make_function[._]\d+$")
_SPLITTING: Final = ("split", "rsplit", "splitlines")  # methods that make a new list
_READING: Final = (
    *("date", "endswith", "find", "get", "isalnum", "isalpha", "isdecimal", "isdigit", "islower", "isoweekday"),
    *("isspace", "isupper", "items", "keys", "lower", "startswith", "strip", "upper", "values", "weekday"),
)


def _empty(shape: str) -> Any:
    @implementation
    def empty() -> Any:
        raise TypingError(shape)  # the pass `Fill` handles it

    return empty


EMPTY: Final = {shape: _empty(shape) for shape in ("list", "dict", "set")}
"""Placeholders for a new list, dict and set until their types are inferred."""

# Functions that add to a container, with the positions of the key and value among their arguments.
_PUTTING: Final[dict[Any, tuple[int, ...]]] = {
    containers.METHODS["append"]: (1,),
    containers.METHODS["add"]: (1,),
    containers.METHODS["get"]: (1, 2),
    containers.METHODS["insert"]: (2,),
    containers.METHODS["setdefault"]: (1, 2),
    containers.METHODS["__setitem__"]: (1, 2),
    operators.set_item: (1, 2),
    **dict.fromkeys(containers.PUSHING, (1,)),
}
# Functions whose last argument may be the value of a dict.
_HOLDING: Final = (
    *(containers.METHODS[name] for name in ("__setitem__", "get", "pop", "setdefault")),
    operators.set_item,
)
_JOINING: Final = (operators.OPERATORS[operator.add], operators.OPERATORS[operator.or_])
_EXTENDING: Final = (containers.METHODS["extend"], *operators.IN_PLACE.values(), *_JOINING)


def inline_comprehensions(code: ir.FunctionIR, own_names: Collection[str]) -> None:
    """Inline functions that are created and called in place: Python 3.11 compiles comprehensions to such functions.

    Since Python 3.12 only generators are functions. Comprehensions are inlined, and a variable of the same name keeps
    its value.

    Args:
        code: The code.
        own_names: The names of the author's methods and properties, which may change an accumulator. A method of
            another name is Python's own.
    """
    ir_utils.remove_dels(code.blocks)
    while True:
        if (sort := next(_calls_with_keys(code), None)) is not None:
            _make_keys(code, *sort, own_names)
        elif (call := next(_called_closures(code), None)) is not None:
            _inline(code, *call, own_names)
        else:
            break
        code._definitions = ir_utils.build_definitions(code.blocks)
    ir_utils.remove_dels(code.blocks)
    _join_copies(code)
    _drop_unused_copies(code)
    postproc.PostProcessor(code).run()
    code._definitions = ir_utils.build_definitions(code.blocks)
    _name_additions(code)


def _calls_with_keys(code: ir.FunctionIR) -> Iterator[tuple[int, int, Any]]:
    """Yield the calls of `min`, `max` and `sorted` with a key: the block's label, the call's index, and the function.

    Only calls that have one argument besides, since of several, Python compares these.
    """
    for label, block in code.blocks.items():
        for index, statement in enumerate(block.body):
            call = statement.value if isinstance(statement, ir.Assign) else None
            if not isinstance(call, ir.Expr) or call.op != "call" or len(call.args) != 1 or call.vararg is not None:
                continue
            options = {name for name, _ in call.kws}
            callee = ir_utils.guard(ir_utils.get_definition, code, call.func)
            if "key" in options and isinstance(callee, ir.Global) and callee.value in containers.BY_KEY:
                by_key, others = containers.BY_KEY[callee.value]
                if options <= {"key", others}:
                    yield label, index, by_key


def _make_keys(code: ir.FunctionIR, label: int, index: int, by_key: Any, own_names: Collection[str]) -> None:
    """Replace a call with a key by a loop that makes a list of the keys, and a call that compares them.

    Python asks for the keys in the same order. They are all known before the first is compared, which changes nothing:
    a key function that may change the list is refused, and a row that raises is interpreted.
    """
    block = code.blocks[label]
    statement, scope, loc = block.body[index], block.scope, block.body[index].loc
    (values,), options = statement.value.args, dict(statement.value.kws)
    key = options.pop("key")
    _check_key(code, key, own_names, loc)
    header, body, after = (max(code.blocks) + number for number in (1, 2, 3))
    keys, iterator, pair, item, is_more, method, made, result, function = (
        scope.redefine(f"$key{name}", loc)
        for name in ("s", "_iterator", "_pair", "_item", "_more", "_append", "", "_added", "_function")
    )

    def block_of(*parts: tuple[ir.Var, Any] | ir.Stmt) -> ir.Block:
        filled = ir.Block(scope, loc)
        for each in parts:
            filled.append(ir.Assign(each[1], each[0], loc) if isinstance(each, tuple) else each)
        return filled

    code.blocks[after] = block_of(
        (function, ir.Global("by_key", by_key, loc)),
        (statement.target, ir.Expr.call(function, (values, keys, *options.values()), (), loc)),
        *block.body[index + 1 :],
    )
    code.blocks[header] = block_of(
        (pair, ir.Expr.iternext(iterator, loc)),
        (item, ir.Expr.pair_first(pair, loc)),
        (is_more, ir.Expr.pair_second(pair, loc)),
        ir.Branch(is_more, body, after, loc),
    )
    code.blocks[body] = block_of(
        (made, ir.Expr.call(key, (item,), (), loc)),
        (method, ir.Expr.getattr(keys, "append", loc)),
        (result, ir.Expr.call(method, (made,), (), loc)),
        ir.Jump(header, loc),
    )
    start = block_of(
        (keys, ir.Expr.build_list((), loc)), (iterator, ir.Expr.getiter(values, loc)), ir.Jump(header, loc)
    )
    block.body = [*block.body[:index], *start.body]


def _check_key(code: ir.FunctionIR, key: ir.Var, own_names: Collection[str], loc: Any) -> None:
    """Raise Unsupported for a key function that may change something, or may not be the one of the call."""
    function = ir_utils.guard(ir_utils.get_definition, code, key)
    name = attribute_of(function)
    if isinstance(function, ir.Const):
        raise Unsupported("it has a key that is no function").at(loc)
    if isinstance(function, ir.Expr) and function.op == "make_function":
        changes = function.code.co_freevars and _may_change(function.code, own_names)
        is_known = _LAMBDA.search(key.name) is not None and not changes
    elif name:
        owner = ir_utils.guard(ir_utils.get_definition, code, function.value)
        is_known = (name in _READING and name not in own_names) or isinstance(owner, (ir.Global, ir.FreeVar))
    else:
        is_known = isinstance(function, (ir.Global, ir.FreeVar))
    if not is_known:
        raise Unsupported("it has a key function that may change something, or is a variable; write a lambda").at(loc)


def _name_additions(code: ir.FunctionIR) -> None:
    """Have set comprehensions call `add`: they are read like those of lists, because numba misreads their steps.

    The variable tells a comprehension from the author's call of `append`, which sets do not have.
    """
    for block in code.blocks.values():
        for statement in block.body:
            if (
                isinstance(statement, ir.Assign)
                and attribute_of(statement.value) == "append"
                and "list_append" in statement.target.name
            ):
                made = ir_utils.guard(ir_utils.get_definition, code, statement.value.value)
                if isinstance(made, ir.Expr) and made.op == "build_set":
                    statement.value = ir.Expr.getattr(statement.value.value, "add", statement.loc)
    code._definitions = ir_utils.build_definitions(code.blocks)


def _join_copies(code: ir.FunctionIR) -> None:
    """Replace stack variables that are copies of one other variable, such as a method before its argument is evaluated.

    numba copies the values on the stack where branches meet. They do not change before they are used.
    """
    definitions = ir_utils.build_definitions(code.blocks)

    def sources_of(name: str) -> list[str] | None:
        values = definitions[name]
        are_copies = all(isinstance(each, ir.Var) and each.name.startswith("$") for each in values)
        return [each.name for each in values] if are_copies and name.startswith("$") else None

    root_by_name: dict[str, ir.Var] = {}
    for name in list(definitions):
        seen_names, waiting, roots = {name}, sources_of(name) or [], set()
        while waiting:
            each = waiting.pop()
            if each not in seen_names:
                seen_names.add(each)
                sources = sources_of(each)
                roots.update([each] if sources is None else [])
                waiting.extend(sources or [])
        if len(roots) == 1 and len(definitions[root := roots.pop()]) == 1:
            root_by_name[name] = next(iter(code.blocks.values())).scope.get_exact(root)
    for block in code.blocks.values():
        block.body = [
            each for each in block.body if not (isinstance(each, ir.Assign) and each.target.name in root_by_name)
        ]
    ir_utils.replace_vars(code.blocks, root_by_name)


def _drop_unused_copies(code: ir.FunctionIR) -> None:
    """Remove unused copies of variables, and unused functions, because a copy may read a variable without a value."""
    flow = ir_utils.compute_cfg_from_blocks(code.blocks)
    live_at: dict[int, set[str]] = {label: set() for label in code.blocks}
    bodies: dict[int, list[ir.Stmt]] = {}
    more = True
    while more:
        more = False
        for label, block in code.blocks.items():
            live = {name for following, _ in flow.successors(label) for name in live_at[following]}
            used_statements: list[ir.Stmt] = []
            for statement in reversed(block.body):
                names = [var.name for var in statement.list_vars()]
                if isinstance(statement, ir.Assign):
                    if _is_copy(statement.value) and statement.target.name not in live:
                        continue
                    live.discard(statement.target.name)
                    names.remove(statement.target.name)  # the value may use the variable itself
                live.update(names)
                used_statements.append(statement)
            more = more or live != live_at[label]
            live_at[label] = live
            bodies[label] = used_statements[::-1]
    for label, block in code.blocks.items():
        block.body = bodies[label]


def _is_copy(value: Any) -> bool:
    return isinstance(value, ir.Var) or (isinstance(value, ir.Expr) and value.op in ("make_function", "undef"))


def _inline(code: ir.FunctionIR, block: ir.Block, index: int, generator: ir.Expr, own_names: Collection[str]) -> None:
    """Inline a call. A generator becomes a list, because its consumer takes all values."""
    statement = block.body[index]
    is_generator = bool(generator.code.co_flags & inspect.CO_GENERATOR)
    if is_generator and not _is_taken_at_once(code, block, index, generator, own_names):
        raise Unsupported("it makes a generator that is not an argument of sum, sorted or the like").at(statement.loc)
    result, scope, loc = statement.target, block.scope, statement.loc
    known_labels = set(code.blocks)
    with warnings.catch_warnings():
        # numba builds a function from a code object, which newer Pythons warn about. `make test-newest` finds removals.
        warnings.simplefilter("ignore", DeprecationWarning)
        inline_closure_call(code, code.func_id.func.__globals__, block, index, generator)
    if not is_generator:
        return
    holder = scope.redefine("$generated", loc)
    block.body.insert(index, ir.Assign(ir.Expr.build_list((), loc), holder, loc))
    for label in code.blocks.keys() - known_labels:
        inlined_block = code.blocks[label]
        body: list[ir.Stmt] = []
        for each in inlined_block.body:
            value = each.value if isinstance(each, ir.Assign) else None
            if isinstance(value, ir.Yield):
                append_method = scope.redefine("$put", loc)
                body.append(ir.Assign(ir.Expr.getattr(holder, "append", each.loc), append_method, each.loc))
                body.append(ir.Assign(ir.Expr.call(append_method, (value.value,), (), each.loc), each.target, each.loc))
            elif isinstance(each, ir.Assign) and each.target == result:
                body.append(ir.Assign(holder, result, each.loc))
            else:
                body.append(each)
        inlined_block.body = body


def _is_taken_at_once(
    code: ir.FunctionIR, block: ir.Block, index: int, generator: ir.Expr, own_names: Collection[str]
) -> bool:
    """Return whether a generator is the argument of the next call, to a function that consumes all of it."""
    name = block.body[index].target.name
    uses = [
        each for other in code.blocks.values() for each in other.body if name in {var.name for var in each.list_vars()}
    ]
    following = block.body[index + 1] if index + 1 < len(block.body) else None
    value = following.value if isinstance(following, ir.Assign) else None
    if len(uses) != 2 or following not in uses or not isinstance(value, ir.Expr) or value.op != "call":
        return False
    callee = ir_utils.guard(ir_utils.get_definition, code, value.func)
    if isinstance(callee, ir.Expr) and callee.op == "getattr" and callee.attr in ("extend", "update"):
        return _reads_apart(code, block.body[index].value, callee.value, generator, own_names)
    if isinstance(callee, ir.Expr):
        return callee.op == "getattr" and callee.attr == "join"
    functions = _TAKING if _may_change(generator.code, own_names) else (*_TAKING, *_STOPPING)
    return isinstance(callee, ir.Global) and any(callee.value is each for each in functions)


def attribute_of(value: Any) -> str:
    """Return the attribute that an expression reads; empty for other values."""
    return value.attr if isinstance(value, ir.Expr) and value.op == "getattr" else ""


def _reads_apart(
    code: ir.FunctionIR, call: ir.Expr, changed: ir.Var, generator: ir.Expr, own_names: Collection[str]
) -> bool:
    """Return whether a generator reads nothing that may be the container to which its values are added.

    In Python it is at work while the container grows.
    """

    def root(var: Any) -> Any:
        definition = ir_utils.guard(ir_utils.get_definition, code, var)
        while isinstance(definition, ir.Expr) and definition.op in ("getattr", "getitem", "static_getitem", "getiter"):
            definition = ir_utils.guard(ir_utils.get_definition, code, definition.value)
        return definition

    owner, closure = root(changed), generator.closure
    if isinstance(closure, ir.Var):
        made = ir_utils.guard(ir_utils.get_definition, code, closure)
        closure = made.items if isinstance(made, ir.Expr) and made.op == "build_tuple" else (None,)
    for each in (*call.args, *(closure or ())):
        source = root(each)
        if isinstance(source, ir.Expr) and source.op == "call":
            callee = ir_utils.guard(ir_utils.get_definition, code, source.func)
            is_new = attribute_of(callee) in _SPLITTING or (isinstance(callee, ir.Global) and callee.value is sorted)
        else:
            is_new = isinstance(source, (ir.Arg, ir.Global, ir.FreeVar, ir.Const)) and isinstance(owner, ir.Arg)
            is_new = is_new and getattr(source, "index", -1) != getattr(owner, "index", -1)
            is_new = is_new or (isinstance(source, ir.Expr) and source.op in ("build_list", "build_set"))
        if not is_new:
            return False
    return not _may_change(generator.code, own_names)


def _may_change(code: CodeType, own_names: Collection[str]) -> bool:
    """Return whether a generator may change something: it calls a method or a function that is not known."""
    for step in dis.get_instructions(code):
        calls = step.opname == "LOAD_METHOD" or (step.opname == "LOAD_ATTR" and "NULL|self" in step.argrepr)
        if calls and step.argval not in _READING:
            return True
        if step.opname in ("LOAD_METHOD", "LOAD_ATTR") and step.argval in own_names:
            return True
        if step.opname.startswith(("STORE_DEREF", "STORE_GLOBAL", "STORE_SUBSCR", "STORE_ATTR", "MAKE_FUNCTION")):
            return True
        if step.opname in ("LOAD_GLOBAL", "LOAD_NAME") and step.argval not in _KNOWN_NAMES:
            return True
    return False


def _calls(code: ir.FunctionIR) -> Iterator[tuple[ir.Block, int, Any]]:
    """Yield the calls of functions created in place: the block, the call's index, and the function's definition."""
    for block in code.blocks.values():
        for index, statement in enumerate(block.body):
            value = statement.value if isinstance(statement, ir.Assign) else None
            if isinstance(value, ir.Expr) and value.op == "call":
                yield block, index, ir_utils.guard(ir_utils.get_definition, code, value.func)


def _called_closures(code: ir.FunctionIR) -> Iterator[tuple[ir.Block, int, ir.Expr]]:
    """Yield the calls of functions that are created in place."""
    return (each for each in _calls(code) if isinstance(each[2], ir.Expr) and each[2].op == "make_function")


@register_pass(mutates_CFG=False, analysis_only=False)
class Fill(FunctionPass):
    """The pass that infers the types in new containers. Raises Unsupported if one stays unknown."""

    _name = "foldflight_fill"

    def __init__(self) -> None:
        FunctionPass.__init__(self)

    def run_pass(self, state: Any) -> bool:
        code = state.func_ir
        code._definitions = ir_utils.build_definitions(code.blocks)
        waiting = {
            statement.target.name: (callee, shape)
            for statement, callee in _calls_of_stand_ins(code)
            for shape, empty in EMPTY.items()
            if callee.value is empty
        }
        has_changed = bool(waiting)
        while waiting:
            typemap = type_inference_stage(
                state.typingctx, state.targetctx, code, state.args, None, raise_errors=False
            ).typemap
            known_contents = {
                name: contents for name in waiting if (contents := _contents_of(code, typemap, name, waiting[name][1]))
            }
            if not known_contents:
                shape, loc = next((shape, callee.loc) for callee, shape in waiting.values())
                what = f"it makes a {shape} of which is not certain what it will hold"
                raise Unsupported(f"{what}; put values of one type into it in the same function").at(loc)
            for name, contents in known_contents.items():
                waiting.pop(name)[0].value = containers.empty_of(contents)
        return has_changed


def _calls_of_stand_ins(code: ir.FunctionIR) -> Iterator[tuple[ir.Assign, ir.Global]]:
    """Yield the calls of functions of the compiler, and the definitions of their functions."""
    return ((block.body[index], callee) for block, index, callee in _calls(code) if isinstance(callee, ir.Global))


def _contents_of(code: ir.FunctionIR, typemap: dict[str, types.Type], name: str, shape: str) -> Contents | None:
    """Return the types in a new container, from the values added to it; None while their types are unknown."""
    names = _aliases(code, name)
    for statement, callee in _calls_of_stand_ins(code):
        arguments = statement.value.args
        if callee.value is containers.put_whole and arguments[1].name in names:
            replaced_type = typemap.get(arguments[0].name)
            if isinstance(replaced_type, containers.ContainerType) and replaced_type.contents.shape == shape:
                return replaced_type.contents
        held = typemap.get(arguments[0].name) if callee.value in _HOLDING and arguments[-1].name in names else None
        nested = held.contents.nested if isinstance(held, containers.ContainerType) else None
        if nested is not None and nested.shape == shape:
            return nested
        if not arguments or arguments[0].name not in names:
            continue
        if callee.value in _EXTENDING:
            other = typemap.get(arguments[1].name)
            if isinstance(other, containers.ContainerType) and other.contents.shape == shape and not other.view:
                return other.contents
        if callee.value is containers.get_number:
            key, value = _part_of(typemap.get(arguments[1].name)), _sum_with(code, typemap, statement.target.name)
            if key is not None and value is not None:
                return Contents(shape, key, value)
        if callee.value not in _PUTTING:
            continue
        positions = _PUTTING[callee.value][-1 if shape == "list" else 0 :]
        added_arguments = [arguments[position] for position in positions if position < len(arguments)]
        parts = [part for each in added_arguments if (part := _part_of(typemap.get(each.name))) is not None]
        if len(parts) == (2 if shape == "dict" else 1):
            return Contents(shape, parts[0], parts[1] if shape == "dict" else None)
    return None


def _sum_with(code: ir.FunctionIR, typemap: dict[str, types.Type], name: str) -> Element | None:
    """Return the element type of the sum of an int, which a variable holds, and another number; None while unknown."""
    names = _aliases(code, name)
    for statement, _ in _calls_of_stand_ins(code):
        arguments = statement.value.args
        if len(arguments) == 2 and any(each.name in names for each in arguments):
            kinds = [inner_kind(typemap.get(each.name)) for each in arguments if each.name not in names]
            if kinds in (["int"], ["float"]):
                return Element((kinds[0],))
    return None


def _part_of(type_: types.Type | None) -> Element | None:
    actual = list(type_) if isinstance(type_, types.BaseTuple) else [type_]
    # A row that adds None is left to the interpreter.
    kinds = ["None" if each is None else inner_kind(each) for each in actual]
    if not kinds or any(kind not in KINDS or kind in DECIMALS for kind in kinds):
        return None
    is_tuple = isinstance(type_, types.BaseTuple)
    return Element(tuple(kinds), is_tuple=is_tuple, cls=class_of(type_) if is_tuple else None)


def _aliases(code: ir.FunctionIR, name: str) -> set[str]:
    """Return the variables that may have the same value as a variable."""
    names, more = {name}, True
    while more:
        count = len(names)
        for block in code.blocks.values():
            for statement in block.body:
                if isinstance(statement, ir.Assign) and _sources(statement.value) & names:
                    names.add(statement.target.name)
        more = len(names) > count
    return names


def _sources(value: Any) -> set[str]:
    if isinstance(value, ir.Var):
        return {value.name}
    if isinstance(value, ir.Expr) and value.op == "phi":
        return {each.name for each in value.incoming_values if isinstance(each, ir.Var)}
    return {value.value.name} if isinstance(value, ir.Expr) and value.op == "cast" else set()
