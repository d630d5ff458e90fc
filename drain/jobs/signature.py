"""The parameters of a job's function: the arguments are checked against them, and come back as what they say."""

from __future__ import annotations

import datetime
import decimal
import enum
import inspect
import json
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import is_dataclass
from functools import cache, cached_property
from typing import Any

from drain.errors import StageError
from drain.jobs import codecs
from drain.jobs.values import as_json, name_of_type

# What JSON gives back as it was.
_PLAIN = {Any, object, str, int, float, bool, type(None), list, dict, None}
_PLAIN_ORIGINS = {list, dict, typing.Union, types.UnionType, typing.Annotated}
_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


class ArgumentsError(ValueError):
    """The arguments of a job are not what the annotations of its function say."""


class Signature:
    """Parameters of a function.

    Args:
        function: The function of a job.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def check(self, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Check that the function can be called with these arguments.

        Raises:
            StageError: It cannot; the text says what is missing, or what it does not know.
        """
        most, required = self._counts
        # Binding takes 3 us, and most jobs have positional arguments alone.
        if not kwargs and required <= len(args) <= most:
            return
        signature = self._signature
        if signature is None:
            return
        try:
            signature.bind(*args, **kwargs)
        except TypeError as misfit:
            raise StageError(f"the arguments do not fit {name}{signature}: {misfit}") from None

    @property
    def decodes(self) -> bool:
        """True if there are annotations of more than numbers, texts, lists and objects."""
        return bool(self._decoded)

    def decode(self, args: list[Any], kwargs: dict[str, Any]) -> None:
        """Put what the annotations say in the place of what JSON has held.

        Raises:
            ArgumentsError: A value does not fit its annotation.
        """
        for name, kind in self._decoded.items():
            for given, place in self._places(name, args, kwargs):
                given[place] = _converted(name, given[place], kind)

    def _places(self, name: str, args: list[Any], kwargs: dict[str, Any]) -> list[tuple[Any, Any]]:
        """Return where the arguments of a parameter are: the list or the dictionary, and the place in it."""
        kinds, places = self._kinds, self._positions
        match kinds.get(name):
            case inspect.Parameter.VAR_POSITIONAL:
                return [(args, place) for place in range(len(places), len(args))]
            case inspect.Parameter.VAR_KEYWORD:
                own = {each for each, kind in kinds.items() if kind in _BY_NAME}
                return [(kwargs, key) for key in kwargs if key not in own]
            case inspect.Parameter.POSITIONAL_ONLY:
                in_kwargs = False
            case _:
                in_kwargs = name in kwargs
        if in_kwargs:
            return [(kwargs, name)]
        return [(args, places[name])] if places.get(name, len(args)) < len(args) else []

    @cached_property
    def _signature(self) -> inspect.Signature | None:
        try:
            return inspect.signature(self._function)
        # Some functions that are written in C have none.
        except (ValueError, TypeError):
            return None

    @cached_property
    def _counts(self) -> tuple[int, int]:
        """Most and fewest positional arguments, if these are enough; no number fits otherwise."""
        parameters = self._signature.parameters.values() if self._signature is not None else ()
        required = [each for each in parameters if each.default is each.empty]
        if any(each.kind is each.KEYWORD_ONLY for each in required):
            return -1, 0
        most = sum(each.kind in _POSITIONAL for each in parameters)
        return most, sum(each.kind in _POSITIONAL for each in required)

    @cached_property
    def _positions(self) -> dict[str, int]:
        parameters = self._signature.parameters.values() if self._signature is not None else ()
        return {each.name: place for place, each in enumerate(parameters) if each.kind in _POSITIONAL}

    @cached_property
    def _kinds(self) -> dict[str, Any]:
        parameters = self._signature.parameters.values() if self._signature is not None else ()
        return {each.name: each.kind for each in parameters}

    @cached_property
    def _decoded(self) -> dict[str, Any]:
        """Annotations that need a conversion, by parameter."""
        read = {name: each for name, each in _annotations(self._function).items() if name != "return"}
        kinds = {name: _by_codecs(each) for name, each in read.items() if _is_known(each)}
        return {name: kind for name, kind in kinds.items() if _needs_conversion(kind)}


