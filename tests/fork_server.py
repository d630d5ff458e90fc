"""Entry point of forked processes. It does not import pytest, which would take longer than the fork."""

import atexit
import gc
import os
import sys
import threading
import time
from multiprocessing.connection import Connection

# The standard library and installed packages, without directories that pytest or PYTHONPATH added.
_PATH = [path for path in sys.path if path.startswith(sys.base_prefix) or "site-packages" in path]

# A collection in a forked process would copy every page that holds an object.
gc.freeze()


def run(
    started: Connection,
    program: str,
    words: list[str],
    env: dict[str, str],
    cwd: str,
    output: str,
    errors: str,
) -> None:
    os.setsid()
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    time.tzset()
    sys.path[:] = ["", *filter(None, env.get("PYTHONPATH", "").split(os.pathsep)), *_PATH]
    for number, path in ((1, output), (2, errors)):
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND)
        os.dup2(descriptor, number)
        os.close(descriptor)
    sys.argv = ["-c", *words]
    started.send(None)
    started.close()
    try:
        exec(compile(program, "<string>", "exec"), {"__name__": "__main__"})
    finally:
        # As an interpreter ends; multiprocessing calls no exit functions before Python 3.13.
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
