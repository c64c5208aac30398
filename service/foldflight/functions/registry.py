"""The registry of functions by name, loaded from modules, from classes, and from jars by the extension `java`."""

from __future__ import annotations

import difflib
import importlib
import traceback
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import PurePath
from types import ModuleType
from typing import Any, Final, Protocol

from foldflight.errors import FoldflightError, RejectedError
from foldflight.extensions import Extension
from foldflight.functions import builtin
from foldflight.functions.author.spec import AnyFunction, Function, ScalarFunction
from foldflight.functions.author.udaf import function_of


class Registry(Mapping[str, AnyFunction]):
    """Functions by name. The built-in functions are always included.

    Args:
        functions: The functions to add to the built-in ones.

    Raises:
        RejectedError: SIGNATURE, if two functions have the same name.

    >>> from foldflight import Registry
    >>> registry = Registry()
    >>> registry["count"].name, len(registry)
    ('count', 16)
    """

    def __init__(self, functions: Iterable[AnyFunction] = ()) -> None:
        built_in = (function_of(value) for value in vars(builtin).values())
        self._functions: dict[str, AnyFunction] = {each.name: each for each in built_in if each is not None}
        self.authored: tuple[AnyFunction, ...] = tuple(functions)
        # The newest Open requests, each with the functions and columns that it was bound to. This cache is here because
        # it is valid only for these functions.
        self.recent_requests: tuple[tuple[Any, Any], ...] = ()
        for function in self.authored:
            first_function = self._functions.setdefault(function.name, function)
            if first_function is not function:
                raise RejectedError(
                    "SIGNATURE",
                    f"two functions are named {function.name}: {first_function.where} and {function.where}; "
                    "give one of them another name, as in @udaf(name=...)",
                    function=function.name,
                )

    @classmethod
    def load(cls, sources: Iterable[object]) -> Registry:
        """Return the functions of several sources.

        Args:
            sources: Names of modules, modules, objects decorated with `@udaf`, `@udf` or `@udtf`, or functions.

        Raises:
            RejectedError: MODULE, if a module cannot be imported or has no function; SIGNATURE, if an object has no
                decorator or two functions have the same name.
        """
        by_name: dict[str, AnyFunction] = {}
        for source in sources:
            for function in _functions_in(source):
                if by_name.setdefault(function.name, function) is not function:
                    return cls([*by_name.values(), function])
        return cls(by_name.values())

    def only(self, names: Collection[str]) -> Registry:
        """Return a registry of those functions that have one of these names. It lacks the other built-in functions."""
        subset = Registry()
        subset._functions = {name: function for name, function in self._functions.items() if name in names}
        subset.authored = tuple(function for function in self.authored if function.name in names)
        return subset

    def __getitem__(self, name: str) -> AnyFunction:
        """Return the function of this name. Raises RejectedError UNKNOWN_FUNCTION."""
        try:
            return self._functions[name]
        except KeyError:
            raise unknown_function(name, self._functions) from None

    def __contains__(self, name: object) -> bool:
        return name in self._functions

    def __iter__(self) -> Iterator[str]:
        return iter(self._functions)

    def __len__(self) -> int:
        return len(self._functions)


def unknown_function(name: str, known_names: Iterable[str], where: str = "here") -> RejectedError:
    """Return the error for an unknown function name, with the place of the search and similar names."""
    names = sorted(known_names)
    close = difflib.get_close_matches(name, names, n=3)
    hint = f"did you mean {' or '.join(close)}?" if close else f"there are {', '.join(names) or 'none'}"
    return RejectedError("UNKNOWN_FUNCTION", f"there is no function {name!r} {where}; {hint}", function=name)


def can_be_changed(name: str) -> bool:
    """Return whether users can define methods of a function of this name: it is no built-in one."""
    return name not in Registry()


def _functions_in(source: object) -> list[AnyFunction]:
    if isinstance(source, (Function, ScalarFunction)):
        return [source]
    if isinstance(source, str):
        source = import_module(source)
    if isinstance(source, ModuleType):
        # Functions that the module only imports are left to the module that defines them.
        own = [value for value in vars(source).values() if getattr(value, "__module__", None) == source.__name__]
        functions = [function for value in own if (function := function_of(value)) is not None]
        if not functions:
            raise RejectedError(
                "MODULE",
                f"module {source.__name__} has no function: put @udaf, @udf or @udtf on a class or a def in it",
            )
        return functions
    function = function_of(source)
    if function is None:
        raise RejectedError(
            "SIGNATURE",
            f"{source!r} is not a function: pass a class or a def decorated with @udaf, @udf or @udtf, a module, or a "
            "module's name",
        )
    return [function]


def import_module(name: str) -> ModuleType:
    """Import a module of an author. Raises RejectedError MODULE, with the place of the error and a remedy."""
    try:
        return importlib.import_module(name)
    except FoldflightError:
        raise
    except BaseException as error:
        if isinstance(error, (KeyboardInterrupt, GeneratorExit)):
            raise
        missing = isinstance(error, ModuleNotFoundError) and error.name is not None and name.startswith(error.name)
        if name.endswith(".py") and (missing or name.startswith(".")):
            raise RejectedError("MODULE", _display_path(PurePath(name))) from error
        remedy = (
            "; it must be on the Python path, where a script finds its own folder, and `foldflight` the current one"
            if missing
            else ""
        )
        stack = [each for each in traceback.extract_tb(error.__traceback__) if "importlib" not in each.filename]
        where = f" at {stack[-1].filename}:{stack[-1].lineno}" if len(stack) > 1 else ""
        raise RejectedError(
            "MODULE", f"module {name!r} cannot be imported{where}: {type(error).__name__}: {error}{remedy}"
        ) from error


def _display_path(path: PurePath) -> str:
    """Return what to write in place of the path of a module's file."""
    elsewhere = path.is_absolute() or ".." in path.parts
    module_name = path.stem if elsewhere else ".".join(path.with_suffix("").parts)
    folder = f", and start foldflight in {path.parent}" if elsewhere else ""
    return f"'{path}' is a file, and modules are given by name: write {module_name}, without .py{folder}"


class JavaReader(Protocol):
    """What the extension provides."""

    def java_functions(self, named: Iterable[str], jar: str | None = None) -> list[Function]:
        """Return the functions of classes in jars."""

    def function_name(self, class_name: str) -> str:
        """Return the name of the function of a Java class: `com.acme.WeightedAvg` is `weighted_avg`."""

    def limit_heap(self, heap_bytes: int) -> None:
        """Limit the heap of the virtual machine, before it starts."""


JAVA: Final = Extension[JavaReader]("java")


def java_functions(named: Iterable[str], jar: str | None = None) -> list[Function]:
    """Return the functions of classes in jars.

    Args:
        named: `"functions.jar::com.acme.WeightedAvg"`, or `"com.acme.WeightedAvg"` for a class of `jar`.
        jar: The path of the jar of classes that are named without one.

    Raises:
        RejectedError: MODULE, if a jar cannot be read, a class is not in it or cannot be loaded, or Java or the
            extension is missing; SIGNATURE, for a class that is not a function.
    """
    names = list(named)
    return JAVA.load().java_functions(names, jar) if names else []
