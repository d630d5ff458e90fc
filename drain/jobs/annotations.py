"""Values checked and decoded by a parameter's annotation."""

from __future__ import annotations

import datetime
import decimal
import enum
import inspect
import json
import types
import typing
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import is_dataclass
from functools import cache
from typing import Any

from drain.errors import StageError
from drain.jobs import codecs
from drain.jobs.values import as_json, name_of_type

# Types that survive JSON -> types staged as them.
STAGED_AS: dict[Any, tuple[type, ...]] = {
    **{kind: (kind,) for kind in (str, int, bool, dict, type(None))},
    float: (float, int),
    list: (list, tuple),
    None: (type(None),),
}
# Unchanged by JSON.
_PLAIN = {Any, object, str, int, float, bool, type(None), list, dict, None}
_PLAIN_ORIGINS = {list, dict, typing.Union, types.UnionType, typing.Annotated}


class ArgumentsError(ValueError):
    """Arguments do not fit their annotations."""


def read_annotations(function: Callable[..., Any]) -> dict[str, Any]:
    """Read annotations, except for names imported only for type checkers."""
    function = inspect.unwrap(function)
    read: dict[str, Any] = {}
    for name, annotation in getattr(function, "__annotations__", {}).items():
        one = types.SimpleNamespace(__annotations__={name: annotation})
        try:
            read |= typing.get_type_hints(one, getattr(function, "__globals__", None), include_extras=True)
        except (NameError, TypeError, AttributeError, SyntaxError):
            continue
    return read


class _StandIn(type):
    """Stand-in for a class with a codec, which msgspec might decode itself."""

    stands_for: type

    def __instancecheck__(cls, value: Any) -> bool:
        return isinstance(value, cls.stands_for)


def by_codecs(annotation: Any) -> Any:
    """Replace classes with codecs by stand-ins."""
    origin = typing.get_origin(annotation)
    # msgspec encodes set items itself, without codecs for types it knows.
    if origin in (None, typing.Literal, set, frozenset):
        return annotation
    if origin is typing.Annotated:
        return by_codecs(typing.get_args(annotation)[0])
    inner = tuple(_stood_in(each) for each in typing.get_args(annotation))
    return typing.Union[inner] if origin in (typing.Union, types.UnionType) else origin[inner]  # noqa: UP007


def _stood_in(annotation: Any) -> Any:
    if isinstance(annotation, type) and codecs.has_codec(annotation):
        names = {"__module__": annotation.__module__, "stands_for": annotation}
        return _StandIn(annotation.__qualname__, (), names)
    return by_codecs(annotation)


def _decode(kind: type, value: Any) -> Any:
    if kind is object:
        return value
    return codecs.decode(kind.stands_for if isinstance(kind, _StandIn) else kind, value)


def needs_conversion(annotation: Any) -> bool:
    """Return whether JSON values need conversion."""
    return not _is_plain(annotation) and is_convertible(annotation)


def is_convertible(annotation: Any) -> bool:
    """Return whether msgspec can decode it: not a union of types encoded as text."""
    if isinstance(annotation, enum.EnumMeta) or (isinstance(annotation, type) and codecs.knows(annotation)):
        return True
    import msgspec

    try:
        msgspec.convert(None, annotation, dec_hook=lambda *_: None)
    except TypeError:
        return False
    # A supported type, without None.
    except ValueError:
        return True
    return True


def _is_plain(annotation: Any) -> bool:
    origin = typing.get_origin(annotation)
    if origin is None:
        return annotation in _PLAIN if isinstance(annotation, typing.Hashable) else False
    if origin is typing.Literal:
        return True
    return origin in _PLAIN_ORIGINS and all(_is_plain(each) for each in _arguments(annotation, origin))


def is_known(annotation: Any) -> bool:
    """Return whether values can be decoded; others stay as JSON gives them."""
    origin = typing.get_origin(annotation)
    if origin is typing.Literal:
        return True
    if origin is not None:
        of = (tuple, set, frozenset)
        known = origin in _PLAIN_ORIGINS or origin in of
        return known and all(is_known(each) for each in _arguments(annotation, origin))
    if annotation in _PLAIN or annotation in _readable():
        return True
    if not isinstance(annotation, type):
        return False
    return codecs.knows(annotation) or is_dataclass(annotation) or issubclass(annotation, enum.Enum)


@cache
def _readable() -> set[type]:
    import uuid

    return {
        *(uuid.UUID, decimal.Decimal, bytes, bytearray, tuple, set, frozenset),
        *(datetime.datetime, datetime.date, datetime.time, datetime.timedelta),
    }


def _arguments(annotation: Any, origin: Any) -> list[Any]:
    given = typing.get_args(annotation)
    if origin is typing.Annotated:
        return [given[0]]
    return [each for each in given if each is not Ellipsis]


def converted(name: str, value: Any, kind: Any) -> Any:
    """Convert a JSON value, or raise ArgumentsError."""
    # Most jobs take numbers and strings.
    import msgspec

    try:
        if isinstance(kind, type) and codecs.knows(kind):
            return codecs.decode(kind, value)
        if isinstance(kind, enum.EnumMeta):
            return _member(kind, value)
        # JSON turns numeric keys into strings.
        return msgspec.convert(value, kind, str_keys=True, dec_hook=_decode)
    # An application's codec may raise anything.
    except Exception as error:
        raise ArgumentsError(_misfit(name, value, kind, error)) from error


def _member(kind: enum.EnumMeta, value: Any) -> Any:
    try:
        return kind(value)
    except ValueError:
        members: Iterable[Any] = kind
        for each in members:
            # JSON changed a tuple or a Decimal.
            with suppress(StageError):
                if json.loads(as_json("value", each)) == value:
                    return each
        raise


def _misfit(name: str, value: Any, kind: Any, error: Exception) -> str:
    shown = getattr(kind, "__name__", None) or str(kind)
    reason = f"{name_of_type(error)}: {error}".replace("\n", "; ")
    return f"the argument {name} is not a valid {shown}: {reason:.300}; it was staged as {value!r:.100}"


def classes_of(kind: Any) -> Any:
    """Classes whose values always fit, or ()."""
    return STAGED_AS.get(kind) or (kind if isinstance(kind, type) and not typing.get_origin(kind) else ())
