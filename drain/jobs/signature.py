"""Arguments checked and decoded by parameters."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar

from drain.errors import StageError
from drain.jobs.annotations import (
    STAGED_AS,
    ArgumentsError,
    by_codecs,
    classes_of,
    converted,
    is_convertible,
    is_known,
    needs_conversion,
    read_annotations,
)
from drain.jobs.values import as_json

_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)

T = TypeVar("T")


class _Cached(Generic[T]):
    """`functools.cached_property` without its lock, shared by all instances up to Python 3.11.

    A process forked while another thread held it would hang.
    """

    def __init__(self, read: Callable[[Any], T]) -> None:
        self._read = read

    def __get__(self, instance: Signature, _owner: type[Signature]) -> T:
        value = instance.__dict__[self._read.__name__] = self._read(instance)
        return value


class Signature:
    """Parameters of a job's function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def check(self, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Check arguments, or raise StageError."""
        most, required = self._counts
        # Binding takes 3 µs; most jobs have only positional arguments that fit.
        if kwargs or not required <= len(args) <= most:
            self._bind(name, args, kwargs)
        elif all(map(isinstance, args, self._classes)):
            return
        for parameter, kind in self._checked.items():
            for given, place in self._places(parameter, args, kwargs):
                if not self._may_be(parameter, kind, given[place]):
                    shown = kind.__name__ if isinstance(kind, type) else str(kind)
                    raise StageError(
                        f"the argument {parameter} of {name} must be of type {shown}, not {given[place]!r:.100}"
                    )

    def _bind(self, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        signature = self._signature
        if signature is None:
            return
        try:
            signature.bind(*args, **kwargs)
        except TypeError as misfit:
            raise StageError(f"the arguments do not fit {name}{signature}: {misfit}") from None

    def _may_be(self, parameter: str, kind: Any, value: Any) -> bool:
        if isinstance(value, classes_of(kind)) or (value is None and parameter in self._without):
            return True
        if kind in STAGED_AS and type(value) in STAGED_AS:
            return False
        try:
            converted(parameter, json.loads(as_json("arguments", value)), kind)
        except ArgumentsError:
            return False
        return True

    @property
    def decodes(self) -> bool:
        """True if annotations go beyond JSON's types."""
        return bool(self._decoded)

    def decode(self, args: list[Any], kwargs: dict[str, Any]) -> None:
        """Convert arguments in place, or raise ArgumentsError."""
        for name, kind in self._decoded.items():
            for given, place in self._places(name, args, kwargs):
                given[place] = converted(name, given[place], kind)

    def _places(self, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[tuple[Any, Any]]:
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

    @_Cached
    def _signature(self) -> inspect.Signature | None:
        try:
            return inspect.signature(self._function)
        # Some C functions have none.
        except (ValueError, TypeError):
            return None

    @_Cached
    def _counts(self) -> tuple[int, int]:
        """Maximum and minimum positional arguments; (-1, 0) if they never suffice."""
        parameters = self._signature.parameters.values() if self._signature is not None else ()
        required = [each for each in parameters if each.default is each.empty]
        if any(each.kind is each.KEYWORD_ONLY for each in required):
            return -1, 0
        most = sum(each.kind in _POSITIONAL for each in parameters)
        return most, sum(each.kind in _POSITIONAL for each in required)

    @_Cached
    def _positions(self) -> dict[str, int]:
        parameters = self._signature.parameters.values() if self._signature is not None else ()
        return {each.name: place for place, each in enumerate(parameters) if each.kind in _POSITIONAL}

    @_Cached
    def _kinds(self) -> dict[str, Any]:
        parameters = self._signature.parameters.values() if self._signature is not None else ()
        return {each.name: each.kind for each in parameters}

    @_Cached
    def _without(self) -> set[str]:
        parameters = self._signature.parameters.values() if self._signature is not None else ()
        return {each.name for each in parameters if each.default is None}

    @_Cached
    def _known(self) -> dict[str, Any]:
        read = {name: each for name, each in read_annotations(self._function).items() if name != "return"}
        return {name: by_codecs(each) for name, each in read.items() if is_known(each)}

    @_Cached
    def _decoded(self) -> dict[str, Any]:
        return {name: kind for name, kind in self._known.items() if needs_conversion(kind)}

    @_Cached
    def _classes(self) -> list[Any]:
        kinds = self._checked
        return [classes_of(kinds[name]) if name in kinds else object for name in self._positions]

    @_Cached
    def _checked(self) -> dict[str, Any]:
        kinds = {name: kind for name, kind in self._known.items() if kind not in (Any, object)}
        return {name: kind for name, kind in kinds.items() if kind in STAGED_AS or is_convertible(kind)}
