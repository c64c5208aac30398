"""The loops over rows, states and slots that call an author's compiled functions.

All loops take the accumulators as a table (uint8, shape (slots * bytes of a record,)), a flag for each slot that has an
accumulator (`present`, bool, shape (slots,)), and the attributes of the author's instance. The author's code works on a
copy of a record in registers. The copy is written back after each row. So after an exception the accumulators are as
they were before the row whose index is in `progress` (int64, shape (1,)), and the interpreter continues there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import MemberDescriptorType
from typing import Any, Final

import numba
import numpy as np
from llvmlite import ir as llvm
from numba.core import cgutils, types
from numba.core.compiler_lock import global_compiler_lock
from numba.core.errors import NumbaError
from numba.core.typing import signature
from numba.extending import intrinsic

from foldflight.ext.compiler import containers, decimals, memory, operators
from foldflight.ext.compiler.arena import INNER_HEADER, RESULT, Contents
from foldflight.ext.compiler.columns import Items, Kind, Members, leaves_of
from foldflight.ext.compiler.control_block import address_of_array, enter
from foldflight.ext.compiler.generated import INNER, register_jitable
from foldflight.ext.compiler.program import reason_of
from foldflight.ext.compiler.records import Items as ListItems
from foldflight.ext.compiler.records import (
    RecordField,
    RecordLayout,
    Reference,
    cast_to,
    copy,
    load_members,
    local_record,
    put_tuple,
    reference_at,
    store_members,
)
from foldflight.ext.compiler.rewrite import ClassCompiler
from foldflight.ext.compiler.value_types import (
    CONVERTERS,
    KINDS,
    Struct,
    as_number,
    class_of,
    describe_type,
    implementation,
    kind_of,
    number_type,
)
from foldflight.ext.compiler.vectors import VectorType, row_address
from foldflight.ext.compiler.vectors import result_of as vector_result_of
from foldflight.fold.accelerator import PendingLoop
from foldflight.fold.machine_values import DECIMALS
from foldflight.fold.mode import Unsupported, at_line_of, line_of


@dataclass(frozen=True)
class CompilePlan:
    """The description from which kernels are compiled.

    Args:
        functions: Pairs of a method and the author's plain function.
        makers: Pairs of a name and a function that makes accumulators. These are not compiled.
        with_self: The methods whose first parameter is the author's instance.
        cls: The author's class.
        instance: The attributes of the instance.
        accumulator_class: The class of the accumulator; None if it is a number or a list, in the field `value`, or a
            tuple with a field for each member.
        named_tuple: The class of the accumulator if it is a NamedTuple.
        accumulator: The attributes of the accumulator.
        arguments: The NumPy types of the argument columns.
        kinds: The kinds of their values.
        result: The kind of the result, or its items if it is a vector; empty if get_value is interpreted.
        result_bits: The width of an integer result, in bits.
        unresolved: The reason why get_value is interpreted; empty if it is compiled.
        guess: A text for the beginning of the reason why the code cannot be compiled, if the types in a container are a
            guess.
    """

    functions: tuple[tuple[str, Any], ...]
    makers: tuple[tuple[str, Any], ...]
    with_self: frozenset[str]
    cls: type
    instance: RecordLayout
    accumulator_class: type | None
    named_tuple: type | None
    accumulator: RecordLayout
    arguments: tuple[np.dtype[Any], ...]
    kinds: tuple[Kind, ...]
    result: str | Items
    result_bits: int
    unresolved: str = ""
    guess: str = ""

    @property
    def is_tuple(self) -> bool:
        """Whether the accumulator is a tuple."""
        is_value = "value" in (field.name.partition(".")[0] for field in self.accumulator.fields)
        return self.named_tuple is not None or (self.accumulator_class is None and not is_value)

    @property
    def holds(self) -> bool:
        """Whether the accumulator contains lists, dicts or sets that grow."""
        return any(field.contents is not None for field in self.accumulator.fields)

    @property
    def nests(self) -> bool:
        """Whether the accumulator contains dicts of lists, dicts or sets."""
        return any(
            field.contents is not None and field.contents.nested is not None for field in self.accumulator.fields
        )

    @property
    def own_names(self) -> frozenset[str]:
        """The names of the methods and properties of the author's classes, also of objects within accumulators."""
        classes = (self.cls, self.accumulator_class, *(cls for _, cls in self.accumulator.parts))
        own = {base for cls in classes if cls not in (None, dict, list) for base in cls.__mro__[:-1]}
        members = {name: value for cls in own for name, value in vars(cls).items()}
        return frozenset(
            name
            for name, value in members.items()
            if hasattr(value, "__get__") and not isinstance(value, MemberDescriptorType)
        )

    @property
    def methods(self) -> dict[str, Any]:
        """The functions by method."""
        return dict(self.functions)


