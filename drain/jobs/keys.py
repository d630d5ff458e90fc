"""Key (customer, tenant or resource) and unique key of a job."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, TypeAlias

from drain.errors import StageError
from drain.jobs.values import as_key, as_seconds, name_of_type

KeyOption: TypeAlias = "str | int | Callable[..., str | int | None]"

_LONGEST_QUIET = timedelta(days=365)


@dataclass(frozen=True, slots=True)
class Keys:
    """Keys of a call or a registration.

    Attributes:
        is_default: From a registration: without a unique key, `keep` and `quiet` are ignored.
    """

    key: KeyOption | None = None
    unique_key: KeyOption | None = None
    keep: str | None = None
    quiet: timedelta | None = None
    is_default: bool = field(default=False, compare=False)

    def over(self, defaults: Keys) -> Keys:
        """Fill gaps from a registration."""
        if defaults is NO_KEYS:
            return self
        return Keys(
            defaults.key if self.key is None else self.key,
            defaults.unique_key if self.unique_key is None else self.unique_key,
            defaults.keep if self.keep is None else self.keep,
            defaults.quiet if self.quiet is None else self.quiet,
            is_default=self.keep is None and self.quiet is None,
        )

    @property
    def differ(self) -> bool:
        """True if keys depend on arguments."""
        return callable(self.key) or callable(self.unique_key)

    def check(self) -> None:
        """Check what does not depend on arguments, or raise StageError."""
        for name, given in (("key", self.key), ("unique_key", self.unique_key)):
            if not callable(given):
                _key(name, given)
        if self.keep not in (None, "first", "last"):
            raise StageError(f"keep must be 'first' or 'last', not {self.keep!r:.100}")
        as_seconds("quiet", self.quiet, _LONGEST_QUIET)
        if self.unique_key is None:
            self._require_no_more("")

    def columns(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return non-null columns, or raise StageError."""
        columns: dict[str, Any] = {"key": _made("key", self.key, args, kwargs)}
        unique_key = _made("unique_key", self.unique_key, args, kwargs)
        if unique_key is None:
            self._require_no_more(" for these arguments" if self.unique_key is not None else "")
        else:
            quiet = as_seconds("quiet", self.quiet, _LONGEST_QUIET)
            columns |= {"unique_key": unique_key, "keep": self.keep, "quiet_seconds": quiet}
        return {name: value for name, value in columns.items() if value is not None}

    def _require_no_more(self, where: str) -> None:
        for name, given in (("keep", self.keep), ("quiet", self.quiet)):
            if given is not None and not self.is_default:
                raise StageError(f"{name} needs a unique_key{where}")


NO_KEYS = Keys()


def _made(name: str, given: KeyOption | None, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str | None:
    return _key(name, computed(name, given, args, kwargs) if callable(given) else given)


def computed(name: str, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Call an option's function with a job's arguments, or raise StageError."""
    try:
        return function(*args, **kwargs)
    # Application code may raise anything.
    except Exception as error:
        reason = f"{name_of_type(error)}: {error}".partition("\n")[0]
        raise StageError(f"the {name} cannot be computed from the arguments ({reason:.200})") from error


def _key(name: str, given: object) -> str | None:
    if isinstance(given, int) and not isinstance(given, bool):
        given = str(int(given))
    if given is not None and not isinstance(given, str):
        raise StageError(f"{name} must be a string or a whole number, not a {name_of_type(given)}")
    return as_key(name, given)
