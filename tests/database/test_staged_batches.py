"""Batches in the database: members, callbacks and growth, as staged by each driver."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import asyncpg
import psycopg
import pytest
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import Session

import drain
from drain import After, FlowProgress, StageError
from drain.tables.columns import BLOCKED_UNTIL, MARKER
from tests.async_connections import OPENERS, Opener, for_sqlalchemy
from tests.blocks import use_django_at
from tests.helpers import query
from tests.hostility import Place

Opened = Callable[[str], AbstractContextManager[Any]]


@contextmanager
def of_psycopg(url: str) -> Iterator[Any]:
    with psycopg.connect(url) as connection:
        yield connection


@contextmanager
def cursor(url: str) -> Iterator[Any]:
    with (
        psycopg.connect(url, autocommit=True) as connection,
        connection.transaction(),
        connection.cursor() as one,
    ):
        yield one


@contextmanager
def session(url: str) -> Iterator[Any]:
    engine = create_engine(for_sqlalchemy(url))
    with Session(engine) as one, one.begin():
        yield one
    engine.dispose()


@contextmanager
def core(url: str) -> Iterator[Any]:
    engine = create_engine(for_sqlalchemy(url, "psycopg2"))
    with engine.begin() as connection:
        yield connection
    engine.dispose()


@contextmanager
def django(url: str) -> Iterator[Any]:
    use_django_at(url)
    from django.db import connection
    from django.db.transaction import atomic

    with atomic():
        yield connection
    connection.close()


SYNCHRONOUS: list[Opened] = [of_psycopg, cursor, session, core, django]


def edges(url: str) -> list[tuple[Any, ...]]:
    return query(url, "SELECT child_id, parent_id, on_failure FROM job_edges ORDER BY 1, 2")


def names(url: str, where: str = "true") -> list[str]:
    return [name for (name,) in query(url, f"SELECT job_name FROM staged_jobs WHERE {where} ORDER BY id")]


def members(url: str, flow: int) -> list[int]:
    statement = "SELECT parent_id FROM job_edges WHERE child_id = %s AND on_failure = 'hold' ORDER BY 1"
    return [member for (member,) in query(url, statement, flow)]


@pytest.mark.parametrize("opened", SYNCHRONOUS, ids=lambda opener: opener.__name__)
def test_a_batch_has_members_and_callbacks_on_each_driver(database_url: str, opened: Opened) -> None:
    with (
        opened(database_url) as connection,
        drain.batch(
            connection,
            on_success=("m.success", [1], {"a": 2}),
            on_complete=("m.complete", [3]),
            on_dead="m.dead",
            description="import of May",
        ) as batch,
    ):
        first = batch.stage("m.f", [1], priority=3)
        rest = batch.stage_many("m.f", [(2,), (3,)])
    assert members(database_url, batch.id) == [first, *rest]
    assert names(database_url) == [MARKER, "m.success", "m.complete", "m.dead", *["m.f"] * 3]
    assert query(
        database_url,
        "SELECT job_args, job_kwargs FROM staged_jobs WHERE job_name IN ('m.success', 'm.complete') ORDER BY id",
    ) == [([1], {"a": 2}), ([3], {})]
    ((success, complete, dead, description),) = query(
        database_url,
        "SELECT on_success, on_complete, on_dead, description FROM flows WHERE id = %s",
        batch.id,
    )
    assert description == "import of May"
    found = edges(database_url)
    assert {(success, batch.id, "hold"), (dead, batch.id, "only")} < set(found)
    assert {parent for child, parent, _ in found if child == complete} > {first, *rest}
    assert set(names(database_url, f"scheduled_at = '{BLOCKED_UNTIL}'")) == {
        *(MARKER, "m.success", "m.complete", "m.dead"),
    }


@pytest.mark.parametrize("opened", OPENERS, ids=lambda opener: opener.__name__)
def test_asynchronous_connections_stage_batches_too(database_url: str, opened: Opener) -> None:
    async def stage() -> tuple[int, list[int], FlowProgress | None]:
        async with opened(database_url) as connection, drain.abatch(connection, on_complete="m.end") as batch:
            ids = [await batch.astage("m.f", [1]), *await batch.astage_many("m.f", [(2,), (3,)])]
            ids.append(await drain.astage(connection, "m.g", after=ids[0], flow=batch))
            return batch.id, ids, await drain.aflow_progress(connection, batch)

    batch_id, ids, progress = asyncio.run(stage())
    assert members(database_url, batch_id) == ids
    assert progress == FlowProgress(total=4, finished=0, dead=0, unfinished=4, state="running")


def test_an_exception_in_the_block_leaves_the_transaction_to_its_owner(database_url: str) -> None:
    with psycopg.connect(database_url) as connection:
        with pytest.raises(ZeroDivisionError), drain.batch(connection) as batch:
            batch.stage("m.f", [1 / 0])
        assert drain.flow_progress(connection, batch.id) is not None
        connection.rollback()
    assert names(database_url) == []
    assert query(database_url, "SELECT FROM flows") == edges(database_url) == []


def test_autocommit_is_refused_before_anything_is_sent(database_url: str) -> None:
    engine = create_engine(for_sqlalchemy(database_url), isolation_level="AUTOCOMMIT")
    use_django_at(database_url)
    from django.db import connection as of_django

    with psycopg.connect(database_url, autocommit=True) as of_psycopg, engine.connect() as of_sqlalchemy:
        for each in (of_psycopg, of_psycopg.cursor(), of_sqlalchemy, Session(of_sqlalchemy), of_django):
            with (
                pytest.raises(StageError, match="this connection is in autocommit mode: open one"),
                drain.batch(each),
            ):
                pass
            flow = drain.Flow("empty")
            with pytest.raises(StageError, match="needs one transaction"):
                flow.stage(each)
    of_django.close()
    engine.dispose()
    assert names(database_url) == []


def test_asynchronous_autocommit_is_refused_too(database_url: str) -> None:
    async def refuse() -> None:
        engine = create_async_engine(for_sqlalchemy(database_url), isolation_level="AUTOCOMMIT")
        of_asyncpg = await asyncpg.connect(database_url)
        async with (
            await psycopg.AsyncConnection.connect(database_url, autocommit=True) as of_psycopg,
            engine.connect() as of_sqlalchemy,
        ):
            for each in (of_psycopg, of_asyncpg, of_sqlalchemy):
                with pytest.raises(StageError, match="needs one transaction"):
                    async with drain.abatch(each):
                        pass
                with pytest.raises(StageError, match="needs one transaction"):
                    await drain.Flow("empty").astage(each)
        await of_asyncpg.close()
        await engine.dispose()

    asyncio.run(refuse())
    assert names(database_url) == []


def test_jobs_wait_for_a_batch(database_url: str) -> None:
    with psycopg.connect(database_url) as connection:
        with drain.batch(connection) as batch:
            first = batch.stage("m.f")
            second = batch.stage("m.f", after=first)
        later = drain.stage(connection, "m.g", after=[After(batch, "run"), first])
        many = drain.stage_many(connection, "m.g", [()], after=batch, on_failure="only")
    assert {(second, first, "cancel"), (later, batch.id, "run"), (later, first, "cancel")} < set(
        edges(database_url)
    )
    assert (many[0], batch.id, "only") in edges(database_url)


def test_a_batch_grows_in_a_later_transaction(database_url: str) -> None:
    with psycopg.connect(database_url) as connection:
        with drain.batch(connection, on_complete="m.end") as batch:
            first = batch.stage("m.f")
        connection.commit()
        added = drain.stage(connection, "m.f", flow=batch.id, idempotency_key="a")
        again = drain.stage(connection, "m.f", flow=batch.id, idempotency_key="a")
        many = drain.stage_many(connection, "m.f", ((n,) for n in range(12_000)), flow=batch)
    assert added == again
    assert members(database_url, batch.id) == [first, added, *many]
    ((complete,),) = query(database_url, "SELECT on_complete FROM flows")
    ((count,),) = query(database_url, "SELECT count(*) FROM job_edges WHERE child_id = %s", complete)
    assert count == 12_003


def test_a_batch_that_has_ended_does_not_grow(database_url: str) -> None:
    with psycopg.connect(database_url) as connection, drain.batch(connection) as batch:
        pass
    query(database_url, "DELETE FROM staged_jobs WHERE id = %s", batch.id)
    with (
        psycopg.connect(database_url) as connection,
        pytest.raises(psycopg.DatabaseError, match=f"flow {batch.id} has ended: start a new one"),
    ):
        drain.stage(connection, "m.f", flow=batch)
    assert names(database_url) == []


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "text": ({"flow": "1"}, "flow takes the ids that stage() returned, which are whole numbers, not a str"),
    "zero": ({"flow": 0}, "flow takes the ids that stage() returned, from 1 to"),
    "empty node": ({"flow": 1, "node": ""}, "node must be a string of 1 to 255 characters"),
    "node alone": ({"node": "a"}, "node is a job's name in a flow: give flow=, too"),
    "name without a flow": ({"after": "fetch"}, "after takes the ids that stage() returned"),
}


@pytest.mark.parametrize("kind", list(BAD))
def test_bad_options_are_one_clear_line(database_url: str, kind: str) -> None:
    options, words = BAD[kind]
    with psycopg.connect(database_url) as connection:
        with pytest.raises(StageError) as caught:
            drain.stage(connection, "m.f", **options)
        assert words in str(caught.value)
        assert "\n" not in str(caught.value)
        with pytest.raises(StageError, match="node is an option for one job" if "node" in options else None):
            drain.stage_many(connection, "m.f", [()], **options)
    assert names(database_url) == []


@pytest.mark.parametrize(
    ("callback", "words"),
    [
        (("m.f", [], {}, 1), "on_complete must be a job, "),
        ((), "on_complete must be a job, "),
        (("m.f", 42), "arguments must be a list or tuple"),
        ((42,), "a job must be a name or a function"),
        (lambda: None, "no name that a worker could import"),
    ],
)
def test_a_bad_callback_is_refused_before_anything_is_sent(
    database_url: str, callback: Any, words: str
) -> None:
    with psycopg.connect(database_url) as connection:
        with pytest.raises(StageError, match=words), drain.batch(connection, on_complete=callback):
            pass
        assert connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE


def test_hooks_see_members_and_callbacks(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("drain.hooks.stage_hooks", ())
    drain.on_stage(lambda name, args, kwargs, context: {"of": name})
    with psycopg.connect(database_url) as connection, drain.batch(connection, on_dead="m.dead") as batch:
        batch.stage("m.f")
    contexts = query(database_url, "SELECT context FROM staged_jobs WHERE context IS NOT NULL ORDER BY id")
    assert contexts == [({"of": "m.dead"},), ({"of": "m.f"},)]


def test_an_application_needs_only_its_role(place: Place) -> None:
    with place.connected("application") as application, application.transaction():
        with drain.batch(application, on_success="m.s", on_complete="m.c", on_dead="m.d") as batch:
            batch.stage("m.f")
        drain.stage(application, "m.f", flow=batch)
        progress = drain.flow_progress(application, batch)
    assert progress is not None
    assert progress.total == 2
    with place.connected("inspection") as inspection:
        assert drain.flow_progress(inspection, batch) == progress
        assert drain.flow_progress(inspection, 99) is None