def _annotations(function: Callable[..., Any]) -> dict[str, Any]:
    """Read those annotations that can be read: a name that is imported for type checkers alone is none."""
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
    """Class of those that stand for a class with a codec, which msgspec might read in its own way."""

    stands_for: type

    def __instancecheck__(cls, value: Any) -> bool:
        return isinstance(value, cls.stands_for)


def _by_codecs(annotation: Any) -> Any:
    """Put stand-ins in the place of classes with codecs in lists, objects and optional ones."""
    origin = typing.get_origin(annotation)
    # msgspec writes the values of a set, without the codecs of what it knows itself.
    if origin in (None, typing.Literal, set, frozenset):
        return annotation
    if origin is typing.Annotated:
        return _by_codecs(typing.get_args(annotation)[0])
    inner = tuple(_stood_in(each) for each in typing.get_args(annotation))
    return typing.Union[inner] if origin in (typing.Union, types.UnionType) else origin[inner]  # noqa: UP007


def _stood_in(annotation: Any) -> Any:
    if isinstance(annotation, type) and codecs.has_codec(annotation):
        names = {"__module__": annotation.__module__, "stands_for": annotation}
        return _StandIn(annotation.__qualname__, (), names)
    return _by_codecs(annotation)


def _decode(kind: type, value: Any) -> Any:
    if kind is object:
        return value
    return codecs.decode(kind.stands_for if isinstance(kind, _StandIn) else kind, value)


def _needs_conversion(annotation: Any) -> bool:
    return not _is_plain(annotation) and _is_convertible(annotation)


def _is_convertible(annotation: Any) -> bool:
    """Return whether msgspec can tell what is meant: not for a union of several types that all travel as texts."""
    if isinstance(annotation, enum.EnumMeta) or (isinstance(annotation, type) and codecs.knows(annotation)):
        return True
    import msgspec

    try:
        msgspec.convert(None, annotation, dec_hook=lambda *_: None)
    except TypeError:
        return False
    # The type is fine, and None is not one of its values.
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


def _is_known(annotation: Any) -> bool:
    """Return whether a value can be made for an annotation; others get what JSON has held."""
    origin = typing.get_origin(annotation)
    if origin is typing.Literal:
        return True
    if origin is not None:
        of = (tuple, set, frozenset)
        known = origin in _PLAIN_ORIGINS or origin in of
        return known and all(_is_known(each) for each in _arguments(annotation, origin))
    if annotation in _PLAIN or annotation in _readable():
        return True
    if not isinstance(annotation, type):
        return False
    return codecs.knows(annotation) or is_dataclass(annotation) or issubclass(annotation, enum.Enum)


@cache
def _readable() -> set[type]:
    """Types of which msgspec makes a value from texts, numbers and lists."""
    # Imported here: whoever stages without such types does not wait for it.
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


def _converted(name: str, value: Any, kind: Any) -> Any:
    # Imported here: most jobs take numbers and texts.
    import msgspec

    try:
        if isinstance(kind, type) and codecs.knows(kind):
            return codecs.decode(kind, value)
        if isinstance(kind, enum.EnumMeta):
            return _member(kind, value)
        # Keys that are numbers are texts in JSON.
        return msgspec.convert(value, kind, str_keys=True, dec_hook=_decode)
    # A codec of the application's own may raise anything.
    except Exception as error:
        raise ArgumentsError(_misfit(name, value, kind, error)) from error


def _member(kind: enum.EnumMeta, value: Any) -> Any:
    try:
        return kind(value)
    except ValueError:
        members: Iterable[Any] = kind
        for each in members:
            # What JSON has made of a tuple or of a Decimal.
            with suppress(StageError):
                if json.loads(as_json("value", each)) == value:
                    return each
        raise


def _misfit(name: str, value: Any, kind: Any, error: Exception) -> str:
    shown = getattr(kind, "__name__", None) or str(kind)
    reason = f"{name_of_type(error)}: {error}".replace("\n", "; ")
    return f"the argument {name} is no {shown}: {reason:.300}; it was staged as {value!r:.100}"
