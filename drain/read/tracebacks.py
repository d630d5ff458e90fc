"""Tracebacks as texts: the innermost frame that is in the application's own code."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

# Line of a frame; that of an exception group has its lines drawn before it.
_FRAME = re.compile(r'^[ |+-]* File "([^"\n]{1,4096})", line (\d{1,9}), in ([^\n]+)$', re.MULTILINE)
_INSTALLED = re.compile(r"/(?:site|dist)-packages/")
_STANDARD_LIBRARY = re.compile(r"/lib(?:64)?/python3(?:\.\d+)?t?/")
_OUR_PACKAGE = "drain"
# Our own directory, where job-drain runs from its repository.
_OURS = f"{Path(__file__).parents[1]}/"
# Components of a path that a short form keeps.
_COMPONENTS = 3


class Frame(NamedTuple):
    """Frame of a traceback."""

    path: str
    line: int
    function: str

    @property
    def short(self) -> str:
        """Short form for people: `shop/jobs.py:12 in send_receipt`."""
        path = _INSTALLED.split(self.path)[-1]
        return f"{'/'.join(path.split('/')[-_COMPONENTS:])}:{self.line} in {self.function}"


def calls_before_the_job(paths: Sequence[str], job_name: str) -> int:
    """Count the outermost calls of a stack that lead to the job: those before the first one in its own code.

    A stack without job-drain's own calls begins with the job; one without a call of the job is shown whole.

    Args:
        paths: Path of the file of each call, the outermost first.
        job_name: Name of the job, as for `innermost_own_frame`.
    """
    package = job_name.partition(".")[0]
    ours = next((place for place, path in enumerate(paths) if _is_ours(path)), 0)
    own = (place for place, path in enumerate(paths) if place >= ours and _is_own(path, package))
    return next(own, 0)


def innermost_own_frame(traceback: str, job_name: str) -> Frame | None:
    """Find the innermost frame in the application's own code.

    Its own is all but Python's library, installed packages and job-drain. A package that is installed is its own as
    well if the name of the job begins with the name of the package. Of an exception with a cause, the frames of the
    exception itself come last.

    Args:
        traceback: As Python formats it.
        job_name: Name of the job, `package.module.function` most often.

    Returns:
        The frame; the innermost of all if none is the application's own; None if the text has no frame.
    """
    # Many jobs die at one place, each with a message of its own: what follows the last frame is left out.
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
