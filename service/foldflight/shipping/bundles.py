"""Functions that travel as code: sealed by who may send them, opened by a server that trusts the seal.

The signature is over the content with a name of its own in front, so that nothing else that is signed with the same
key, such as a state, is ever taken for a bundle.
"""

from __future__ import annotations

import functools
import hashlib
import hmac
import io
import pickle
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any

from foldflight.errors import RejectedError
from foldflight.exchange import exchange_pb2 as pb
from foldflight.exchange.messages import parse_message

__all__ = [
    "BUNDLE_KEY_BYTES_MIN",
    "REGISTER_ACTION",
    "Bundle",
    "check_made_with",
    "made_here",
    "seal",
    "unpickled",
    "unseal",
]

REGISTER_ACTION = "register"
BUNDLE_KEY_BYTES_MIN = 16
_PURPOSE = b"foldflight.v1.BundleContent\0"
# What cloudpickle makes classes with: the last arguments of each are the class's id and an extra.
_MAKERS = ("_make_skeleton_class", "_make_skeleton_enum")


@dataclass(frozen=True)
class Bundle:
    """What travels.

    Args:
        functions: Names of the functions.
        made_with: The versions of what the code needs to run, as `made_here` says them.
        code: The functions, pickled: reading it runs it.
        digest: The SHA-256 of all that, hexadecimal, once it is sealed: the name of the bundle.
    """

    functions: tuple[str, ...]
    made_with: Mapping[str, str]
    code: bytes
    digest: str = field(default="", compare=False)


def seal(bundle: Bundle, key: bytes) -> bytes:
    """Return a bundle as signed bytes."""
    content = pb.BundleContent(
        functions=bundle.functions, made_with=bundle.made_with, code=bundle.code
    ).SerializeToString(deterministic=True)
    return pb.Bundle(
        digest=hashlib.sha256(content).digest(), signature=_signature(key, content), content=content
    ).SerializeToString()


def unseal(sealed: bytes, keys: Sequence[bytes]) -> Bundle:
    """Return the bundle of signed bytes.

    Args:
        sealed: What `seal` returned, or what a stranger says it did.
        keys: Secret keys; any of them may have signed, so that they can be rotated.

    Raises:
        RejectedError: BAD_FRAME for damaged bytes, UNAUTHENTICATED where no key of ours signed exactly these.
    """
    message = parse_message(pb.Bundle, sealed, "a bundle")
    if hashlib.sha256(message.content).digest() != message.digest:
        raise RejectedError(
            "BAD_FRAME", "a bundle was damaged on its way: its content is not what its digest says; register it again"
        )
    # All keys are tried, whichever fits: the time says nothing.
    genuine = [hmac.compare_digest(_signature(key, message.content), message.signature) for key in keys]
    if not any(genuine):
        raise RejectedError(
            "UNAUTHENTICATED",
            "a bundle of functions is signed with none of this server's bundle keys; it was not unpickled. "
            "Give connect(..., bundle_key=...) one of them",
        )
    content = parse_message(pb.BundleContent, message.content, "the content of a bundle")
    return Bundle(tuple(content.functions), dict(content.made_with), content.code, message.digest.hex())


@functools.cache
def made_here() -> Mapping[str, str]:
    """Return what code that is pickled here can be read with: the next Python has other byte code."""
    return {
        "python": f"{sys.version_info.major}.{sys.version_info.minor}",
        "cloudpickle": version("cloudpickle").partition(".")[0],
        "foldflight": version("foldflight"),
    }


def check_made_with(bundle: Bundle) -> None:
    """Refuse a bundle whose code cannot be read here. Raises RejectedError MODULE, naming both versions."""
    for name, here in made_here().items():
        there = bundle.made_with.get(name, "unknown")
        if there != here:
            raise RejectedError(
                "MODULE",
                f"a bundle of {', '.join(bundle.functions)} was made with {name} {there}, and this server has {here}: "
                f"code travels between equals only; use the same {name} on both, or start the server with the module",
            )


def unpickled(code: bytes, digest: str) -> Any:
    """Return what cloudpickle was given, by running it: whoever calls this trusts the code.

    cloudpickle gives a class the same id in all of its pickles, and who reads a second one gets the class of the first,
    changed to be like the second. Here a class is the same only within the same bytes: one that was changed and pickled
    again is another, and the first stays what it was.

    Args:
        code: What cloudpickle made of it.
        digest: A name for exactly these bytes.
    """
    return _Unpickler(code, digest).load()


def _signature(key: bytes, content: bytes) -> bytes:
    return hmac.digest(key, _PURPOSE + content, hashlib.sha256)


class _Unpickler(pickle.Unpickler):  # noqa: S301 - of those who are trusted
    def __init__(self, code: bytes, digest: str) -> None:
        super().__init__(io.BytesIO(code))
        self._digest = digest

    def find_class(self, module: str, name: str) -> Any:
        """Return what a pickle refers to; makers of classes with the digest in front of their ids."""
        found = super().find_class(module, name)
        if module == "cloudpickle.cloudpickle" and name in _MAKERS:
            return functools.partial(_make, found, self._digest)
        return found


def _make(maker: Callable[..., type], digest: str, *given: Any) -> type:
    *what, class_id, extra = given
    return maker(*what, class_id and f"{digest}/{class_id}", extra)
