"""Pickle functions by value: their classes, and everything in their own packages that the classes refer to."""

from __future__ import annotations

import hashlib
import io
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from types import CodeType, FunctionType, ModuleType
from typing import Any, Final, ForwardRef

import cloudpickle

from foldflight.errors import RejectedError
from foldflight.fold.pickles import named
from foldflight.functions.author.adapters import Shipped, systems, written_by_author
from foldflight.functions.author.codedigest import names_in
from foldflight.functions.author.spec import AnyFunction, Function
from foldflight.shipping.bundles import Bundle, made_here, seal, unpickle
from foldflight.shipping.secrets import secrets_of_environment

# The set of modules that cloudpickle pickles by value is global to the process. Without a lock, one thread could remove
# modules that another still needs. The lock is reentrant because a class may refer to a transport.
_pickling = threading.RLock()
_TRACED_MAX: Final = 10_000  # objects that are inspected to find the one that cannot be pickled


def bundle_of(functions: Sequence[AnyFunction], key: str) -> bytes:
    """Return functions as a signed bundle, for servers that trust the key.

    Raises:
        RejectedError: SIGNATURE if they refer to an object that cannot be pickled.
    """
    names = tuple(function.name for function in functions)
    return seal(Bundle(names, made_here(), pickle_functions(functions)), key.encode())


def pickle_functions(functions: Sequence[AnyFunction]) -> bytes:
    """Pickle functions by value. To unpickle them, a process needs foldflight and the imports of their packages.

    Each function records the classes and functions that are pickled with it (`Function.own`).

    Raises:
        RejectedError: SIGNATURE if a function refers to an object that cannot be pickled. The message names the
            function and the variable.
    """
    with _pickling, _by_value(_packages_of(functions)):
        file = io.BytesIO()
        try:
            _Pickler(file, functions).dump(tuple(map(_shippable, functions)))
        except RejectedError:
            raise
        except Exception as error:
            for function in functions:
                failure = _failure(function)
                if failure is not None:
                    raise _not_picklable(function, failure) from error
            raise
    _refuse_secrets(file.getvalue(), functions)
    return file.getvalue()


def _refuse_secrets(code: bytes, functions: Sequence[AnyFunction]) -> None:
    """Refuse async functions whose pickle has the value of a variable of the environment that is named like a secret.

    Such functions call others with keys. A key in a variable of a module would travel to all servers, in plain form.
    """
    calling = [each for each in functions if each.bounds is not None]
    if not calling:
        return
    for name, value in secrets_of_environment():
        if value.encode(errors="surrogateescape") in code:
            names = ", ".join(each.name for each in calling)
            raise RejectedError(
                "SIGNATURE",
                f"the code of {names} contains the value of the environment variable {name}, and would be sent with "
                "it; read it in open(self, context), where the function runs, and not in its module",
                function=calling[0].name,
            )


def unpickled_copy(functions: Sequence[AnyFunction]) -> tuple[AnyFunction, ...]:
    """Pickle and unpickle functions, as another process would receive them. Raises as `pickled`."""
    code = pickle_functions(functions)
    functions_there: tuple[AnyFunction, ...] = unpickle(code, hashlib.sha256(code).hexdigest())
    return functions_there


def _packages_of(functions: Iterable[AnyFunction]) -> list[ModuleType]:
    """Return the top-level packages of the functions, except foldflight itself, which is installed everywhere.

    The package of a class that is adapted in a subclass is among them, and the package of its system is not.
    """
    modules = {function.source.__module__ for function in functions}
    for function in functions:
        if isinstance(function, Function) and function.adapter:
            modules |= {cls.__module__ for cls in written_by_author(function.cls, function.adapter)}
    others = {"foldflight", "__main__", *systems(), *sys.stdlib_module_names}
    names = {name.partition(".")[0] for name in modules} - others
    return [sys.modules[name] for name in sorted(names) if name in sys.modules]


@contextmanager
def _by_value(modules: Iterable[ModuleType]) -> Iterator[None]:
    registered_names = set(cloudpickle.list_registry_pickle_by_value())
    new_modules = [module for module in modules if module.__name__ not in registered_names]
    for module in new_modules:
        cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        for module in new_modules:
            cloudpickle.unregister_pickle_by_value(module)


class _Nowhere(io.RawIOBase):
    """A file that discards everything written to it."""

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        return memoryview(data).nbytes


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]  # it has no types
    """Pickles functions by value. Adapted classes are pickled without the parts that need their system."""

    def __init__(self, file: io.RawIOBase | io.BytesIO, functions: Iterable[AnyFunction]) -> None:
        super().__init__(file)
        adapted_functions = [each for each in functions if isinstance(each, Function) and each.adapter]
        self._stand_ins = Shipped({function.cls: function.adapter for function in adapted_functions})

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, ForwardRef):
            # In Python 3.14 it has all variables of its module, also those that the class does not use.
            module, is_class = obj.__forward_module__, obj.__forward_is_class__
            return partial(ForwardRef, obj.__forward_arg__, module=module, is_class=is_class), ()
        if isinstance(obj, CodeType):
            # Since 3.1.3 cloudpickle writes this text in place of the file, which errors and debuggers show.
            make, arguments = self.dispatch_table[CodeType](obj)
            return make, tuple(obj.co_filename if each == "<dynamic-code>" else each for each in arguments)
        replacement = self._stand_ins.replacement(obj)
        if replacement is not None:
            return named, (replacement.__module__, replacement.__qualname__)
        reduce_value = super().reducer_override(obj)
        removed_attributes = self._stand_ins.removed_attributes(obj) if isinstance(obj, type) else ()
        if removed_attributes and isinstance(reduce_value, tuple) and reduce_value[2:]:
            members, slots = reduce_value[2]
            remaining = {name: member for name, member in members.items() if name not in removed_attributes}
            return (*reduce_value[:2], (remaining, slots), *reduce_value[3:])
        return reduce_value


