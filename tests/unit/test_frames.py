"""Which frame of a traceback is the innermost one in the application's own code."""

import pytest

from drain.read import tracebacks
from drain.read.tracebacks import Frame, calls_before_the_job, innermost_own_frame

SITE = "/srv/venv/lib/python3.11/site-packages"
SOCKET = "/usr/lib/python3.11/socket.py"

OWN = (
    '  File "/srv/app/shop/jobs.py", line 12, in send_receipt\n    order = session.get_one(Order, order_id)\n'
)
INNER = '  File "/srv/app/shop/mail.py", line 7, in deliver\n    smtp.send(message)\n'
LIBRARY = '  File "/srv/venv/lib/python3.11/site-packages/sqlalchemy/orm/session.py", line 3, in get_one\n    raise\n'
STANDARD = '  File "/usr/lib/python3.11/smtplib.py", line 899, in sendmail\n    raise\n'
FROZEN = '  File "<frozen importlib._bootstrap>", line 1, in _find\n'
OURS = f'  File "{tracebacks.__file__}", line 1, in stage\n'
INSTALLED = '  File "/srv/venv/lib/python3.11/site-packages/shop/jobs.py", line 40, in charge\n    pay()\n'
INSTALLED_OURS = '  File "/srv/venv/lib/python3.11/site-packages/drain/jobs/staging.py", line 4, in stage\n'
BEGIN, END = "Traceback (most recent call last):\n", "ValueError: no\n"
IN_MAIL = Frame("/srv/app/shop/mail.py", 7, "deliver")


@pytest.mark.parametrize("foreign", [LIBRARY, STANDARD, FROZEN, OURS, INSTALLED_OURS])
def test_frames_of_other_packages_are_skipped(foreign: str) -> None:
    assert innermost_own_frame(BEGIN + OWN + INNER + foreign + END, "shop.jobs.send_receipt") == IN_MAIL


def test_an_installed_package_that_owns_the_job_counts_as_the_application() -> None:
    text = BEGIN + OWN + INSTALLED + LIBRARY + END
    found = innermost_own_frame(text, "shop.jobs.charge")
    assert found == Frame("/srv/venv/lib/python3.11/site-packages/shop/jobs.py", 40, "charge")
    assert found.short == "shop/jobs.py:40 in charge"
    other = innermost_own_frame(text, "store.jobs.charge")
    assert other is not None
    assert other.function == "send_receipt"


def test_the_last_of_several_chained_exceptions_counts() -> None:
    cause = BEGIN + OWN + INNER + "OSError: gone\n\nThe above exception was the direct cause ...:\n\n"
    found = innermost_own_frame(cause + BEGIN + OWN + LIBRARY + END, "shop.jobs.send_receipt")
    assert found == Frame("/srv/app/shop/jobs.py", 12, "send_receipt")


def test_a_frame_of_an_exception_group_is_found() -> None:
    drawn = "".join(f"    | {line}\n" for line in (BEGIN + INNER + END).splitlines())
    assert innermost_own_frame(f"  + Exception Group {BEGIN}{drawn}", "shop.jobs.f") == IN_MAIL


def test_the_innermost_frame_counts_if_none_belongs_to_the_application() -> None:
    found = innermost_own_frame(BEGIN + LIBRARY + STANDARD + END, "shop.jobs.f")
    assert found == Frame("/usr/lib/python3.11/smtplib.py", 899, "sendmail")
    assert innermost_own_frame("", "shop.jobs.f") is None
    assert innermost_own_frame('a message with File "x", line 1, in f', "shop.jobs.f") is None


@pytest.mark.parametrize(
    ("paths", "outer"),
    [
        (
            [
                "/app/.venv/bin/drain",
                f"{SITE}/click/core.py",
                f"{SITE}/drain/workers/command.py",
                "/app/shop.py",
                LIBRARY,
            ],
            3,
        ),
        (
            [
                "/app/.venv/bin/drain",
                f"{SITE}/drain/workers/command.py",
                f"{SITE}/shop/jobs.py",
                f"{SITE}/drain/x.py",
            ],
            2,
        ),
        # Coroutines that await each other.
        (["/app/shop.py", SOCKET], 0),
        # The job is in code of others alone.
        ([f"{SITE}/drain/workers/command.py", SOCKET], 0),
        ([], 0),
    ],
)
def test_the_calls_of_the_worker_come_before_the_first_one_of_the_job(paths: list[str], outer: int) -> None:
    assert calls_before_the_job(paths, "shop.jobs.send") == outer


def test_hostile_texts_are_parsed_quickly() -> None:
    for text in ('File "' * 6000, ' File "' + "a" * 32_000, "\n" * 32_000, " " * 32_000, "| " * 16_000):
        assert innermost_own_frame(text, "a" * 255) is None
    assert innermost_own_frame(BEGIN + INNER, "") == IN_MAIL