def _vector(dtype: types.Type, *, readonly: bool = False, pairs: bool = False) -> types.Array:
    return types.Array(dtype, 2 if pairs else 1, "C", readonly=readonly)


def _results(plan: CompilePlan) -> types.Array:
    if isinstance(plan.result, Items):
        return _vector(numba.from_dtype(np.dtype(plan.result.format)), pairs=True)
    return _vector(number_type(plan.result), pairs=plan.result in DECIMALS)


def _cast_of(plan: CompilePlan) -> Any:
    """Return a function that casts what the author's code returns to the type of the result."""
    if isinstance(plan.result, Items):
        return vector_result_of(plan.result.size, plan.result.format)
    return operators.result_of(plan.result, plan.result_bits)


_BYTES = _vector(types.uint8)
_FLAGS = _vector(types.boolean)
_MASK = _vector(types.boolean, readonly=True)
_SLOTS = _vector(types.int32, readonly=True)
_PROGRESS = _vector(types.int64)
_WORDS = _vector(types.int64, readonly=True)
_TABLE = (_BYTES, _FLAGS, _BYTES)
# A function between a loop and the author's: numba copies its code into the loop before it infers types. Compiled by
# itself, it would be optimised with all that it calls, and LLVM would see the author's code once more for each of them.
_inlined: Final = numba.njit(inline="always")
# Rows and slots are never negative. The mask tells LLVM so, and it omits the code for negative indexes.
_PLUS: Final = (1 << 63) - 1
_METHODS_OF_LOOPS: Final = {"merge": "merge", "values": "get_value", "mapped": "eval"}


