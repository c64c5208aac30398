"""A digest of a function's code, by which servers with other code of one function are told apart.

It covers what the author's class or function is and reads: bytecode, constants, defaults, closures, base classes, and
the variables of modules that its code names, by value and transitively; so do imports in functions, and the
implementations of `functools.singledispatch`. Installed packages and Python
itself count by their versions. It does not cover comments, line numbers, docstrings of classes, annotations (the
fingerprint of a call has the types), and what code reads in other ways: files, `getattr` by a computed name, the
environment.

The digest must be the same in each process with the same code. So sets are sorted, dicts keep their order, and an
object that cannot be pickled counts by its type. A variable with a value of its own in each process, such as the time
of its start, makes the digest of each process another one.
"""

from __future__ import annotations

import contextlib
import copyreg
import dis
import functools
import hashlib
import importlib
import importlib.util
import site
import sys
import sysconfig
from collections.abc import Mapping
from enum import Enum
from importlib.metadata import PackageNotFoundError, version
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, MappingProxyType, MethodType, ModuleType
from typing import Any, Final

_DIGITS: Final = 16
_OBJECTS_MAX: Final = 100_000
_DEPTH_MAX: Final = 200
_PLAIN: Final = (type(None), bool, int, float, complex, str, bytes, type(...), type(NotImplemented))
# Members of a class that Python makes, or that say nothing about what the class does. The last is our own decorator's.
_LEFT_OUT: Final = frozenset(
    {
        "__dict__",
        "__weakref__",
        "__doc__",
        "__module__",
        "__annotations__",
        "__annotate__",
        "__annotate_func__",
        "__annotations_cache__",
        "__firstlineno__",
        "__static_attributes__",
        "__abstractmethods__",
        "__parameters__",
        "_abc_impl",
        "__foldflight_function__",
    }
)
_INSTALLED: Final = tuple(
    {
        *(sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")),
        *(site.getsitepackages() if hasattr(site, "getsitepackages") else ()),
    }
)


def code_digest(source: Any) -> str:
    """Return the digest of an author's class or function, as 16 hexadecimal digits."""
    walk = _Walk(source.__module__.partition(".")[0])
    walk.add([sys.implementation.name, *sys.version_info[:2], version("foldflight")])
    walk.add(source)
    return walk.hexdigest()


class _Walk:
    """Visits objects and hashes what they are.

    Args:
        package: The top-level package of the author, which may be an installed one.
    """

    def __init__(self, package: str) -> None:
        self._package = package
        self._hash = hashlib.sha256()
        self._numbers: dict[int, int] = {}  # by identity, the number of each object that may be met again
        self._alive: list[object] = []  # so that no other object gets an identity of these
        self._modules: set[str] = set()  # whose variables are being added
        self._depth = 0

    def hexdigest(self) -> str:
        return self._hash.hexdigest()[:_DIGITS]

    def add(self, value: Any) -> None:
        """Add one object, and all that it consists of."""
        if isinstance(value, _PLAIN) and type(value) in _PLAIN:
            self._add_texts(type(value).__name__, repr(value))
        elif isinstance(value, (tuple, CodeType)) and type(value) in (tuple, CodeType):
            self._descend(value)  # equal ones may be one object or several
        elif (number := self._numbers.get(id(value))) is not None:
            self._add_texts("again", str(number))
        else:
            self._numbers[id(value)] = len(self._numbers)
            self._alive.append(value)
            self._descend(value)

    def _descend(self, value: Any) -> None:
        if self._depth >= _DEPTH_MAX or len(self._numbers) > _OBJECTS_MAX:
            self._add_texts("deep", type(value).__qualname__)
            return
        self._depth += 1
        try:
            self._add_parts(value)
        except Exception:  # noqa: BLE001 - foreign code; what cannot be read or pickled counts by its type
            self._add_texts("opaque", type(value).__qualname__)
        finally:
            self._depth -= 1

    def _add_texts(self, *texts: str) -> None:
        """Hash texts, each behind its length, so that no two sequences of texts have the same bytes."""
        for text in texts:
            text_bytes = text.encode(errors="surrogatepass")
            self._hash.update(b"%d:" % len(text_bytes))
            self._hash.update(text_bytes)

    def _add_all(self, name: str, *values: Any) -> None:
        """Add the name of a kind of object, and the objects that it consists of."""
        self._add_texts(name, str(len(values)))
        for value in values:
            self.add(value)

    def _add_parts(self, value: Any) -> None:
        """Add what an object consists of, by its type."""
        match value:
            case CodeType():
                counts = (value.co_argcount, value.co_posonlyargcount, value.co_kwonlyargcount, value.co_flags)
                names = (value.co_name, value.co_names, value.co_varnames, value.co_freevars, value.co_cellvars)
                table = getattr(value, "co_exceptiontable", b"")
                self._add_all("code", *counts, *names, value.co_code, table, *value.co_consts)
            case FunctionType():
                self._function(value)
            case MethodType():
                self._add_all("method", value.__func__, value.__self__)
            case staticmethod() | classmethod():
                self._add_all(type(value).__name__, value.__func__)
            case property():
                self._add_all("property", value.fget, value.fset, value.fdel)
            case CellType():
                self._add_all("cell", *_contents(value))
            case BuiltinFunctionType():
                self._add_texts("built in", str(value.__module__), value.__qualname__)
            case ModuleType():
                self._add_installed(value.__name__, "")
            case Enum():
                self._add_all("member", type(value), value.name, value.value)
            case type():
                self._class(value)
            case list() | tuple() if type(value) in (list, tuple):
                self._add_all(type(value).__name__, *value)
            case dict() if type(value) is dict:
                self._add_all("dict", *(part for item in value.items() for part in item))
            case set() | frozenset() if type(value) in (set, frozenset):
                self._add_all("set", *sorted(map(self._apart, value)))
            case _:
                self._object(value)

    def _apart(self, value: Any) -> str:
        """Return the digest of one object on its own, by which the items of a set are sorted."""
        walk = _Walk(self._package)
        walk._depth = self._depth
        walk.add(value)
        return walk.hexdigest()

    def _function(self, function: FunctionType) -> None:
        if not self._is_own(function.__module__):
            self._add_installed(function.__module__, function.__qualname__)
            return
        self._add_all("function", function.__code__, function.__defaults__, function.__kwdefaults__)
        for cell in function.__closure__ or ():
            self._add_all("closure", *_contents(cell))
        names = names_in(function.__code__)
        for name in sorted(names & function.__globals__.keys()):
            self._add_texts("variable", name)
            self._variable(function.__globals__[name], names)
        for name in _imports_in(function.__code__, function.__globals__.get("__package__") or ""):
            self._add_import(name, names)
        if (wrapped_function := function.__dict__.get("__wrapped__")) is not None:
            self._add_all("wrapped", wrapped_function)
        if isinstance(registry := function.__dict__.get("registry"), MappingProxyType):  # of functools.singledispatch
            self._add_all("registry", *(part for item in registry.items() for part in item))

    def _add_import(self, name: str, names: set[str]) -> None:
        """Add a module that code imports when it runs, as `_variable` does.

        An author's module is imported now: the digest must not depend on whether the code has run in this process.
        """
        try:
            spec = importlib.util.find_spec(name)
        except (ImportError, ValueError):
            spec = None
        if spec is None:
            return  # such as `Path` in `from pathlib import Path`, which is no module
        self._add_texts("import", name)
        if not self._is_own(name, spec.origin):
            self._add_installed(name, "")
        else:
            self._variable(importlib.import_module(name), names)

    def _variable(self, value: Any, names: set[str]) -> None:
        """Add a variable that code names; of an author's module, also the module's variables that the code names."""
        if not (isinstance(value, ModuleType) and self._is_own(value.__name__)):
            self.add(value)
            return
        self._add_texts("module", value.__name__)
        if value.__name__ in self._modules:
            return
        self._modules.add(value.__name__)
        for name in sorted(names & vars(value).keys()):
            self._add_texts("variable", name)
            self._variable(vars(value)[name], names)
        self._modules.remove(value.__name__)  # other code may name other variables of it

    def _class(self, cls: type) -> None:
        if not self._is_own(cls.__module__):
            self._add_installed(cls.__module__, cls.__qualname__)
            return
        self._add_all("class", cls.__qualname__, *cls.__bases__)
        for name, member in sorted(vars(cls).items()):
            if name not in _LEFT_OUT:
                self._add_texts("member", name)
                self.add(member)

    def _object(self, value: Any) -> None:
        """Add another object by what it is pickled from."""
        self.add(type(value))
        wrapped_function = getattr(value, "__dict__", {}).get("__wrapped__")  # such as functools.cache
        reduce = copyreg.dispatch_table.get(type(value))  # such as compiled regular expressions have
        reduce_value = "" if wrapped_function is not None else reduce(value) if reduce else value.__reduce_ex__(4)
        parts = [list(each) if index > 2 and each is not None else each for index, each in enumerate(reduce_value[:5])]
        if wrapped_function is not None:
            self._add_all("wrapped", wrapped_function)
        elif isinstance(reduce_value, str):
            self._add_texts("named", reduce_value)
        else:
            self._add_all("object", *parts)

    def _add_installed(self, module: str, name: str) -> None:
        """Add something installed: its name, and the version of its package."""
        package = module.partition(".")[0]
        self._add_texts("installed", module, name, "" if package in sys.stdlib_module_names else _version(package))

    def _is_own(self, name: str | None, origin: str | None = None) -> bool:
        """Return whether a module is an author's: of the function's package, or not installed as a package.

        Args:
            name: The module.
            origin: Its file, if it may not be imported yet.
        """
        package = (name or "").partition(".")[0]
        if package in sys.stdlib_module_names and package != "__main__":
            return False
        if package == "foldflight":
            return False
        if package in (self._package, "__main__", ""):
            return True
        file = origin or getattr(sys.modules.get(name or ""), "__file__", None)
        return file is not None and not file.startswith(_INSTALLED)


def _contents(cell: CellType) -> tuple[Any, ...]:
    try:
        return (cell.cell_contents,)
    except ValueError:  # the variable is not assigned yet
        return ()


def names_in(code: CodeType) -> set[str]:
    """Return the names that code looks up, of inner functions too."""
    inner = (each for each in code.co_consts if isinstance(each, CodeType))
    return set(code.co_names).union(*map(names_in, inner))


def _imports_in(code: CodeType, package: str) -> list[str]:
    """Return the absolute names of the modules that code imports, sorted, of inner functions too.

    Args:
        code: The code.
        package: The package of its module, to which relative imports refer.
    """
    names: set[str] = set()
    level = 0  # of a relative import; bytecode loads level and names as constants before the import
    members: tuple[str, ...] = ()
    for step in dis.get_instructions(code):
        if step.opname == "IMPORT_NAME":
            with contextlib.suppress(ImportError):
                module = importlib.util.resolve_name("." * level + step.argval, package)
                names |= {module, *(f"{module}.{member}" for member in members if member != "*")}
        elif step.opname.startswith("LOAD_") and isinstance(step.argval, int):
            level, members = step.argval, ()
        elif step.opname == "LOAD_CONST" and isinstance(step.argval, tuple):
            members = step.argval
    for each in code.co_consts:
        names.update(_imports_in(each, package) if isinstance(each, CodeType) else ())
    return sorted(names)


@functools.cache
def _version(package: str) -> str:
    declared_version = getattr(sys.modules.get(package), "__version__", None)
    try:
        return declared_version if isinstance(declared_version, str) else version(package)
    except PackageNotFoundError:
        return ""


def other_code(digests: Mapping[str, str], others: Mapping[str, str]) -> tuple[str, ...]:
    """Return the functions whose digests, by name, are known on both sides and differ."""
    return tuple(name for name, digest in digests.items() if digest and others.get(name) not in (None, "", digest))
