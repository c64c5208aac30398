"""The annotations of functions and classes as objects, also where they are written as texts.

Under `from __future__ import annotations` an annotation is a text, and in Python 3.14 it is evaluated when it is asked
for. `typing.get_type_hints` looks for names in the module only. Authors also define classes in functions and in other
classes, and a decorator sees a class before its own name has a value. So names are looked up as Python's scopes
prescribe: in the functions that surround the definition, then in the module.
"""

from __future__ import annotations

import builtins
import inspect
import sys
import typing
from types import FrameType, FunctionType, SimpleNamespace
from typing import Any


def annotations_of(target: Any, owner: type | None = None, *, extras: bool = True) -> dict[str, Any]:
    """Return the annotations of a function or a class, and of its bases, as objects, by name.

    Args:
        target: The function or class.
        owner: The author's class to which it belongs, if there is one. Its name may have no value yet.
        extras: Whether `Annotated[int, "INT"]` stays what it is; otherwise it becomes `int`.

    Raises:
        NameError: A name has no value in any scope, or a class has no class of this name in it.
    """
    names = _names(target, owner)
    try:
        try:
            return typing.get_type_hints(target, localns=names, include_extras=extras)
        except NameError:
            if sys.version_info >= (3, 14):
                return _evaluate_late(target, names, extras=extras)
            raise
    except AttributeError as error:
        raise NameError(f"name '{error.name}' is not defined where it is looked for", name=error.name) from error


def _names(target: Any, owner: type | None) -> dict[str, Any]:
    """Return the names that are visible where an annotation is written, besides the names of its module."""
    visible = _local_variables(target)
    for each in () if owner is None or owner is target else (owner,):
        visible = {**_local_variables(each), **visible}
    module = getattr(sys.modules.get(getattr(target, "__module__", "")), "__dict__", {})
    for cls in (each for each in (owner, target) if isinstance(each, type)):
        # A member does not hide the type of the same name: `date: date = None` means the type.
        members = {name: member for base in reversed(cls.__mro__) for name, member in vars(base).items()}
        for name, member in members.items():
            if name not in module and not hasattr(builtins, name):
                visible.setdefault(name, member)
        outermost, inner = _outermost_class(cls)
        visible.setdefault(outermost, inner)
    return visible


def _local_variables(target: Any) -> dict[str, Any]:
    """Return the local variables of the functions in which something is defined, of inner functions first.

    While a function runs, its stack frame has them. Later, the methods that use a variable still have it.
    """
    visible: dict[str, Any] = {}
    for stack_frame in _stack_frames(target, in_functions=True):
        for name, value in stack_frame.f_locals.items():
            visible.setdefault(name, value)
    methods = vars(target).values() if isinstance(target, type) else (inspect.unwrap(target),)
    for method in (getattr(each, "__func__", each) for each in methods):
        if isinstance(method, FunctionType) and method.__closure__:
            for name, cell in zip(method.__code__.co_freevars, method.__closure__, strict=True):
                try:
                    visible.setdefault(name, cell.cell_contents)
                except ValueError:  # it has no value yet
                    continue
    return visible


def _stack_frames(target: Any, *, in_functions: bool) -> typing.Iterator[FrameType]:
    """Yield the running functions, or bodies of classes, in which something is defined, inner ones first."""
    path, module = getattr(target, "__qualname__", ""), getattr(target, "__module__", None)
    stack_frame = inspect.currentframe()
    mark = ".<locals>." if in_functions else "."
    while stack_frame is not None:
        code = stack_frame.f_code
        is_function = bool(code.co_flags & inspect.CO_NEWLOCALS and code.co_flags & inspect.CO_OPTIMIZED)
        surrounds = path.startswith(f"{code.co_qualname}{mark}") and stack_frame.f_globals.get("__name__") == module
        if surrounds and is_function == in_functions:
            yield stack_frame
        stack_frame = stack_frame.f_back


def _outermost_class(cls: type) -> tuple[str, Any]:
    """Return the name of the outermost class around a class, and an object with what its unfinished body has so far."""
    name, inner = cls.__name__, typing.cast("Any", cls)
    for stack_frame in _stack_frames(cls, in_functions=False):
        inner = SimpleNamespace(**{**stack_frame.f_locals, name: inner})
        name = stack_frame.f_code.co_name
    return name, inner


def _evaluate_late(target: Any, names: dict[str, Any], *, extras: bool) -> dict[str, Any]:
    """Return the annotations of Python 3.14 that could not be evaluated where they are written."""
    import annotationlib  # type: ignore[import-not-found]  # only Python 3.14 has it

    hints: dict[str, Any] = {}
    for each in reversed(target.__mro__) if isinstance(target, type) else (target,):
        texts = annotationlib.get_annotations(each, format=annotationlib.Format.STRING)
        module_names = getattr(each, "__globals__", None) or vars(sys.modules.get(each.__module__, builtins))

        def stand_in() -> None: ...

        stand_in.__annotations__ = texts
        hints |= typing.get_type_hints(stand_in, globalns=dict(module_names), localns=names, include_extras=extras)
    return hints


def signature_of(function: Any) -> inspect.Signature:
    """Return the signature of a function, whose annotations may name what has no value yet, as Python 3.14 allows."""
    if sys.version_info >= (3, 14):
        import annotationlib

        return inspect.signature(function, annotation_format=annotationlib.Format.FORWARDREF)
    return inspect.signature(function)
