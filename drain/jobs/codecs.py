"""Types of arguments that JSON does not know: how a value is written, and how it is read again by an annotation.

UUID, date and time, Decimal, Enum, bytes, dataclass and the like are msgspec's; a pydantic model writes and reads
itself; any other type has a codec of the application's own.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T")


class Codec(NamedTuple):
    """The two ways of the values of a type.

    Attributes:
        encode: Makes what JSON can hold of a value.
        decode: Makes the value of that again.
    """

    encode: Callable[[Any], Any]
    decode: Callable[[Any], Any]


_codecs: dict[type, Codec] = {}
# Python's JSON writes instances of these, and of their subclasses, and asks for no other way.
_NATIVE = (str, int, float, list, tuple, dict, type(None))


def codec(kind: type[T], *, encode: Callable[[T], Any], decode: Callable[[Any], T]) -> None:
    """Let values of a type of one's own travel as arguments, and come back where an annotation names the type.

    Call it where the type is defined, so that whoever stages and the workers know the codec.

    Args:
        kind: The type; values of its subclasses are written by the same codec.
        encode: Makes numbers, texts, lists or objects of a value, or anything that has a codec.
        decode: Makes the value of that again.

    Raises:
        TypeError: `kind` is no class, or a kind of what JSON knows, or one of the functions cannot be called.
    """
    if not isinstance(kind, type) or not callable(encode) or not callable(decode):
        raise TypeError("codec() takes a class, and two functions: encode= and decode=")
    for native in _NATIVE:
        if issubclass(kind, native):
            raise TypeError(
                f"JSON writes a {kind.__name__} as a {native.__name__}, and would not ask its codec: "
                f"give the codec to a class that is no {native.__name__}"
            )
    _codecs[kind] = Codec(encode, decode)


def knows(kind: type) -> bool:
    """Return whether values of this type are written by a codec, or by themselves as a pydantic model."""
    return kind in _codecs or _is_model(kind)


def has_codec(kind: type) -> bool:
    """Return whether values of this type are written by a codec of the application's own."""
    return kind in _codecs


def encode(value: Any) -> Any:
    """Make what JSON can hold of a value that it cannot.

    Raises:
        TypeError: The type of the value has no codec.
    """
    for kind in type(value).__mro__:
        if kind in _codecs:
            return _codecs[kind].encode(value)
    if _is_model(type(value)):
        return value.model_dump(mode="json")
    # Imported here: most jobs take numbers and texts.
    import msgspec

    return msgspec.to_builtins(value, enc_hook=_refuse)


def decode(kind: type, value: Any) -> Any:
    """Make a value of a type that `knows` of what JSON has held.

    Raises:
        ValueError: Or whatever else the type's own function raises: the value does not fit.
    """
    if kind in _codecs:
        return _codecs[kind].decode(value)
    return kind.model_validate(value)  # type: ignore[attr-defined]


def _refuse(value: Any) -> Any:
    if any(kind in _codecs for kind in type(value).__mro__) or _is_model(type(value)):
        return encode(value)
    raise TypeError(
        f"a {type(value).__name__} has no codec: register one by drain.codec({type(value).__name__}, ...)"
    )


def _is_model(kind: type) -> bool:
    # Who has a model has imported pydantic.
    pydantic = sys.modules.get("pydantic")
    return pydantic is not None and issubclass(kind, pydantic.BaseModel)
