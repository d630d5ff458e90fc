"""`python -m tests.crashing POINT ONCE WORDS...`: `drain`, killed by SIGKILL at a crash point.

With all its processes, as if the machine had died; or, if ONCE names a file that is not there, the process alone that
comes to the point first.
"""

import os
import signal
import sys
from contextlib import suppress

from drain import crashpoints
from drain.__main__ import main
from drain.crashpoints import CrashPoint
from drain.wire import push


def die_at(point: CrashPoint, once: str) -> None:
    def die(reached: CrashPoint) -> None:
        if reached is not point:
            return
        if not once:
            os.killpg(0, signal.SIGKILL)
        with suppress(FileExistsError):
            os.close(os.open(once, os.O_CREAT | os.O_EXCL))
            os.kill(os.getpid(), signal.SIGKILL)

    crashpoints.set_hook(die)


if __name__ == "__main__":
    # A few jobs are pushed in several slices, as thousands are elsewhere.
    push.JOBS_PER_CALL = 2
    die_at(CrashPoint[sys.argv[1]], sys.argv[2])
    main(sys.argv[3:])
