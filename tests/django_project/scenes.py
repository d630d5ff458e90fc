"""Scenes that tests play in a process of their own, since the settings of Django are those of a whole process."""

import asyncio
import json
import sys
from datetime import timedelta
from typing import Any

import django

if __name__ == "__main__":
    django.setup()

from django.db import connection, transaction
from django.utils import timezone

from drain.contrib.django.framework import InvalidTask, TaskResultDoesNotExist, signals, task_backends
from tests.django_project.shop import tasks


def shown(result: Any) -> dict[str, Any]:
    """What a result says, as JSON."""
    times = ("enqueued_at", "started_at", "last_attempted_at", "finished_at")
    return {
        "id": result.id,
        "status": str(result.status),
        "attempts": result.attempts,
        "workers": len(result.worker_ids),
        "args": result.args,
        "kwargs": result.kwargs,
        "priority": result.task.priority,
        "queue": result.task.queue_name,
        "backend": result.backend,
        "is_delayed": result.task.run_after is not None,
        "value": result.return_value if result.status == "SUCCESSFUL" else None,
        "errors": [[error.exception_class.__name__, error.traceback] for error in result.errors],
        "times": {name: getattr(result, name) and getattr(result, name).isoformat() for name in times},
    }


def enqueue_one_after_another() -> list[int]:
    """The second task waits for the first."""
    with transaction.atomic():
        first = int(tasks.send_receipt.enqueue(1).id)
        return [first, int(tasks.follow_up.enqueue(1, first).id)]


def roll_back_and_commit() -> list[str]:
    """One task is rolled back with its order, another commits with its own."""
    try:
        with transaction.atomic():
            tasks.note(1, "rolled back")
            tasks.send_receipt.enqueue(1)
            raise LookupError
    except LookupError:
        pass
    with transaction.atomic():
        tasks.note(2, "committed")
        kept = tasks.send_receipt.enqueue(2, copies=3)
        with transaction.atomic():
            point = transaction.savepoint()
            tasks.send_receipt.enqueue(3)
            transaction.savepoint_rollback(point)
    return [kept.id, str(kept.status)]


def enqueue_all() -> dict[str, str]:
    """A task of each kind."""
    started = {
        "receipt": tasks.send_receipt.enqueue(1, copies=2),
        "mail": asyncio.run(tasks.send_mail.aenqueue(2)),
        "fail": tasks.fail.enqueue(3),
        "at_first": tasks.fail_at_first.enqueue(4),
        "give_up": tasks.give_up.enqueue(5),
        "refuse": tasks.refuse.enqueue(5),
        "hang": tasks.hang.enqueue(),
        "object": tasks.return_an_object.enqueue(),
        "settle": tasks.settle.enqueue(8),
        "later": tasks.send_receipt.using(run_after=timezone.now() + timedelta(hours=1)).enqueue(6),
        "soon": tasks.send_receipt.using(run_after=timezone.now() + timedelta(seconds=0.5)).enqueue(7),
    }
    return {name: result.id for name, result in started.items()}


def read(ids: dict[str, str]) -> dict[str, Any]:
    """What is known of tasks."""
    backend = task_backends["default"]
    one = next(iter(ids.values()))
    assert asyncio.run(backend.aget_result(one)).id == one
    return {name: shown(backend.get_result(job_id)) for name, job_id in ids.items()}


def refresh(job_id: str) -> list[str]:
    """State of a task before and after it is cancelled, in one result."""
    import drain

    result = tasks.send_receipt.get_result(job_id)
    before = str(result.status)
    drain.cancel(connection.connection, int(job_id))
    result.refresh()
    after = str(result.status)
    asyncio.run(result.arefresh())
    assert str(result.status) == after
    return [before, after, result.errors[0].exception_class.__name__]


def enqueue_with_priorities() -> list[str]:
    """Ids of tasks, the least urgent first."""
    return [tasks.send_receipt.using(priority=p).enqueue(p).id for p in (-100, -1, 0, 1, 100)]


def listen_to_task_enqueued() -> list[Any]:
    """What a receiver hears, which raises."""
    heard: list[Any] = []

    def listen(sender: type, task_result: Any, **_more: Any) -> None:
        heard.append([sender.__name__, task_result.id, str(task_result.status)])
        raise RuntimeError("a receiver fails")

    signals.task_enqueued.connect(listen)
    return [tasks.send_receipt.enqueue(1).id, *heard]


def refused() -> dict[str, str]:
    """What is raised for each bad input."""
    send = tasks.send_receipt

    def mismatched() -> None:
        job_id = send.enqueue(1).id
        tasks.fail.get_result(job_id)

    def broken() -> None:
        with transaction.atomic():
            transaction.set_rollback(True)
            send.enqueue(1)

    async def in_a_loop() -> None:
        send.enqueue(1)

    naive = timezone.now().replace(tzinfo=None)
    attempts: dict[str, Any] = {
        "queue": lambda: send.using(queue_name="nowhere"),
        "priority": lambda: send.using(priority=101),
        "naive": lambda: send.using(run_after=naive),
        "object": lambda: send.enqueue(object()),
        "nan": lambda: send.enqueue(float("nan")),
        "nul": lambda: send.enqueue("\0"),
        "word": lambda: send.get_result("no-number"),
        "unknown": lambda: send.get_result("123456789"),
        "huge": lambda: send.get_result("9" * 30),
        "mismatch": mismatched,
        "broken": broken,
        "loop": lambda: asyncio.run(in_a_loop()),
        "isolated": lambda: tasks.task(isolated="yes")(tasks.note),
    }
    raised = {}
    for name, attempt in attempts.items():
        try:
            attempt()
        except Exception as error:  # noqa: BLE001
            raised[name] = f"{type(error).__name__}: {error}"
    return raised


def enqueue_on(alias: str) -> str:
    """What is raised by a task on this backend."""
    try:
        tasks.send_receipt.using(backend=alias).enqueue(1)
    except Exception as error:  # noqa: BLE001
        return f"{type(error).__name__}: {error}"
    return "nothing"


def url_of(database: dict[str, Any]) -> str:
    """URL of a database with these settings."""
    from drain.contrib.django.connections import url

    connection.settings_dict.update(database)
    return url("default")


def job_that_is_no_task() -> str:
    """What is raised for a job that is no task."""
    import drain

    with transaction.atomic():
        connection.ensure_connection()
        job_id = drain.stage(connection.connection, "json.dumps", [1])
    try:
        task_backends["default"].get_result(str(job_id))
    except TaskResultDoesNotExist as error:
        return str(error)
    raise AssertionError


def call_drain(*words: str) -> Any:
    """What a command prints that a program calls, as JSON."""
    from contextlib import redirect_stdout
    from io import StringIO

    from django.core.management import call_command

    with redirect_stdout(StringIO()) as printed:
        call_command("drain", *words)
    return json.loads(printed.getvalue())


def times() -> dict[str, Any]:
    """Times of a task, as the project has its times."""
    later = timezone.now() + timedelta(hours=1)
    result = tasks.send_receipt.using(run_after=later).enqueue(1)
    known = tasks.send_receipt.get_result(result.id)
    return {
        "aware": timezone.is_aware(known.enqueued_at),
        "same": known.enqueued_at == result.enqueued_at and known.task.run_after == later,
    }


if __name__ == "__main__":
    assert InvalidTask
    answer = globals()[sys.argv[1]](*json.loads(sys.argv[2]))
    sys.stdout.write(json.dumps(answer))
