"""Functions for compiled code that are given as a generator of LLVM code."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from numba.core import types
from numba.core.typing import signature
from numba.extending import intrinsic


def llvm_function(result: types.Type, *arguments: types.Type) -> Callable[[Callable[..., Any]], Any]:
    """Return a decorator that makes a function for compiled code of `generate(context, builder, *values)`.

    Args:
        result: The type of what it returns.
        arguments: The types of its arguments, to which the arguments of a call are converted.
    """

    def decorate(generate: Callable[..., Any]) -> Any:
        def type_call(typing: Any, *_: Any) -> Any:
            return signature(result, *arguments), lambda context, builder, sig, values: generate(
                context, builder, *values
            )

        names = ("typing", *list(inspect.signature(generate).parameters)[2:])
        parameters = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in names]
        type_call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined] # numba asks for their number
        return intrinsic(type_call)

    return decorate
