"""`python -m tests.crashing POINT ONCE WORDS...`: `drain`, killed by SIGKILL at a crash point.

With `POINT:3`, when it comes there for the third time.

Or an application: the only word is the name of a function, such as `package.module:function`. Or `rq`, if that is the
first word.

With all its processes, as if the machine had died; or, if ONCE names a file that is not there, the process alone that
comes to the point first.
"""

import importlib
import os
import signal
import sys
from contextlib import suppress
from itertools import count

from rq.cli.cli import main as rq

from drain import failpoints
from drain.__main__ import main
from drain.failpoints import FailurePoint
from drain.wire import producer


def die_at(point: FailurePoint, once: str, number: int = 1) -> None:
    times = count(1)

    def die(failpoint: FailurePoint) -> None:
        if failpoint is not point or next(times) < number:
            return
        if not once:
            os.killpg(0, signal.SIGKILL)
        with suppress(FileExistsError):
            os.close(os.open(once, os.O_CREAT | os.O_EXCL))
            os.kill(os.getpid(), signal.SIGKILL)

    failpoints.set_hook(die)


if __name__ == "__main__":
    # A few jobs are pushed in several slices, as thousands are elsewhere.
    producer.JOBS_PER_CALL = 2
    name, _, time = sys.argv[1].partition(":")
    die_at(FailurePoint[name], sys.argv[2], int(time or 1))
    module, is_application, function = sys.argv[3].partition(":")
    if is_application:
        getattr(importlib.import_module(module), function)()
    elif module == "rq":
        rq(sys.argv[4:])
    else:
        main(sys.argv[3:])
