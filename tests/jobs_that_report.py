"""Jobs that report progress and write log lines, in worker processes of the tests."""

import asyncio
import logging
import sys

from drain.workers import current_job, job
from tests import jobs_in_batches as others

MODULE = "tests.jobs_that_report"

# As an application configures its own log, with a formatter that knows the job.
log = logging.getLogger("shop")
log.setLevel("INFO")
_handler = logging.StreamHandler(sys.stderr)
_handler.setFormatter(logging.Formatter("SHOP %(job_id)s|%(job_name)s|%(attempt)s|%(message)s"))
log.addHandler(_handler)
log.info("imported")


@job
def report(label: str) -> None:
    current_job().progress(3, 10, "page 3")
    log.info("reported")
    others.wait_for_go.function(label)


@job
async def report_async(label: str) -> None:
    current_job().progress(3, 10, "page 3")
    await asyncio.sleep(0)
    await asyncio.to_thread(log.info, "reported")
    others._leave(label)
    while not others._count("go"):
        await asyncio.sleep(0.01)


@job(isolated=True)
def report_isolated(label: str) -> None:
    report.function(label)


@job(max_attempts=2, retry_base_seconds=others.SOON, retry_cap_seconds=others.SOON)
def report_in_first_attempt(label: str) -> None:
    """Fail on the word "fail"; the second attempt reports nothing until the word "report"."""
    if current_job().attempt == 1:
        current_job().progress(9, 10)
        others._wait_for("fail")
        log.info("failing", extra={"job_id": "its own", "attempt": None})
        raise ValueError(label)
    others._leave("second")
    others._wait_for("report")
    current_job().progress(1, 10)
    others._wait_for("go")