class Kernels:
    """The loops of one function. Each is compiled, or loaded from the store, when it is first needed.

    Args:
        plan: What to compile.
        store: Returns the file of a loop, given its name. None: loops are not stored.
        is_current: Returns whether the objects that the plan's code reaches are unchanged. It is called before each
            compilation, because loops of one function may be compiled at different times.
        ask: Called with the name of a loop that is not stored. It raises PendingLoop if another process compiles it.

    Raises:
        Unsupported: All methods raise it for code that cannot be compiled.
    """

    def __init__(
        self,
        plan: CompilePlan,
        store: Callable[[str], Any] | None = None,
        is_current: Callable[[], bool] = lambda: True,
        ask: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.plan = plan
        self._store = store
        self._is_current = is_current
        self._ask = ask
        self.instance = Reference(plan.cls, plan.instance, changeable=False)
        cls = plan.accumulator_class or plan.named_tuple or plan.cls
        self.accumulator = Reference(cls, plan.accumulator, changeable=True)
        # The type of another accumulator in merge: containers within its dicts may move to the first one.
        self.other = Reference(cls, plan.accumulator, changeable=True, lent=True) if plan.nests else self.accumulator
        self.author = ClassCompiler(self.accumulator, own_names=plan.own_names)
        self.read_only_record = Reference(cls, plan.accumulator, changeable=False)
        self._at = reference_at(self.accumulator)
        self._at_instance = reference_at(self.instance)
        self._loops: dict[str, Any] = {}
        self.compiled = 0  # loops that this process has compiled, without those loaded from the store

    def check(self) -> None:
        """Raise Unsupported for code that cannot be compiled, as far as this is known without compiling it."""
        accumulator_type = _accumulator_type(self.plan, self.accumulator)
        for method_name, function in self.plan.functions:
            if method_name in ("merge", "get_value"):
                continue  # they may be interpreted
            own = (self.instance,) if method_name in self.plan.with_self else ()
            accumulators = () if method_name == "eval" else (accumulator_type,)
            with at_line_of(function):
                self.author.check(function, (*own, *accumulators))

    def fold(self, *, nulls: bool) -> Any:
        """Return `fold(table, present, instance, progress, slots, retracts, columns, valid)`.

        `retracts` is bool, shape (n,), or (0,) if no row is a retraction. `columns` is a tuple of arrays of n values,
        `valid` a tuple of arrays of n flags (without `nulls`, an empty tuple).
        """
        return self._get("fold_nulls" if nulls else "fold", lambda: self._fold(nulls))

    def each(self, *, nulls: bool) -> Any:
        """Return `each(..., columns, valid, mask, shows, fresh, values, known)`, which folds the rows in `mask`.

        For each row in `shows` it writes the output of the row's slot after that row, and a flag that is false for
        None. `mask` and `shows` are bool, shape (n,).
        """
        return self._get("each_nulls" if nulls else "each", lambda: self._each(nulls))

    def merge(self) -> Any:
        """Return `merge(table, present, instance, progress, slots, states)`; `states` are n records, as uint8."""
        return self._get("merge", self._merge)

    def values(self) -> Any:
        """Return `values(table, present, instance, progress, fresh, slots, results, valid)`.

        It writes n results and flags.
        """
        return self._get("values", self._values)

    def map_rows(self, *, nulls: bool) -> Any:
        """Return `map_rows(instance, progress, columns, valid, values, known)`, for a scalar function.

        It fills n values and flags with what `eval` returns for each of n rows.
        """
        return self._get("mapped_nulls" if nulls else "mapped", lambda: self._map_loop(nulls))

    def _get(self, name: str, make: Any) -> Any:
        if name not in self._loops:
            with global_compiler_lock:
                if name not in self._loops:  # another thread may have compiled it while this one waited
                    try:
                        if not self._is_current():
                            raise Unsupported(
                                "objects that its code uses have changed since its other loops were compiled"
                            )
                        self._loops[name] = self._build_loop(name, make)
                    except PendingLoop:
                        raise
                    except Exception as error:  # noqa: BLE001 - stored and raised again, since another attempt would take seconds
                        self._loops[name] = error
        loop = self._loops[name]
        if isinstance(loop, Exception):
            raise loop
        return loop

    def _build_loop(self, name: str, make: Any) -> Any:
        """Return a loop that is compiled or loaded. A refusal is stored as a loop is: it takes as long."""
        stored_loop = None if self._store is None else self._store(name)
        if stored_loop is not None and (reason := stored_loop.refusal()):
            raise Unsupported(reason)
        if stored_loop is None or not stored_loop.is_stored:
            self._ask(name)
        try:
            return self._compile_loop(name, *make())
        except (Unsupported, NumbaError) as error:
            method = _METHODS_OF_LOOPS.get(name.removesuffix("_nulls"), "accumulate")
            guess = "" if method == "get_value" else self.plan.guess
            refusal = Unsupported(reason_of(error, line_of(self.plan.methods[method])) + guess)
            if stored_loop is not None:
                stored_loop.refuse(refusal.reason)
            raise refusal from error

    def _method(self, method_name: str, *, result: Any = None) -> Any:
        """Return `call(instance, accumulator, arguments)` for use in a loop."""
        function = self.author.compile(self.plan.methods[method_name], result)
        if method_name in self.plan.with_self:
            return _inlined(lambda instance, accumulator, arguments: function(instance, accumulator, *arguments))
        return _inlined(lambda instance, accumulator, arguments: function(accumulator, *arguments))

    def _step(self, method_name: str) -> Any:
        """Return `step(instance, record, arguments)`, which changes the record."""
        call, accumulator_of, put = self._method(method_name), _accumulator_of(self.plan), _write_back_of(self.plan)
        return _inlined(
            lambda instance, record, arguments: put(record, call(instance, accumulator_of(record), arguments))
        )

    def _one_row(self) -> Any:
        """Return `one_row(instance, record, retracts, columns, valid, row)`, which applies one row to a record."""
        accumulate = self._step("accumulate")
        row_of, retracts_rows = _row_of(self.plan.kinds), "retract" in self.plan.methods
        retract = self._step("retract" if retracts_rows else "accumulate")

        @_inlined
        def one_row(instance, record, retracts, columns, valid, row):
            arguments = row_of(columns, valid, row)
            if retracts_rows and len(retracts) and retracts[row]:
                retract(instance, record, arguments)
            else:
                accumulate(instance, record, arguments)

        return one_row

    def _columns(self, nulls: bool) -> tuple[types.Type, ...]:
        columns = [
            types.UniTuple(_WORDS, 2)
            if isinstance(kind, Contents)
            else _vector(numba.from_dtype(dtype), readonly=True, pairs=isinstance(kind, Items) or kind in DECIMALS)
            for dtype, kind in leaves_of([*zip(self.plan.arguments, self.plan.kinds, strict=True)])
        ]
        flags = [_MASK] * (len(columns) if nulls else 0)
        return _SLOTS, _MASK, types.Tuple(columns), types.Tuple(flags)

    def _fold(self, nulls: bool) -> tuple[Any, tuple[types.Type, ...]]:
        at, at_instance, local = self._at, self._at_instance, local_record(self.accumulator)
        one_row, holds = self._one_row(), self.plan.holds

        def fold(table, present, instance, progress, slots, retracts, columns, valid):
            me, own = at_instance(instance, 0), local()
            enter(progress)
            for index in range(progress[0], len(slots)):
                row = index & _PLUS
                slot = slots[row] & _PLUS
                record = at(table, slot)
                progress[0] = row
                if holds:
                    progress[1] = 0
                present[slot] = True
                copy(own, record)
                one_row(me, own, retracts, columns, valid, row)
                copy(record, own)

        return fold, (*_TABLE, _PROGRESS, *self._columns(nulls))

    def _each(self, nulls: bool) -> tuple[Any, tuple[types.Type, ...]]:
        at, at_instance, local = self._at, self._at_instance, local_record(self.accumulator)
        as_read_only, one_row, get_value = cast_to(self.read_only_record), self._one_row(), self._get_value()
        holds, place, show = self.plan.holds, _place_of(self.plan), _show_of(self.plan)

        def each(
            table, present, instance, progress, slots, retracts, columns, valid, mask, shows, fresh, values, is_known
        ):
            me, own = at_instance(instance, 0), local()
            enter(progress)
            for index in range(progress[0], len(slots)):
                row = index & _PLUS
                slot = slots[row] & _PLUS
                progress[0] = row
                if holds:
                    progress[1] = 0
                copy(own, at(table, slot) if present[slot] or mask[row] else at(fresh, 0))
                if mask[row]:
                    one_row(me, own, retracts, columns, valid, row)
                if shows[row]:
                    place(progress, values, row)
                    show(values, is_known, row, get_value(me, as_read_only(own)))
                if mask[row]:
                    copy(at(table, slot), own)
                    present[slot] = True

        return each, (
            *_TABLE,
            _PROGRESS,
            *self._columns(nulls),
            _MASK,
            _MASK,
            _BYTES,
            _results(self.plan),
            _FLAGS,
        )

    def _merge(self) -> tuple[Any, tuple[types.Type, ...]]:
        at, at_instance, local = self._at, self._at_instance, local_record(self.accumulator)
        merge_one, holds = self._step_merge(), self.plan.holds

        def merge(table, present, instance, progress, slots, states):
            me, own, other = at_instance(instance, 0), local(), local()
            enter(progress)
            for index in range(progress[0], len(slots)):
                row = index & _PLUS
                slot = slots[row] & _PLUS
                record, state = at(table, slot), at(states, row)
                progress[0] = row
                if holds:
                    progress[1] = 0
                if present[slot]:
                    copy(own, record)
                    copy(other, state)  # merge may change it, and is repeated if memory is exhausted
                    merge_one(me, own, other)
                    copy(record, own)
                else:
                    copy(record, state)
                    present[slot] = True

        return merge, (*_TABLE, _PROGRESS, _SLOTS, _BYTES)

    def _step_merge(self) -> Any:
        step, accumulator_of, as_other = self._step("merge"), _accumulator_of(self.plan), cast_to(self.other)
        return _inlined(lambda me, record, state: step(me, record, (accumulator_of(as_other(state)),)))

    def _get_value(self) -> Any:
        """Return `get_value(instance, record)`, cast to the kind of the result."""
        if self.plan.unresolved:
            raise Unsupported(self.plan.unresolved)
        call = self._method("get_value", result=_cast_of(self.plan))
        accumulator_of = _accumulator_of(self.plan)
        return _inlined(lambda me, record: call(me, accumulator_of(record), ()))

    def _values(self) -> tuple[Any, tuple[types.Type, ...]]:
        at, at_instance, get_value = reference_at(self.read_only_record), self._at_instance, self._get_value()

        holds, place, show = self.plan.holds, _place_of(self.plan), _show_of(self.plan)

        def values(table, present, instance, progress, fresh, slots, results, valid):
            me = at_instance(instance, 0)
            enter(progress)
            top = progress[4] if holds else 0
            for index in range(progress[0], len(slots)):
                row = index & _PLUS
                slot = slots[row] & _PLUS
                progress[0] = row
                if holds:  # the memory of temporary containers is free again at each row
                    progress[1], progress[4] = 0, top
                record = at(table, slot) if slot < len(present) and present[slot] else at(fresh, 0)
                place(progress, results, row)
                show(results, valid, row, get_value(me, record))

        return values, (*_TABLE, _PROGRESS, _BYTES, _SLOTS, _results(self.plan), _FLAGS)

    def _map_loop(self, nulls: bool) -> tuple[Any, tuple[types.Type, ...]]:
        function = self.author.compile(self.plan.methods["eval"], _cast_of(self.plan))
        if "eval" in self.plan.with_self:
            call = _inlined(lambda me, arguments: function(me, *arguments))
        else:
            call = _inlined(lambda me, arguments: function(*arguments))
        at_instance, row_of = self._at_instance, _row_of(self.plan.kinds)
        place, show = _place_of(self.plan), _show_of(self.plan)

        def map_rows(instance, progress, columns, valid, values, is_known):
            me = at_instance(instance, 0)
            enter(progress)
            for index in range(progress[0], len(values)):
                row = index & _PLUS
                progress[0] = row
                place(progress, values, row)
                show(values, is_known, row, call(me, row_of(columns, valid, row)))

        columns = self._columns(nulls)[2:]
        return map_rows, (_BYTES, _PROGRESS, *columns, _results(self.plan), _FLAGS)

    def _compile_loop(self, name: str, kernel: Any, arguments: tuple[types.Type, ...]) -> Any:
        # Without reference counts: numba does not release references to arrays when an exception leaves the loop.
        dispatcher = numba.njit(nogil=True, _nrt=False, **INNER)(kernel)
        if self._store is not None:
            dispatcher._cache = self._store(name)
        dispatcher.compile(arguments)
        dispatcher.disable_compile()
        self.compiled += not dispatcher.stats.cache_hits
        return dispatcher


_PAIR: Final = (lambda pairs, index: pairs[index, 0], lambda pairs, index: pairs[index, 1])


def _view_of(contents: Contents) -> Any:
    """Return `view(header, column, row)`, which writes the header of one row's array or map."""
    stride = contents.stride

    def view(header: int, column: Any, row: int) -> None:
        offsets, words = column
        count = offsets[row + 1] - offsets[row]
        memory.view_of_words(header, address_of_array(words), offsets[row] * stride, count)

    return view


def _leaf_type(kind: str | Contents | Items) -> types.Type:
    if isinstance(kind, Items):
        return VectorType(kind.size, kind.format, changeable=False)
    return containers.ContainerType(kind, changeable=False) if isinstance(kind, Contents) else KINDS[kind]


def _row_of(kinds: tuple[Kind, ...]) -> Any:
    """Return `row_of(columns, valid, index)`, which returns the values of one row, with None for NULL.

    An array or map is a header on the caller's stack, which refers to the items in the column.
    """
    leaves = [kind for _, kind in leaves_of([(None, kind) for kind in kinds])]

    @intrinsic
    def row_of(typing: Any, columns: Any, valid: Any, index: Any) -> Any:
        nulls = len(valid) > 0

        def type_of(kind: Kind) -> types.Type:
            if isinstance(kind, Members):
                inner = Struct(dict(zip(kind.names, map(type_of, kind.kinds), strict=True)))
            else:
                inner = _leaf_type(kind)
            return types.Optional(inner) if nulls else inner

        result = types.Tuple([type_of(kind) for kind in kinds])

        def generate(context: Any, builder: Any, sig: Any, arguments: Any) -> Any:
            where = context.cast(builder, arguments[2], index, types.intp)

            def at(position: int, arrays: int, item: Any = lambda array, index: array[index]) -> Any:
                array = sig.args[arrays][position]
                return context.compile_internal(
                    builder,
                    item,
                    signature(array.dtype, array, types.intp),
                    [builder.extract_value(arguments[arrays], position), where],
                )

            def as_optional(kind: Kind, value: Any, position: int) -> Any:
                if not nulls:
                    return value
                optional = context.make_helper(builder, type_of(kind))
                optional.data, optional.valid = value, at(position, 1)
                return optional._getvalue()

            def leaf(position: int) -> Any:
                column, kind = columns[position], leaves[position]
                if isinstance(kind, Contents):
                    value = cgutils.alloca_once(builder, llvm.ArrayType(llvm.IntType(64), INNER_HEADER))
                    actual = [builder.extract_value(arguments[0], position), where]
                    of_header = signature(types.void, types.int64, column, types.intp)
                    actual.insert(0, builder.ptrtoint(value, llvm.IntType(64)))
                    context.compile_internal(builder, _view_of(kind), of_header, actual)
                    return builder.bitcast(value, cgutils.voidptr_t)
                if isinstance(kind, Items):
                    data = context.make_array(column)(context, builder, builder.extract_value(arguments[0], position))
                    return row_address(builder, data.data, where, _leaf_type(kind))
                if kind in DECIMALS:
                    return decimals.join_words(builder, *(at(position, 0, word) for word in _PAIR))
                # Dates and times have the same integers in memory.
                return context.cast(builder, at(position, 0), column.dtype, number_type(kind))

            members, position = [], 0
            for kind in kinds:
                first = position
                if isinstance(kind, Members):
                    type_ = type_of(kind)
                    struct = context.make_helper(builder, type_.type if nulls else type_)
                    for number, each in enumerate(kind.kinds):
                        position += 1
                        setattr(struct, f"f{number}", as_optional(each, leaf(position), position))
                value = struct._getvalue() if isinstance(kind, Members) else leaf(position)
                members.append(as_optional(kind, value, first))
                position += 1
            return context.make_tuple(builder, result, members)

        return signature(result, columns, valid, index), generate

    return row_of


def _accumulator_of(plan: CompilePlan) -> Any:
    """Return a function that converts a record to the value that the author's methods receive."""
    if plan.accumulator_class is not None:
        return register_jitable(lambda record: record)
    return load_members if plan.is_tuple else register_jitable(lambda record: record.value)


def _accumulator_type(plan: CompilePlan, record: Reference) -> types.Type:
    """Return the numba type of the value that the author's methods receive."""
    if plan.accumulator_class is not None or not (record.fields or record.tuples):
        return record
    if plan.is_tuple:
        return record.as_tuple
    field = record.fields.get("value")
    is_plain = field is not None and not field.length and field.contents is None
    return KINDS[field.kind] if field is not None and is_plain else record.type_of("value")


def _write_back_of(plan: CompilePlan) -> Any:
    """Return a function that stores the result of accumulate, retract or merge in the record."""
    if plan.accumulator_class is not None:
        return _write_back_object
    return _write_back_tuple if plan.is_tuple else _write_back_value


def _fits(kind: str, field: RecordField) -> bool:
    """Return whether a value of a kind can be stored in a field."""
    inner = kind.removesuffix("?")
    is_decimal = inner in DECIMALS and field.kind in DECIMALS
    return inner == field.kind or is_decimal or (kind == "none" and field.optional)


@implementation
def _write_back_tuple(record: Any, result: Any) -> Any:
    """Store the tuple that accumulate, retract or merge returned."""
    members = list(record.fields.values())
    is_tuple = isinstance(result, types.BaseTuple) and class_of(result) is record.tuple_class
    actual = [str(kind_of(each)) for each in result] if is_tuple else []
    if len(actual) != len(members) or not all(map(_fits, actual, members)):
        expected = ", ".join(each.kind for each in members)
        raise Unsupported(
            f"accumulate, retract or merge returns {result}, and the accumulator is a tuple of {expected}"
        )
    return lambda record, result: store_members(record, result)


@implementation
def _write_back_object(record: Any, result: Any) -> Any:
    """Check that accumulate, retract or merge returned None or the accumulator, which is stored already."""
    if isinstance(result, Reference) and result is record:
        return lambda record, result: copy(record, result)
    if isinstance(result, types.NoneType):
        return lambda record, result: None
    actual = describe_type(result)
    raise Unsupported(f"accumulate, retract or merge returns {actual}, not the accumulator or None")


def _keep_tuple(record: Any, result: Any) -> None:
    """Store the tuple that accumulate, retract or merge returned.

    Without an annotation, None is no result of a method whose accumulator is a tuple. Raising leaves such a row to the
    interpreter, which has the author's error.
    """
    if result is None and record.value is not None:
        raise ArithmeticError
    put_tuple(record, "value", result)


@implementation
def _write_back_value(record: Any, result: Any) -> Any:
    """Store the value that accumulate, retract or merge returned; None for containers, which they change in place."""
    if "value" in record.tuples:
        return _keep_tuple if record.layout.exact else lambda record, result: put_tuple(record, "value", result)
    expected = record.fields["value"]
    if isinstance(result, types.NoneType) and (expected.length or expected.contents is not None):
        return lambda record, result: None
    if expected.contents is not None:
        return lambda record, result: containers.put_whole(record.value, result)
    if expected.length and isinstance(result, ListItems):
        return lambda record, result: copy(record.value, result)
    if expected.length or not _fits(str(kind_of(result)), expected):
        in_place = f"a list of {expected.length} {expected.kind}, to be changed in place"
        label = in_place if expected.length else expected.kind
        actual = describe_type(result)
        raise Unsupported(f"accumulate, retract or merge returns {actual}, and the accumulator is {label}")

    def put(record: Any, result: Any) -> None:
        record.value = result  # raises for None where the accumulator cannot be None

    return put


def _place_of(plan: CompilePlan) -> Any:
    """Return `place(progress, values, row)`, which tells the author's code where the items of its result go."""
    if not isinstance(plan.result, Items):
        return _inlined(lambda progress, values, row: None)
    stride = plan.result.size * np.dtype(plan.result.format).itemsize

    @_inlined
    def place(progress, values, row):
        progress[RESULT] = address_of_array(values) + row * stride

    return place


def _show_of(plan: CompilePlan) -> Any:
    """Return `show(values, valid, row, value)`, which writes one result, or None."""
    return _show_vector if isinstance(plan.result, Items) else _show


@register_jitable
def _show_vector(values: Any, valid: Any, index: Any, value: Any) -> None:
    """Write whether there is a vector; its items are written."""
    valid[index] = value is not None


@implementation
def _show(values: Any, valid: Any, index: Any, value: Any) -> Any:
    """Write one result, or None."""
    kind = str(kind_of(value))
    if kind == "none":

        def nothing(values, valid, index, value):
            valid[index] = False

        return nothing
    inner = kind.removesuffix("?")
    convert, put = CONVERTERS[inner], _put_words if inner in DECIMALS else _put_number

    def optional(values, valid, index, value):
        valid[index] = value is not None
        if value is not None:
            put(values, index, convert(value))

    return optional


@register_jitable
def _put_words(values: Any, index: int, value: Any) -> None:
    values[index, 0], values[index, 1] = decimals.words(value)


@register_jitable
def _put_number(values: Any, index: int, value: Any) -> None:
    values[index] = as_number(value)
