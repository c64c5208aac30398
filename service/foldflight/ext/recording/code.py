"""The code of functions: its location and digest, and the functions with which a recording is replayed."""

from __future__ import annotations

import hashlib
import inspect
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from foldflight.errors import RejectedError
from foldflight.ext.recording.file import Recording
from foldflight.fold.pickles import current_module
from foldflight.functions import AnyFunction, Function
from foldflight.functions.registry import Registry, import_module, java_functions, unknown_function
from foldflight.shipping.bundles import check_made_with, unpickle, unseal


def is_java(function: AnyFunction) -> bool:
    """Return whether a function is a class of a jar."""
    return isinstance(function, Function) and function.language == "java"


def module_of(function: AnyFunction) -> str:
    """Return the location of the author's code: `module:name`, or `functions.jar::com.acme.Name` in Java."""
    source: Any = function.source
    if is_java(function):
        return f"{source.form.jar.name}::{source.form.class_name}"
    return f"{source.__module__}:{source.__qualname__}"


def _reference_of(function: AnyFunction) -> str:
    """Return the location of the author's code in the form of the option `replay --function`.

    For a class of a script it is the file, because `__main__` is another module in `replay`. In workers, which have the
    class by value, the code of its methods contains the file name.
    """
    module, _, name = module_of(function).partition(":")
    if module != "__main__":
        return f"{module}:{name}"
    codes = [getattr(each, "__code__", None) for each in (function.source, *vars(function.source).values())]
    files = [Path(code.co_filename) for code in codes if code is not None]
    script = next((each.absolute() for each in files if each.suffix == ".py" and each.is_file()), "MODULE")
    return f"{script}:{name}"


def _digest_of(function: AnyFunction) -> str:
    """Return the SHA-256 of the source of the author's code, or of its jar; empty if there is no source."""
    source: Any = function.source
    if is_java(function):
        return str(source.form.jar.digest)
    try:
        return hashlib.sha256(inspect.getsource(source).encode(errors="backslashreplace")).hexdigest()
    except (OSError, TypeError):
        return ""


def facts_of(function: AnyFunction) -> dict[str, str]:
    """Return the description of a function for a recording."""
    where, digest = _reference_of(function), _digest_of(function)
    return {"name": function.name, "version": function.version, "where": where, "digest": digest}


def has_changed(recorded_facts: Mapping[str, str], function: AnyFunction) -> bool | None:
    """Return whether a function differs from the recorded one; None if it is unknown."""
    digests = _digest_of(function), recorded_facts["digest"]
    if all(digests):
        return digests[0] != digests[1]
    return True if module_of(function).rpartition(":")[2] != recorded_facts["where"].rpartition(":")[2] else None


def options_for(references: Sequence[str]) -> str:
    """Return the options of `replay` for code at these references."""
    return " ".join(f"--function {shlex.quote(each)}" for each in references)


def function_at(reference: str) -> AnyFunction:
    """Return the function at `module:name` or `file.py:name`, the only one of a module, or a class of a jar."""
    if ".jar::" in reference:
        return java_functions([reference])[0]
    module_name, _, name = reference.rpartition(":") if ".py:" in reference else reference.partition(":")
    if module_name.endswith(".py"):
        module_name = _as_module(Path(module_name))
    module = import_module(current_module(module_name))
    if not name:
        (function, *others) = Registry.load([module]).authored
        if others:
            names = ", ".join(module_of(each) for each in (function, *others))
            raise RejectedError("SIGNATURE", f"{module_name} has several functions; give one of {names}")
        return function
    target: Any = module
    for part in name.split("."):
        target = getattr(target, part, None)
    if target is None:
        raise RejectedError("MODULE", f"module {module_name} has no {name}; write --function module:Class")
    return Registry.load([target]).authored[0]


def _as_module(file: Path) -> str:
    """Return the module name of a file. Raises RejectedError MODULE if importing it may run it as a program."""
    try:
        is_guarded = "__main__" in file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RejectedError("MODULE", f"cannot read {file}: {error}") from None
    if not is_guarded:
        raise RejectedError(
            "MODULE",
            f"{file} was not imported, because that may run it as a program: it does not mention __main__. Write what "
            f"it does below `if __name__ == '__main__':`, or give a module with the class: --function module:Class",
        )
    sys.path.insert(0, str(file.parent.absolute()))
    return file.stem


def functions_for(
    recording: Recording, current_functions: Sequence[AnyFunction], bundle_keys: Sequence[bytes] = ()
) -> Registry:
    """Return the functions of a recording under the names that it uses.

    If exactly one function is missing, one of the caller's with another name replaces it. Bundles that are signed with
    one of the keys are unpickled, which executes their code.

    Raises:
        RejectedError: UNKNOWN_FUNCTION, with what to give, if one is missing; the errors of `unseal`.
    """
    names = dict.fromkeys(recording.open_request.functions)
    by_name = {}
    for sealed_bundle in recording.open_request.bundles if bundle_keys else ():
        bundle = unseal(sealed_bundle, bundle_keys)
        check_made_with(bundle)
        by_name.update({function.name: function for function in unpickle(bundle.code, bundle.digest)})
    built_in = Registry()
    others = [function for function in current_functions if function.name not in names]
    by_name.update({function.name: function for function in current_functions if function.name in names})
    authored_names = [name for name in names if name not in built_in]
    missing_names = [name for name in authored_names if name not in by_name]
    replaced_names = missing_names or authored_names  # an edited class may replace the class of a bundle
    if len(others) == len(replaced_names) == 1:
        by_name[replaced_names[0]] = replace(others[0], name=replaced_names[0])
    elif others:
        raise unknown_function(others[0].name, names, "in the recording")
    elif missing_names:
        where = {each["name"]: each["where"] for each in recording.about["functions"]}
        raise RejectedError(
            "UNKNOWN_FUNCTION",
            f"the recording calls {', '.join(missing_names)}, whose code is not in it; give it as it was recorded "
            f"({options_for([where.get(name, 'module:Class') for name in missing_names])}), or a class of yours, which "
            "is then executed",
        )
    return Registry(by_name.values())