class _Recorder(_Pickler):
    """Discards the pickle, and records the classes and functions that are pickled by value."""

    def __init__(self, function: Function) -> None:
        super().__init__(_Nowhere(), [function])
        self.by_name: dict[tuple[str, str], list[Any]] = {}

    def reducer_override(self, obj: Any) -> Any:
        reduce_value = super().reducer_override(obj)
        by_value = reduce_value is not NotImplemented and self._stand_ins.replacement(obj) is None
        if by_value and isinstance(obj, (type, FunctionType)):
            self.by_name.setdefault((obj.__module__, obj.__qualname__), []).append(obj)
        return reduce_value


def _objects_by_value(function: Function) -> Mapping[tuple[str, str], Any]:
    """Return the classes and functions that are pickled by value with a function, except those with ambiguous names."""
    recorder = _Recorder(function)
    recorder.dump(replace(function, own={}))
    return {
        name: objects[0]
        for name, objects in recorder.by_name.items()
        if len(objects) == 1 and name[0] != "builtins" and "<lambda>" not in name[1]
    }


def _shippable(function: AnyFunction) -> AnyFunction:
    """Return a function as it is pickled: aggregates record their own classes, which states in pickles refer to."""
    return replace(function, own=_objects_by_value(function)) if isinstance(function, Function) else function


def _failure(value: object) -> Exception | None:
    """Return the exception that pickling a value raises; None if it can be pickled."""
    try:
        cloudpickle.Pickler(_Nowhere()).dump(value)
    except Exception as error:  # noqa: BLE001 - pickling runs foreign code, which may raise anything
        return error
    return None


def _not_picklable(function: AnyFunction, failure: Exception) -> RejectedError:
    path, value = _culprit(function.source)
    where = f"{path} is {type(value).__module__}.{type(value).__qualname__}, and it" if path else "its code"
    return RejectedError(
        "SIGNATURE",
        f"{function.name} cannot be sent to the processes that fold: {where} cannot be pickled "
        f"({type(failure).__name__}: {failure}). A class must not refer to open files, locks or connections: "
        "create them in open(self, context) and store them in self",
        function=function.name,
    )


def _culprit(cls: object) -> tuple[str, object]:
    """Return the path and the value of the innermost part of a class or function that cannot be pickled."""
    path = ""
    value: object = cls
    seen_ids = {id(cls)}
    while len(seen_ids) < _TRACED_MAX:
        for name, part in _parts(value):
            if id(part) in seen_ids:
                continue
            seen_ids.add(id(part))
            if _failure(part) is not None:
                path, value = (f"{path}: {name}" if path else name), part
                break
        else:
            break
    return path, value


def _parts(value: object) -> Iterator[tuple[str, object]]:
    """Yield the names and values of the objects that are pickled together with a value."""
    if isinstance(value, type):
        for name, part in vars(value).items():
            yield f"{value.__qualname__}.{name}", part
        for base in value.__bases__:
            yield f"the base class {base.__qualname__}", base
    elif isinstance(value, (staticmethod, classmethod)):
        yield "its function", value.__func__
    elif isinstance(value, property):
        yield from (("its function", part) for part in (value.fget, value.fset, value.fdel) if part is not None)
    elif isinstance(value, FunctionType):
        yield from _variables(value)
    elif isinstance(value, ModuleType):
        yield from ((f"{value.__name__}.{name}", part) for name, part in vars(value).items() if name != "__builtins__")
    elif isinstance(value, Mapping):
        yield from ((f"item {key!r}", part) for key, part in value.items())
    elif isinstance(value, (list, tuple, set, frozenset)):
        yield from ((f"item {index}", part) for index, part in enumerate(value))
    else:
        yield from ((f"attribute {name}", part) for name, part in getattr(value, "__dict__", {}).items())


def _variables(function: FunctionType) -> Iterator[tuple[str, object]]:
    for name in sorted(names_in(function.__code__)):
        if name in function.__globals__:
            yield f"the variable {name}", function.__globals__[name]
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield f"the variable {name}", cell.cell_contents
        except ValueError:  # the variable is not assigned yet
            continue
    for part in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
        yield "a default", part
    wrapped_function: Callable[..., Any] | None = getattr(function, "__wrapped__", None)
    if wrapped_function is not None:
        yield "the wrapped function", wrapped_function
