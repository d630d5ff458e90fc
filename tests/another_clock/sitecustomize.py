"""Python imports this as it starts, from PYTHONPATH: its clock is CLOCK_OFFSET_SECONDS ahead from then on."""

import datetime
import os
import time
from typing import Any

_ahead = int(os.environ["CLOCK_OFFSET_SECONDS"])
_time, _time_ns = time.time, time.time_ns


class _Type(type):
    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, _datetime)


_datetime: Any = datetime.datetime


class _AnotherDatetime(_datetime, metaclass=_Type):  # type: ignore[misc]
    @classmethod
    def now(cls, tz: datetime.tzinfo | None = None) -> Any:
        return cls.fromtimestamp(time.time(), tz)

    @classmethod
    def utcnow(cls) -> Any:
        return cls.fromtimestamp(time.time(), datetime.UTC).replace(tzinfo=None)

    @classmethod
    def today(cls) -> Any:
        return cls.now()


_AnotherDatetime.__name__ = _AnotherDatetime.__qualname__ = "datetime"
_AnotherDatetime.__module__ = "datetime"
time.time = lambda: _time() + _ahead
time.time_ns = lambda: _time_ns() + _ahead * 10**9
datetime.datetime = _AnotherDatetime  # type: ignore[misc]
