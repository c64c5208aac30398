"""Access to words and bytes of memory, and the control words (`arena.py`) of the loop that a thread runs."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any, Final

import llvmlite.binding
from llvmlite import ir as llvm
from numba.core import types
from numba.core.typing import signature
from numba.extending import intrinsic

from foldflight.ext.compiler import arena
from foldflight.ext.compiler.generated import llvm_function, register_jitable


def _memory(width: int) -> tuple[Callable[[int], int], Callable[[int, int], None]]:
    """Return two functions that load and store an integer of a number of bits at an address."""
    number = llvm.IntType(width)

    @llvm_function(types.int64, types.int64)
    def load(context: Any, builder: Any, address: Any) -> Any:
        loaded_word = builder.load(builder.inttoptr(address, number.as_pointer()))
        return loaded_word if width == 64 else builder.zext(loaded_word, llvm.IntType(64))

    @llvm_function(types.void, types.int64, types.int64)
    def store(context: Any, builder: Any, address: Any, value: Any) -> Any:
        value = value if width == 64 else builder.trunc(value, number)
        builder.store(value, builder.inttoptr(address, number.as_pointer()))
        return context.get_dummy_value()

    return load, store


load, store = _memory(64)
load_short, store_short = _memory(32)
load_byte, store_byte = _memory(8)

# A container of an accumulator has the address of the control words in its header. New containers and strings have none
# yet, so a loop stores the address for its thread.
_library: Final = ctypes.CDLL(None)
_key: Final = ctypes.c_uint64(0)
if _library.pthread_key_create(ctypes.byref(_key), None):
    raise ImportError("the C library has no more keys for values of threads (pthread_key_create)")
llvmlite.binding.add_symbol("foldflight_key", ctypes.addressof(_key))
_of_thread: Final = types.ExternalFunction("pthread_getspecific", signature(types.int64, types.int64))
_set_of_thread: Final = types.ExternalFunction("pthread_setspecific", signature(types.int32, types.int64, types.int64))


@llvm_function(types.int64)
def _key_of_thread(context: Any, builder: Any) -> Any:
    wide, name = llvm.IntType(64), "foldflight_key"
    return builder.load(builder.module.globals.get(name) or llvm.GlobalVariable(builder.module, wide, name))


@intrinsic
def address_of_array(typing: Any, array: Any) -> Any:
    """Return the address of an array's first item."""

    def generate(context: Any, builder: Any, sig: Any, arguments: Any) -> Any:
        data = context.make_array(sig.args[0])(context, builder, arguments[0]).data
        return builder.ptrtoint(data, llvm.IntType(64))

    return signature(types.int64, array), generate


@register_jitable
def enter(progress: Any) -> None:
    """Store the address of the control words of the loop that this thread starts."""
    _set_of_thread(_key_of_thread(), address_of_array(progress))


@register_jitable
def current() -> int:
    """Return the address of the control words of the loop that this thread runs."""
    return _of_thread(_key_of_thread())


@register_jitable
def text_room(length: int) -> int:
    """Return the address of free memory for a string. Raises MemoryError if there is not enough."""
    control = current()
    address = load(control + 8 * arena.TEXT)
    if address + length > load(control + 8 * arena.TEXT_END):
        store(control + 8 * arena.NEEDED, -length)
        raise MemoryError
    store(control + 8 * arena.TEXT, address + length)
    return address
