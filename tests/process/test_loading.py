"""The first sessions of a process: threads, the event loop and forked children ask for them at once."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests import jobs_of_first_sessions as jobs
from tests.helpers import PATIENCE_SECONDS, ROOT
from tests.worker_processes import Yard


def test_threads_the_loop_and_forked_jobs_open_their_first_sessions_at_once(yard: Yard) -> None:
    labels = [str(n) for n in range(4)]
    ids = [
        job_id
        for each in (jobs.in_a_thread, jobs.in_the_loop, jobs.in_a_child)
        for job_id in yard.stage(each, *labels)
    ]
    yard.push()
    with yard.working("--burst", "--threads", "4", DRAIN_JOBS=jobs.__name__) as command:
        assert command.wait(PATIENCE_SECONDS) == 0
    assert yard.all_are("finished_jobs", ids)


# Long enough for the fork to come in the middle of the import.
SLOW = """
import pathlib, time
pathlib.Path("begun").touch()
time.sleep(0.5)
"""
FORKS = """
import os, pathlib, signal, sys, threading, time
from drain.workers.context.loading import load

thread = threading.Thread(target=load, args=["slow"])
thread.start()
while not pathlib.Path("begun").exists():
    time.sleep(0.001)
child = os.fork()
if not child:
    signal.alarm(10)
    load("slow")
    os._exit(0)
thread.join()
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.usefixtures("processes")
def test_a_child_forked_during_the_import_does_not_hang(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(SLOW)
    path = f"{tmp_path}:{ROOT}"
    done = subprocess.run([sys.executable, "-c", FORKS], cwd=tmp_path, env={"PYTHONPATH": path}, check=False)
    assert done.returncode == 0
