"""The application's own frames in tracebacks."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

# Exception groups indent with lines.
_FRAME = re.compile(r'^[ |+-]* File "([^"\n]{1,4096})", line (\d{1,9}), in ([^\n]+)$', re.MULTILINE)
_INSTALLED = re.compile(r"/(?:site|dist)-packages/")
_STANDARD_LIBRARY = re.compile(r"/lib(?:64)?/python3(?:\.\d+)?t?/")
_OUR_PACKAGE = "drain"
# When run from the repository.
_OURS = f"{Path(__file__).parents[1]}/"
_COMPONENTS = 3


class Frame(NamedTuple):
    """Frame of a traceback."""

    path: str
    line: int
    function: str

    @property
    def short(self) -> str:
        """Short form, such as `shop/jobs.py:12 in send_receipt`."""
        path = _INSTALLED.split(self.path)[-1]
        return f"{'/'.join(path.split('/')[-_COMPONENTS:])}:{self.line} in {self.function}"


def calls_before_the_job(paths: Sequence[str], job_name: str) -> int:
    """Count the calls before the job's first own one, outermost first.

    If job-drain's own calls are present, only calls inside them count as the job's. Without any, returns 0.
    """
    package = job_name.partition(".")[0]
    ours = next((place for place, path in enumerate(paths) if _is_ours(path)), 0)
    own = (place for place, path in enumerate(paths) if place >= ours and _is_own(path, package))
    return next(own, 0)


def innermost_own_frame(traceback: str, job_name: str) -> Frame | None:
    """Return the application's innermost frame, or else the innermost.

    Excludes the standard library, job-drain and installed packages, except the one in the job's name.
    """
    # Drop the message: it differs between jobs and would defeat the cache.
    end = traceback.find("\n", traceback.rfind('File "'))
    return _innermost(traceback[: None if end < 0 else end], job_name.partition(".")[0])


@lru_cache(500)
def _innermost(frames: str, package: str) -> Frame | None:
    innermost = None
    for path, line, function in reversed(_FRAME.findall(frames)):
        frame = Frame(path, int(line), function)
        if _is_own(path, package):
            return frame
        innermost = innermost or frame
    return innermost


def _is_ours(path: str) -> bool:
    *_, installed = parts = _INSTALLED.split(path)
    return path.startswith(_OURS) or (len(parts) > 1 and installed.partition("/")[0] == _OUR_PACKAGE)


def _is_own(path: str, package: str) -> bool:
    if path.startswith("<frozen ") or _is_ours(path):
        return False
    *_, installed = parts = _INSTALLED.split(path)
    if len(parts) > 1:
        name = installed.partition("/")[0].removesuffix(".py")
        return name == package != _OUR_PACKAGE
    return not _STANDARD_LIBRARY.search(path)
