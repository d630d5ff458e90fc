"""Log records that carry the running job: in every format, and whatever else has a factory or fields of its own."""

import copy
import json
import logging
import pickle
from collections.abc import Iterator
from typing import Any

import pytest

from drain import log


class Handler(logging.Handler):
    """Keeps the records."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


@pytest.fixture
def running() -> list[log.JobFields]:
    """The job that runs: the last one of this list."""
    return []


@pytest.fixture
def handler(running: list[log.JobFields], monkeypatch: pytest.MonkeyPatch) -> Iterator[Handler]:
    monkeypatch.setattr(log, "_read", log._no_job)
    before = logging.getLogRecordFactory()
    logging.setLogRecordFactory(logging.LogRecord)
    log.carry_job(lambda: running[-1] if running else None)
    handler, logger = Handler(), logging.getLogger("shop")
    logger.addHandler(handler)
    yield handler
    logger.removeHandler(handler)
    logging.setLogRecordFactory(before)


JOB = (42, "shop.receipt", 2)
FORMATS = [
    logging.Formatter("%(job_id)s %(job_name)s %(attempt)s %(message)s"),
    logging.Formatter("{job_id} {job_name} {attempt} {message}", style="{"),
    logging.Formatter("$job_id $job_name $attempt $message", style="$"),
]


def logged(handler: Handler, *args: Any, **more: Any) -> logging.LogRecord:
    logging.getLogger("shop").warning(*(args or ("sent",)), **more)
    return handler.records[-1]


@pytest.mark.parametrize("formatter", FORMATS, ids=["%", "{", "$"])
def test_any_formatter_shows_the_running_job(
    handler: Handler, running: list[log.JobFields], formatter: logging.Formatter
) -> None:
    assert formatter.format(logged(handler)) == "None None None sent"
    running.append(JOB)
    record = logged(handler)
    running.clear()
    # The job in which it was made, not that in which it is written.
    assert formatter.format(record) == "42 shop.receipt 2 sent"
    assert formatter.format(record) == "42 shop.receipt 2 sent"


def test_built_in_formats_include_the_job(handler: Handler, running: list[log.JobFields]) -> None:
    lines, outside = log.Lines("%(levelname)s %(message)s"), logged(handler)
    assert lines.format(outside) == "WARNING sent"
    assert not {"job_id", "job_name", "attempt"} & json.loads(log.JsonLines().format(outside)).keys()
    running.append(JOB)
    record = logged(handler, "sent\n%s", "it")
    assert lines.format(record) == "WARNING [job 42 shop.receipt, attempt 2] sent\n  it"
    line = json.loads(log.JsonLines().format(record))
    assert (line["job_id"], line["job_name"], line["attempt"], line["message"]) == (*JOB, "sent\nit")


def test_explicit_fields_override_those_of_the_job(handler: Handler, running: list[log.JobFields]) -> None:
    running.append(JOB)
    record = logged(handler, extra={"job_id": 7, "attempt": None})
    assert FORMATS[0].format(record) == "7 shop.receipt None sent"
    assert json.loads(log.JsonLines().format(record))["job_id"] == 7


def test_a_filter_may_read_and_change_the_job_fields(handler: Handler, running: list[log.JobFields]) -> None:
    running.append(JOB)
    record: Any = logged(handler)
    assert (record.job_id, record.job_name, record.attempt) == JOB
    record.job_id = 7
    assert FORMATS[0].format(record) == "7 shop.receipt 2 sent"
    with pytest.raises(AttributeError, match="'JobRecord' object has no attribute 'nothing'"):
        record.nothing  # noqa: B018


def test_a_record_can_be_copied_and_sent_to_another_process(
    handler: Handler, running: list[log.JobFields]
) -> None:
    running.append(JOB)
    record = logged(handler)
    for other in (copy.copy(record), pickle.loads(pickle.dumps(record))):
        assert FORMATS[0].format(other) == "42 shop.receipt 2 sent"
    # As a SocketHandler sends it, and its receiver makes it.
    sent = logging.makeLogRecord(record.__dict__ | {"job_id": 5})
    assert FORMATS[0].format(sent) == "5 shop.receipt 2 sent"


def test_carrying_the_job_can_be_installed_repeatedly(handler: Handler, running: list[log.JobFields]) -> None:
    factory = logging.getLogRecordFactory()
    running.append(JOB)
    log.carry_job()
    assert logging.getLogRecordFactory() is factory
    assert FORMATS[0].format(logged(handler)) == "42 shop.receipt 2 sent"
    log.carry_job(lambda: (1, "another", 1))
    assert FORMATS[0].format(logged(handler)) == "1 another 1 sent"


class Shouted(logging.LogRecord):
    """Record of an application's own kind."""

    def getMessage(self) -> str:  # noqa: N802
        return super().getMessage().upper()


def test_an_existing_record_factory_still_creates_the_records(
    handler: Handler, running: list[log.JobFields], monkeypatch: pytest.MonkeyPatch
) -> None:
    def traced(*args: Any, **kwargs: Any) -> logging.LogRecord:
        record = Shouted(*args, **kwargs)
        record.trace = "t1"
        return record

    logging.setLogRecordFactory(traced)
    log.carry_job(lambda: JOB)
    record = logged(handler)
    assert isinstance(record, Shouted)
    assert logging.Formatter("%(trace)s %(job_id)s %(message)s").format(record) == "t1 42 SENT"


def test_a_later_record_factory_may_wrap_ours(handler: Handler, running: list[log.JobFields]) -> None:
    running.append(JOB)
    ours = logging.getLogRecordFactory()

    def traced(*args: Any, **kwargs: Any) -> logging.LogRecord:
        record = ours(*args, **kwargs)
        record.trace = "t1"
        return record

    logging.setLogRecordFactory(traced)
    # Once more, as each forked child does.
    log.carry_job(lambda: JOB)
    assert logging.Formatter("%(trace)s %(job_id)s %(message)s").format(logged(handler)) == "t1 42 sent"
