"""`python -m tests.crashing POINT WORDS...`: `drain`, killed by SIGKILL at a crash point with all its processes."""

import os
import signal
import sys

from cli import main
from drain import crashpoints
from drain.crashpoints import CrashPoint
from drain.wire import push


def die_at(point: CrashPoint) -> None:
    def die(reached: CrashPoint) -> None:
        if reached is point:
            # With the supervisor, which would clean up.
            os.killpg(0, signal.SIGKILL)

    crashpoints.set_hook(die)


if __name__ == "__main__":
    # A few jobs are pushed in several slices, as thousands are elsewhere.
    push.JOBS_PER_CALL = 2
    die_at(CrashPoint[sys.argv[1]])
    main(sys.argv[2:])
