"""Shipped functions on the server: signed bundles, which only servers with bundle keys accept.

A bundle is unpickled only after its size, signature, versions and names have been checked. Its functions are cached by
digest, because each Open contains its bundles.
"""

from __future__ import annotations

import threading
import traceback
from collections.abc import Sequence
from typing import Any

from foldflight.errors import RejectedError
from foldflight.functions.author.spec import AnyFunction, Registered
from foldflight.functions.registry import Registry
from foldflight.server.authentication import bundle_keys_of, check_allowed, check_state_keys
from foldflight.server.ops.logs import Logger
from foldflight.server.run.settings import SETTINGS, Settings
from foldflight.shipping.bundles import Bundle, check_made_with, unpickle, unseal

_LOADED_MAX = 64


class Bundles:
    """The bundles of one server, and the keys that it trusts.

    Args:
        settings: Keys and limits.
        registry: The server's own functions. A bundle cannot replace one of them.
        logger: Logs each bundle that is unpickled.

    Raises:
        RejectedError: SETTINGS if the file of keys cannot be read.
    """

    def __init__(self, settings: Settings, registry: Registry, logger: Logger) -> None:
        self._keys = bundle_keys_of(settings, logger)
        self._settings = settings
        self._registry = registry
        self._logger = logger
        self._lock = threading.Lock()
        self._loaded: dict[str, tuple[AnyFunction, ...]] = {}  # by digest, the one that was used last at the end

    @property
    def signing_key(self) -> str | None:
        """The first key, with which the server signs recordings; None without keys."""
        keys = self._keys()
        return keys[0].decode() if keys else None

    def registry_with(self, sealed: Sequence[bytes], context: Any) -> Registry:
        """Return the server's functions and those of the bundles of an Open.

        Raises:
            RejectedError: As `functions_in`; LIMIT; SIGNATURE if two bundles have functions with the same name.
        """
        if not sealed:
            return self._registry
        self._check_size(sum(map(len, sealed)))
        brought = [function for each in sealed for function in self.functions_in(each, context)]
        return Registry([*self._registry.authored, *brought])

    def functions_in(self, sealed: bytes, context: Any) -> tuple[AnyFunction, ...]:
        """Return the functions of one bundle, if the caller may ship them.

        Raises:
            RejectedError: SETTINGS if shipping is disabled, or states of a function are pickled and there are no state
                keys; LIMIT if the bundle is too large; BAD_FRAME if it is damaged; UNAUTHENTICATED for an unknown
                signature, or names that the token of the caller does not permit; MODULE if its code cannot run here;
                SIGNATURE if a name is taken.
        """
        keys = self._keys()
        if not keys:
            raise RejectedError(
                "SETTINGS",
                "this server does not run shipped functions; its operator can enable them with "
                f"{SETTINGS['bundle_keys'].variable} or {SETTINGS['bundle_keys_file'].flag}, or serve the module",
            )
        self._check_size(len(sealed))
        bundle = unseal(sealed, keys)
        check_made_with(bundle)
        check_allowed(context, bundle.functions)
        self._check_names(bundle)
        functions = self._load(bundle)
        check_state_keys(self._settings, functions)
        return functions

    def _check_size(self, size: int) -> None:
        size_max = self._settings.bundle_bytes_max
        if size > size_max:
            raise RejectedError(
                "LIMIT",
                f"the bundles of functions have {size} bytes, and bundle_bytes_max is {size_max}; move the classes "
                "to a smaller package, or raise bundle_bytes_max",
                limit="bundle_bytes_max",
            )

    def _check_names(self, bundle: Bundle) -> None:
        taken = [name for name in bundle.functions if name in self._registry]
        if taken:
            raise RejectedError(
                "SIGNATURE",
                f"the server has a function {taken[0]} of its own; use that one, or ship yours under another name, "
                "@udaf(name=...)",
                function=taken[0],
            )

    def _load(self, bundle: Bundle) -> tuple[AnyFunction, ...]:
        digest = bundle.digest
        with self._lock:
            functions = self._loaded.get(digest)
            if functions is not None:
                self._loaded[digest] = self._loaded.pop(digest)
                return functions
        # Unpickling runs foreign code, which may take long. The lock is not held, so other exchanges do not wait.
        functions = _functions_of(bundle)
        for function in functions:
            function.code_digest  # noqa: B018 - before functions change variables of their modules
        self._logger.info("bundle unpickled", digest=digest, functions=list(bundle.functions))
        with self._lock:
            functions = self._loaded.setdefault(digest, functions)  # another thread may have been quicker
            while len(self._loaded) > _LOADED_MAX:
                self._loaded.pop(next(iter(self._loaded)))
        return functions


def _functions_of(bundle: Bundle) -> tuple[AnyFunction, ...]:
    """Unpickle a verified bundle, which runs its code. Raises RejectedError MODULE."""
    names = ", ".join(bundle.functions)
    try:
        functions = unpickle(bundle.code, bundle.digest)
    except (Exception, SystemExit) as error:
        lines = "".join(traceback.format_exception_only(error)).strip().splitlines()
        missing = "; install it where the server runs" if isinstance(error, ModuleNotFoundError) else ""
        raise RejectedError("MODULE", f"the bundle of {names} cannot be unpickled: {lines[-1]}{missing}") from error
    whole = isinstance(functions, tuple) and all(isinstance(each, Registered) for each in functions)
    if not whole or tuple(each.name for each in functions) != bundle.functions:
        raise RejectedError("MODULE", f"the bundle of {names} does not contain these functions; register it again")
    return functions
