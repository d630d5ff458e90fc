"""Peers of the benchmarks that run on Node.js."""

import os
import shutil
import subprocess
from pathlib import Path
from time import monotonic

import pytest

from benchmarks.peers import environments, work
from benchmarks.peers.job_counter import JobCounter


@pytest.mark.usefixtures("processes")
@pytest.mark.skipif(not shutil.which("node"), reason="Node.js is not installed")
def test_jobs_counted_on_nodejs_are_read_by_the_same_counter(tmp_path: Path) -> None:
    counter = JobCounter.create(tmp_path / work.COUNTER)
    program = (
        f'import {{ counter, sleep, started }} from "{environments.HERE}/apps/work.mjs";'
        "const [slot] = process.argv.slice(1);"
        "const done = counter(Number(slot), 2);"
        "for (let n = 0; n < 3; n++) done();"
        "await sleep(1); done(); started(7); await sleep(1);"
    )
    began = monotonic()
    # The second process of a slot continues the count of the first, which was killed.
    for slot in ("0", "1", "1"):
        words = ["node", "--input-type=module", "--eval", program, slot]
        subprocess.run(words, env=os.environ | {"BENCH_DIRECTORY": str(tmp_path)}, check=True, timeout=60)
    done = counter.read()
    assert done.jobs == 12
    assert began < done.first < done.last < monotonic()
    starts = [*work.START.iter_unpack((tmp_path / work.STARTS).read_bytes())]
    assert [number for number, _ in starts] == [7, 7, 7]
    assert all(began < at < monotonic() for _, at in starts)
