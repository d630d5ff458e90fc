"""Codecs for argument types unknown to JSON.

msgspec knows UUID, datetime, Decimal, Enum, bytes, dataclass and others; pydantic models encode themselves.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T")


class Codec(NamedTuple):
    """Functions to and from JSON values."""

    encode: Callable[[Any], Any]
    decode: Callable[[Any], Any]


_codecs: dict[type, Codec] = {}
# `json` encodes these and their subclasses without asking a codec.
_NATIVE = (str, int, float, list, tuple, dict, type(None))


def codec(kind: type[T], *, encode: Callable[[T], Any], decode: Callable[[Any], T]) -> None:
    """Register a codec, to accept a type as arguments and decode it by annotation.

    Call it where the type is defined, so that stagers and workers know the codec.

    Args:
        kind: The type; subclasses use the same codec.
        encode: Returns numbers, strings, lists, objects, or values with a codec.
        decode: The inverse.

    Raises:
        TypeError: `kind` is not a class or derives from a JSON type, or a function is not callable.
    """
    if not isinstance(kind, type) or not callable(encode) or not callable(decode):
        raise TypeError("codec() takes a class, and two functions: encode= and decode=")
    for native in _NATIVE:
        if issubclass(kind, native):
            raise TypeError(
                f"JSON writes a {kind.__name__} as a {native.__name__}, and would not ask its codec: "
                f"give the codec to a class that is not a {native.__name__}"
            )
    _codecs[kind] = Codec(encode, decode)


def knows(kind: type) -> bool:
    """Return whether a type has a codec or is a pydantic model."""
    return kind in _codecs or _is_model(kind)


def has_codec(kind: type) -> bool:
    """Return whether a type has a codec."""
    return kind in _codecs


def encode(value: Any) -> Any:
    """Encode a value; TypeError without a codec."""
    for kind in type(value).__mro__:
        if kind in _codecs:
            return _codecs[kind].encode(value)
    if _is_model(type(value)):
        return value.model_dump(mode="json")
    # Most jobs take numbers and strings.
    import msgspec

    return msgspec.to_builtins(value, enc_hook=_refuse)


def decode(kind: type, value: Any) -> Any:
    """Decode a value of a known type; raises the type's own errors."""
    if kind in _codecs:
        return _codecs[kind].decode(value)
    return kind.model_validate(value)  # type: ignore[attr-defined]


def _refuse(value: Any) -> Any:
    if any(kind in _codecs for kind in type(value).__mro__) or _is_model(type(value)):
        return encode(value)
    raise TypeError(
        f"a {type(value).__name__} has no codec: register one with drain.codec({type(value).__name__}, ...)"
    )


def _is_model(kind: type) -> bool:
    # A model implies the import.
    pydantic = sys.modules.get("pydantic")
    return pydantic is not None and issubclass(kind, pydantic.BaseModel)
