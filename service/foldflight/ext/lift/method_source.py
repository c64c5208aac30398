"""The syntax trees of authors' methods, after a check that they are the source of the code that runs."""

from __future__ import annotations

import ast
import functools
import linecache
from collections.abc import Iterator
from dataclasses import dataclass
from types import CodeType, FunctionType

from foldflight.fold.mode import Unsupported

_CACHED_MAX = 256  # functions whose trees are kept


@dataclass(frozen=True)
class Source:
    """The source of one function.

    Args:
        node: The function.
        module: The module, or the cell of a notebook, in which it is.
        file: Its file name.
    """

    node: ast.FunctionDef
    module: ast.Module
    file: str


def source_of(function: FunctionType) -> Source:
    """Return the source of a function.

    The source is compiled again and compared with the function's code, so a file that has changed since it was imported
    is not taken for it.

    Raises:
        Unsupported: There is no source, or it is not the source of the code.
    """
    code = function.__code__
    text = "".join(linecache.getlines(code.co_filename, function.__globals__))
    source = _source_in(text, code) if text else None
    if source is None:
        why = "has changed since it was imported" if text else "cannot be read here"
        raise Unsupported(f"the source of {function.__name__} ({_short(code.co_filename)}) {why}")
    return source


@functools.lru_cache(_CACHED_MAX)
def _source_in(text: str, code: CodeType) -> Source | None:
    tree_and_codes = _parse(text, code.co_filename)
    if tree_and_codes is None or code not in tree_and_codes[1]:
        return None
    for node in ast.walk(tree_and_codes[0]):
        if isinstance(node, ast.FunctionDef) and node.name == code.co_name:
            first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
            if first == code.co_firstlineno:
                return Source(node, tree_and_codes[0], _short(code.co_filename))
    return None


@functools.lru_cache(32)
def _parse(text: str, file: str) -> tuple[ast.Module, frozenset[CodeType]] | None:
    try:
        module = ast.parse(text, file)
        return module, frozenset(codes_in(compile(text, file, "exec", dont_inherit=True)))
    except (SyntaxError, ValueError, RecursionError):
        return None


def codes_in(code: CodeType) -> Iterator[CodeType]:
    """Yield a code object and all code objects inside it."""
    yield code
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from codes_in(each)


def _short(file: str) -> str:
    return file.replace("\\", "/").rpartition("/")[2]
