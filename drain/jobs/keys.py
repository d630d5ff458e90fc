"""Keys of a job: its customer, tenant or resource, and the text that it shares with jobs of which one alone waits."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, TypeAlias

from drain.errors import StageError
from drain.jobs.values import as_text, name_of_type

# A key, or a function of the arguments of the job that makes one; None for a job without a key.
KeyOption: TypeAlias = "str | int | Callable[..., str | int | None]"

# Upper bound of the characters of a key.
_LONGEST_KEY = 255
# Upper bound of a quiet time.
_LONGEST_QUIET = timedelta(days=365)


@dataclass(frozen=True, slots=True)
class Keys:
    """Key, unique key, and what goes with that, for the jobs of one call or one registration.

    Attributes:
        key: Customer, tenant or resource.
        unique_key: Text of which one job alone waits.
        keep: `first` or `last`: which one.
        quiet: Time for which none must have come.
        is_default: True if these are of a registration: `keep` and `quiet` mean nothing to a job whose function makes
            no unique key. Otherwise that is an error.
    """

    key: KeyOption | None = None
    unique_key: KeyOption | None = None
    keep: str | None = None
    quiet: timedelta | None = None
    is_default: bool = field(default=False, compare=False)

    def over(self, defaults: Keys) -> Keys:
        """Return these keys, with those of a registration in the place of what is missing."""
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
        """True if jobs with other arguments may have other keys."""
        return callable(self.key) or callable(self.unique_key)

    def check(self) -> None:
        """Check all that does not depend on the arguments of a job.

        Raises:
            StageError: A key, `keep` or `quiet` is an impossible one, or there is no unique key to go with them.
        """
        for name, given in (("key", self.key), ("unique_key", self.unique_key)):
            if not callable(given):
                _as_key(name, given)
        if self.keep not in (None, "first", "last"):
            raise StageError(f"keep must be 'first' or 'last', not {self.keep!r:.100}")
        _quiet_seconds(self.quiet)
        if self.unique_key is None:
            self._require_no_more("")

    def columns(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Make the columns of a job with these arguments; those without a value are left out.

        Raises:
            StageError: As `check`; or a function has failed, or has made no key.
        """
        columns: dict[str, Any] = {"key": _made("key", self.key, args, kwargs)}
        unique_key = _made("unique_key", self.unique_key, args, kwargs)
        if unique_key is None:
            self._require_no_more(" for these arguments" if self.unique_key is not None else "")
        else:
            quiet = _quiet_seconds(self.quiet)
            columns |= {"unique_key": unique_key, "keep": self.keep, "quiet_seconds": quiet}
        return {name: value for name, value in columns.items() if value is not None}

    def _require_no_more(self, where: str) -> None:
        for name, given in (("keep", self.keep), ("quiet", self.quiet)):
            if given is not None and not self.is_default:
                raise StageError(f"{name} needs a unique_key, and there is none{where}")


NO_KEYS = Keys()


def _made(name: str, given: KeyOption | None, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str | None:
    if callable(given):
        try:
            given = given(*args, **kwargs)
        # The function is the application's, and may raise anything.
        except Exception as error:
            reason = f"{name_of_type(error)}: {error}".partition("\n")[0]
            raise StageError(f"the {name} cannot be made from the arguments ({reason:.200})") from error
    return _as_key(name, given)


def _as_key(name: str, given: object) -> str | None:
    """Convert a key to a text. A whole number, such as a customer's, is its decimal digits."""
    if isinstance(given, int) and not isinstance(given, bool):
        given = str(int(given))
    if given is not None and not isinstance(given, str):
        raise StageError(f"{name} must be a text or a whole number, not a {name_of_type(given)}")
    text = as_text(name, given)
    if text is not None and not 1 <= len(text) <= _LONGEST_KEY:
        found = f"{len(text)} characters" if text else "an empty one"
        raise StageError(f"{name} must be a text of 1 to {_LONGEST_KEY} characters, not {found}")
    return text


def _quiet_seconds(quiet: timedelta | None) -> float | None:
    if quiet is None:
        return None
    if not isinstance(quiet, timedelta):
        raise StageError(
            f"quiet must be a timedelta, such as timedelta(seconds=30), not a {name_of_type(quiet)}"
        )
    if not timedelta() < quiet <= _LONGEST_QUIET:
        raise StageError(f"quiet must be above 0 and at most a year, not {quiet}")
    return quiet.total_seconds()
