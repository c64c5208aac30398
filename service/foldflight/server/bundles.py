"""Functions that engines ship: signed bundles, taken only by servers that were given bundle keys.

Nothing of a bundle is unpickled before its size, its seal, its versions and its names are right. What has been
unpickled is kept by digest, for each exchange brings its bundles again.
"""

from __future__ import annotations

import threading
import traceback
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from foldflight.errors import RejectedError
from foldflight.functions.registry import Registry
from foldflight.functions.spec import Function
from foldflight.server.keys import BundleKeys, check_allowed, check_state_keys
from foldflight.server.run.settings import SETTINGS
from foldflight.shipping.bundles import Bundle, check_made_with, unpickled, unseal

if TYPE_CHECKING:
    from foldflight.server.ops.logs import Logger
    from foldflight.server.run.settings import Settings

__all__ = ["Bundles"]

_LOADED_MAX = 64


class Bundles:
    """The bundles that one server has seen, and the keys that it trusts.

    Args:
        settings: Keys and limits.
        registry: The server's own functions; no bundle takes the place of one.
        logger: Told of each bundle that is unpickled.

    Raises:
        RejectedError: SETTINGS, when the file of keys cannot be read.
    """

    def __init__(self, settings: Settings, registry: Registry, logger: Logger) -> None:
        self._keys = BundleKeys(settings, logger)
        self._settings = settings
        self._registry = registry
        self._logger = logger
        self._lock = threading.Lock()
        self._loaded: dict[str, tuple[Function, ...]] = {}  # by digest, the one that was used last at the end

    def registry_with(self, sealed: Sequence[bytes], context: Any) -> Registry:
        """Return the server's functions and those of the bundles that an Open brought.

        Raises:
            RejectedError: What `functions_in` raises; LIMIT; SIGNATURE, when two bundles have a function of one name.
        """
        if not sealed:
            return self._registry
        self._check_size(sum(map(len, sealed)))
        brought = [function for each in sealed for function in self.functions_in(each, context)]
        return Registry([*self._registry.authored, *brought])

    def functions_in(self, sealed: bytes, context: Any) -> tuple[Function, ...]:
        """Return the functions of one bundle, if the caller may bring them.

        Raises:
            RejectedError: SETTINGS, where no bundle is taken, or no pickled states and a function has such; LIMIT for a
                large one; BAD_FRAME for a damaged one; UNAUTHENTICATED for a foreign signature or names that the
                caller's token does not open; MODULE for code that does not run here; SIGNATURE for a taken name.
        """
        keys = self._keys()
        if not keys:
            raise RejectedError(
                "SETTINGS",
                "this server runs no code that engines ship; its operator can allow it to who has a key, with "
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
                f"the bundles of functions have {size} bytes, and bundle_bytes_max is {size_max}; ship less of "
                "the package that the classes are in, or raise it",
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

    def _load(self, bundle: Bundle) -> tuple[Function, ...]:
        digest = bundle.digest
        with self._lock:
            functions = self._loaded.get(digest)
            if functions is not None:
                self._loaded[digest] = self._loaded.pop(digest)
                return functions
        # Code of others runs here, for as long as it likes: no other exchange waits for it.
        functions = _functions_of(bundle)
        self._logger.info("bundle unpickled", digest=digest, functions=list(bundle.functions))
        with self._lock:
            functions = self._loaded.setdefault(digest, functions)  # another thread may have been quicker
            while len(self._loaded) > _LOADED_MAX:
                self._loaded.pop(next(iter(self._loaded)))
        return functions


def _functions_of(bundle: Bundle) -> tuple[Function, ...]:
    """Run the code of a bundle whose seal is good. Raises RejectedError MODULE."""
    names = ", ".join(bundle.functions)
    try:
        functions = unpickled(bundle.code, bundle.digest)
    except (Exception, SystemExit) as error:
        lines = "".join(traceback.format_exception_only(error)).strip().splitlines()
        missing = "; install it where the server runs" if isinstance(error, ModuleNotFoundError) else ""
        raise RejectedError("MODULE", f"the bundle of {names} cannot be read here: {lines[-1]}{missing}") from error
    whole = isinstance(functions, tuple) and all(isinstance(each, Function) for each in functions)
    if not whole or tuple(each.name for each in functions) != bundle.functions:
        raise RejectedError("MODULE", f"the bundle of {names} holds something else than these functions")
    return functions
