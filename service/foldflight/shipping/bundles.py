"""Signed bundles of shipped functions: sign them, verify them and unpickle their code.

The signed bytes begin with a constant that is unique to bundles, so that nothing else with a valid signature, such as a
state, is accepted as a bundle. protobuf is imported only to sign and verify, because it may be missing in Spark's
workers, which unpickle functions.
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
from foldflight.fold.pickles import current_module

REGISTER_ACTION = "register"
BUNDLE_KEY_BYTES_MIN = 16
_PURPOSE = b"foldflight.v1.BundleContent\0"
# The functions with which cloudpickle creates classes. Their last two arguments are the id of the class and an extra.
_MAKERS = ("_make_skeleton_class", "_make_skeleton_enum")


@dataclass(frozen=True)
class Bundle:
    """A bundle of functions.

    Args:
        functions: Names of the functions.
        made_with: Versions of the software that the code needs, as returned by `made_here`.
        code: The pickled functions. Unpickling executes code.
        digest: SHA-256 of the content, hexadecimal, which identifies the bundle. Empty before it is signed.
    """

    functions: tuple[str, ...]
    made_with: Mapping[str, str]
    code: bytes
    digest: str = field(default="", compare=False)


def seal(bundle: Bundle, key: bytes) -> bytes:
    """Encode and sign a bundle."""
    from foldflight.exchange import exchange_pb2 as pb

    content = pb.BundleContent(
        functions=bundle.functions, made_with=bundle.made_with, code=bundle.code
    ).SerializeToString(deterministic=True)
    return pb.Bundle(
        digest=hashlib.sha256(content).digest(), signature=_signature(key, content), content=content
    ).SerializeToString()


def unseal(sealed_bundle: bytes, keys: Sequence[bytes]) -> Bundle:
    """Verify and decode a signed bundle.

    Args:
        sealed_bundle: Bytes from an untrusted source, as `seal` returns them.
        keys: Secret keys. A signature with any of them is valid, so that keys can be rotated.

    Raises:
        RejectedError: BAD_FRAME for damaged bytes; UNAUTHENTICATED if no key matches the signature.
    """
    from foldflight.exchange import exchange_pb2 as pb
    from foldflight.exchange.encoding import parse_message

    message = parse_message(pb.Bundle, sealed_bundle, "a bundle")
    if hashlib.sha256(message.content).digest() != message.digest:
        raise RejectedError(
            "BAD_FRAME", "a bundle was damaged in transit: its content does not match its digest; register it again"
        )
    # All keys are tried, so that the time does not depend on which one matches.
    genuine = [hmac.compare_digest(_signature(key, message.content), message.signature) for key in keys]
    if not any(genuine):
        raise RejectedError(
            "UNAUTHENTICATED",
            "a bundle of functions is not signed with a bundle key of this server and was not unpickled; "
            "pass one of the server's bundle keys to connect(..., bundle_key=...)",
        )
    content = parse_message(pb.BundleContent, message.content, "the content of a bundle")
    return Bundle(tuple(content.functions), dict(content.made_with), content.code, message.digest.hex())


@functools.cache
def made_here() -> Mapping[str, str]:
    """Return the versions that a process needs to unpickle code from this one. Byte code differs between Pythons."""
    return {
        "python": f"{sys.version_info.major}.{sys.version_info.minor}",
        "cloudpickle": version("cloudpickle").partition(".")[0],
        "foldflight": version("foldflight"),
    }


def check_made_with(bundle: Bundle) -> None:
    """Check that the code of a bundle can be unpickled here. Raises RejectedError MODULE with both versions."""
    for name, here in made_here().items():
        there = bundle.made_with.get(name, "unknown")
        if there != here:
            raise RejectedError(
                "MODULE",
                f"a bundle of {', '.join(bundle.functions)} was made with {name} {there}, and this server has {here}; "
                f"use the same version of {name} on both, or start the server with the module of the functions",
            )


def unpickle(code: bytes, digest: str) -> Any:
    """Unpickle an object that cloudpickle pickled. This executes code: call it only for trusted bytes.

    cloudpickle gives a class the same id in all of its pickles. A process that unpickles a second version of a class
    would therefore get the class object of the first version, modified in place. Here the digest is part of the id, so
    a changed class becomes a new class object, and the first one stays unchanged.

    Args:
        code: The output of cloudpickle.
        digest: A digest of these bytes.

    Raises:
        Exception: Any exception, because the code may be anything. ModuleNotFoundError names a missing import.
    """
    return _Unpickler(code, digest).load()


def _signature(key: bytes, content: bytes) -> bytes:
    return hmac.digest(key, _PURPOSE + content, hashlib.sha256)


class _Unpickler(pickle.Unpickler):  # noqa: S301 - the callers trust the bytes
    def __init__(self, code: bytes, digest: str) -> None:
        super().__init__(io.BytesIO(code))
        self._digest = digest

    def find_class(self, module: str, name: str) -> Any:
        """Return the object that a pickle refers to. Functions that create classes get ids with the digest."""
        target = super().find_class(current_module(module), name)
        if module == "cloudpickle.cloudpickle" and name in _MAKERS:
            return functools.partial(_make, target, self._digest)
        return target


def _make(maker: Callable[..., type], digest: str, *arguments: Any) -> type:
    *first, class_id, extra = arguments
    return maker(*first, class_id and f"{digest}/{class_id}", extra)
