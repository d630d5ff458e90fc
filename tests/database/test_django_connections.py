"""Staging on Django's connections: its wrappers are looked through, and its transaction is joined."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qs, urlsplit

import django
import pytest
from django.conf import settings
from django.db import connection, connections, transaction
from django.db.transaction import TransactionManagementError

import drain
from drain.errors import ConnectableError
from tests.blocks import forget_django
from tests.helpers import query


@pytest.fixture(autouse=True)
def _django(database_url: str) -> Iterator[None]:
    if not settings.configured:
        settings.configure(DATABASES={}, USE_TZ=True)
        django.setup()
    url = urlsplit(database_url)
    host = parse_qs(url.query)
    place = {"HOST": host["host"][0], "PORT": host["port"][0], "USER": url.username, "NAME": url.path[1:]}
    one = {"ENGINE": "django.db.backends.postgresql", **place}
    other = {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}
    # An earlier test of this process may have left a connection to its own database.
    forget_django()
    before = connections.settings
    connections.settings = connections.configure_settings({"default": one, "other": other})
    yield
    forget_django()
    connections.settings = before


def staged(database_url: str) -> list[Any]:
    return [name for (name,) in query(database_url, "SELECT job_name FROM staged_jobs ORDER BY id")]


@pytest.mark.parametrize("of", [lambda: connection, lambda: connections["default"]], ids=["proxy", "wrapper"])
def test_a_job_commits_and_rolls_back_with_the_block(database_url: str, of: Any) -> None:
    with transaction.atomic():
        drain.stage(of(), "shop.first")
        with transaction.atomic():
            drain.stage_many(of(), "shop.second", [(), ()])
        assert staged(database_url) == []
    with transaction.atomic():
        drain.stage(of(), "shop.third")
        transaction.set_rollback(True)
    assert staged(database_url) == ["shop.first", "shop.second", "shop.second"]


def test_outside_a_block_the_job_is_committed_at_once(database_url: str) -> None:
    drain.stage(connection, "shop.first")
    assert staged(database_url) == ["shop.first"]


def test_other_calls_also_accept_the_connection(database_url: str) -> None:
    with transaction.atomic():
        job_id = drain.stage(connection, "shop.first", run_in=60, idempotency_key="a")
        drain.schedule(connection, "nightly", "shop.second", cron="0 3 * * *")
        assert drain.cancel(connection, job_id)
        with connection.cursor() as cursor:
            cursor.execute("SELECT name FROM crons")
            assert cursor.fetchall() == [("nightly",)]
    assert staged(database_url) == []


def test_a_broken_block_is_refused_as_by_django(database_url: str) -> None:
    with transaction.atomic():
        transaction.set_rollback(True)
        with pytest.raises(TransactionManagementError):
            drain.stage(connection, "shop.first")
    assert staged(database_url) == []


def test_a_database_other_than_postgres_is_refused_in_one_line() -> None:
    with pytest.raises(
        ConnectableError, match="'other' is sqlite by sqlite3; jobs are staged on PostgreSQL"
    ) as caught:
        drain.stage(connections["other"], "shop.first")
    assert "\n" not in str(caught.value)
