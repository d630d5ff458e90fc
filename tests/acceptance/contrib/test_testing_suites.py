"""Suites of users, run by a pytest of their own: the fixtures, the marker, Django's TestCase, asynchronous tests."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path

import psycopg
import pytest

from tests.helpers import ROOT, environment, query

PATIENCE_SECONDS = 120
SHOP = """
import drain

@drain.job(queue="mail")
def send_receipt(order_id):
    with drain.psycopg_transaction() as connection:
        connection.execute("UPDATE orders SET receipt = true WHERE id = %s", [order_id])

def buy(connection, order_id):
    connection.execute("INSERT INTO orders (id) VALUES (%s)", [order_id])
    send_receipt.stage(connection, order_id)
"""
CONFTEST = """
import os
import psycopg
import pytest

@pytest.fixture
def drain_connection():
    with psycopg.connect(os.environ["DRAIN_DATABASE_URL"]) as connection:
        yield connection
        connection.rollback()
"""


class Suite:
    """A project of a user in a directory, with an installed job-drain."""

    def __init__(self, directory: Path, env: Mapping[str, str]) -> None:
        self.directory = directory
        self._env = env
        # As `pip install` leaves it: this is how pytest finds plugins.
        project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        plugins = project["entry-points"]["pytest11"]
        about = directory / "installed" / "job_drain-0.0.0.dist-info"
        about.mkdir(parents=True)
        (about / "METADATA").write_text("Metadata-Version: 2.1\nName: job-drain\nVersion: 0.0.0\n")
        lines = [f"{name} = {module}\n" for name, module in plugins.items()]
        (about / "entry_points.txt").write_text("".join(["[pytest11]\n", *lines]))

    def run(self, *words: str, fails: bool = False, **files: str) -> str:
        """Write files, run pytest, and return what it has printed."""
        for name, text in files.items():
            (self.directory / f"{name}.py").write_text(text)
        (self.directory / "pytest.ini").write_text(
            "[pytest]\nfilterwarnings = error\naddopts = --strict-markers\n"
        )
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *words],
            env={**self._env, "PYTHONPATH": f"{self.directory}:{self.directory / 'installed'}:{ROOT}"},
            cwd=self.directory,
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
            check=False,
        )
        printed = done.stdout + done.stderr
        assert (done.returncode != 0) == fails, printed
        return printed


@pytest.fixture
def suite(database_url: str, redis_url: str, tmp_path: Path) -> Suite:
    query(database_url, "CREATE TABLE orders (id bigint PRIMARY KEY, receipt boolean NOT NULL DEFAULT false)")
    return Suite(tmp_path, environment(database_url, redis_url))


def test_the_fixture_works_on_the_connection_of_the_suite(suite: Suite, database_url: str) -> None:
    test = """
from shop import buy, send_receipt

def test_an_order_sends_a_receipt(drain_connection, staged):
    buy(drain_connection, 42)
    staged.assert_one(send_receipt, args=[42], queue="mail")
    assert [each.state for each in staged.run()] == ["finished"]
    assert drain_connection.execute("SELECT receipt FROM orders").fetchall() == [(True,)]

def test_nothing_is_left_of_it(drain_connection, staged):
    staged.none()
    assert drain_connection.execute("SELECT * FROM orders").fetchall() == []

def test_fails(drain_connection, staged):
    buy(drain_connection, 43)
    staged.assert_one(send_receipt, args=[42])
"""
    printed = suite.run(fails=True, shop=SHOP, conftest=CONFTEST, test_shop=test)
    assert "1 failed, 2 passed" in printed
    assert re.search(
        r"^E +AssertionError: expected one shop.send_receipt with args=\[42\], found none; 1 job is staged:\n"
        r"E +job \d+: shop.send_receipt\(43\), queue mail, waiting$",
        printed,
        re.MULTILINE,
    )
    # The line of the test, and none of ours.
    assert "drain/contrib/testing" not in printed
    assert query(database_url, "SELECT * FROM orders") == []


def test_without_a_connection_the_error_says_what_to_do(suite: Suite) -> None:
    printed = suite.run(fails=True, test_shop="def test_it(staged): ...\n")
    assert "define a fixture `drain_connection` in conftest.py" in printed
    assert "Traceback" not in printed


def test_the_unused_plugin_imports_almost_nothing(suite: Suite) -> None:
    test = """
import sys

def test_it(request):
    assert request.config.pluginmanager.hasplugin("drain.contrib.testing.plugin")
    tops = {name.partition(".")[0] for name in sys.modules}
    assert not tops & {"sqlalchemy", "django", "redis", "rq"}
    assert "drain.workers" not in sys.modules
    loaded = {name for name in sys.modules if name.startswith("drain.contrib.testing")}
    assert loaded == {"drain.contrib.testing", "drain.contrib.testing.plugin"}
"""
    suite.run("-p", "no:django", test_it=test)


DJANGO_SETTINGS = """
import os
from psycopg.conninfo import conninfo_to_dict

given = conninfo_to_dict(os.environ["DRAIN_DATABASE_URL"])
DATABASES = {"default": {
    "ENGINE": "django.db.backends.postgresql", "NAME": given["dbname"], "USER": given["user"],
    "HOST": given["host"], "PORT": given["port"], "TEST": {"NAME": given["dbname"]},
}}
USE_TZ = True
SECRET_KEY = "x"
INSTALLED_APPS = []
"""
DJANGO_SHOP = """
import drain
from django.db import IntegrityError, connection, models, transaction

class Order(models.Model):
    receipt = models.BooleanField(default=False)
    class Meta:
        app_label = "shop"
        db_table = "orders"

@drain.job(queue="mail", max_attempts=2)
def send_receipt(order_id):
    Order.objects.filter(id=order_id).update(receipt=True)

@drain.job
def twice(order_id):
    Order.objects.create(id=order_id)

@drain.job
def settle(order_id):
    with drain.psycopg_transaction() as inner:
        inner.execute("UPDATE orders SET receipt = true WHERE id = %s", [order_id])

@drain.job(max_attempts=1)
def settle_by_orm(order_id, fail=False):
    import drain.contrib.django
    with drain.contrib.django.transaction():
        Order.objects.filter(id=order_id).update(receipt=True)
        with transaction.atomic():
            drain.stage(connection, "nobody.knows", run_in=3600)
        if fail:
            raise ValueError
    raise RuntimeError("after the finish")

def buy(order_id):
    order = Order.objects.create(id=order_id)
    return send_receipt.stage(connection, order.id)
"""
DJANGO_TESTS = """
import unittest.mock
import django
import drain
django.setup()
from django.db import connection, transaction
from django.test import TestCase, TransactionTestCase
from drain.errors import HarnessError
from drain.contrib.testing import Staged
from shop import Order, buy, send_receipt, settle, settle_by_orm, twice
import pytest

class Shop(TestCase):
    @classmethod
    def setUpTestData(cls):
        Order.objects.create(id=1)

    def setUp(self):
        self.staged = Staged(connection)

    def test_a_receipt(self):
        self.staged.none()
        buy(42)
        self.staged.assert_one(send_receipt, args=[42], queue="mail")
        self.assertEqual([each.state for each in self.staged.run(check=True)], ["finished"])
        self.assertTrue(Order.objects.get(id=42).receipt)

    def test_a_transaction(self):
        settle.stage(connection, 1)
        self.staged.run(check=True)
        self.assertTrue(Order.objects.get(id=1).receipt)

    def test_a_transaction_of_the_orm(self):
        settle_by_orm.stage(connection, 1, fail=True)
        self.assertEqual([each.state for each in self.staged.run()], ["dead"])
        self.assertFalse(Order.objects.get(id=1).receipt)
        self.staged.none()
        settle_by_orm.stage(connection, 1)
        (ran,) = self.staged.run()
        self.assertEqual((ran.state, type(ran.error)), ("finished", RuntimeError))
        self.assertTrue(Order.objects.get(id=1).receipt)
        self.staged.assert_one("nobody.knows", state="scheduled")

    def test_a_cancelled_job_in_a_transaction_of_the_orm(self):
        job_id = settle_by_orm.stage(connection, 1)
        with connection.cursor() as cursor:
            cursor.execute("UPDATE staged_jobs SET fencing_token = 5")
        original = Order.objects.filter
        def overtake(**given):
            with connection.cursor() as cursor:
                cursor.execute("UPDATE inflight_jobs SET fencing_token = 9")
            return original(**given)
        with unittest.mock.patch.object(Order.objects, "filter", overtake):
            (ran,) = self.staged.run()
        self.assertIsInstance(ran.error, drain.LeaseLostError)
        self.assertFalse(Order.objects.get(id=1).receipt)

    def test_a_job_that_breaks_the_transaction(self):
        buy(42)
        twice.stage(connection, 1)
        states = [each.state for each in self.staged.run()]
        self.assertEqual(sorted(states), ["finished", "retrying"])
        self.assertTrue(Order.objects.get(id=42).receipt)
        self.staged.advance(days=1)
        self.assertEqual([each.state for each in self.staged.run()], ["retrying"])

    def test_nothing_is_left(self):
        self.staged.none()
        self.assertEqual(Order.objects.count(), 1)

class WithoutTransaction(TransactionTestCase):
    available_apps = []
    def test_it(self):
        with self.assertRaisesRegex(HarnessError, "autocommit"):
            Staged(connection).none()

    def test_a_block_of_its_own(self):
        with transaction.atomic():
            buy(42)
            settle_by_orm.stage(connection, 42)
            Staged(connection).run()
            self.assertTrue(Order.objects.get(id=42).receipt)
            Staged(connection).assert_one("nobody.knows")
            transaction.set_rollback(True)
        with connection.cursor() as cursor:
            cursor.execute("SELECT (SELECT count(*) FROM orders), (SELECT count(*) FROM staged_jobs)")
            self.assertEqual(cursor.fetchone(), (0, 0))
"""
PYTEST_DJANGO = """
import pytest
from django.db import connection

@pytest.fixture(scope="session")
def django_db_setup(): ...

def test_the_connection_is_found(db, staged):
    from shop import Order, buy, send_receipt
    buy(42)
    staged.assert_one(send_receipt, [42])
    staged.run(check=True)
    assert Order.objects.get().receipt
"""


def test_djangos_test_case(suite: Suite, database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("django")
    suite._env = {**suite._env, "DJANGO_SETTINGS_MODULE": "settings"}
    printed = suite.run(
        *("-p", "no:django", "test_django.py"),
        settings=DJANGO_SETTINGS,
        shop=DJANGO_SHOP,
        test_django=DJANGO_TESTS,
    )
    assert "8 passed" in printed
    assert query(database_url, "SELECT * FROM orders") == []


def test_pytest_django(suite: Suite) -> None:
    pytest.importorskip("pytest_django")
    suite._env = {**suite._env, "DJANGO_SETTINGS_MODULE": "settings"}
    printed = suite.run(
        "test_pytest_django.py", settings=DJANGO_SETTINGS, shop=DJANGO_SHOP, test_pytest_django=PYTEST_DJANGO
    )
    assert "1 passed" in printed


ASYNC = """
import asyncio
import os
import drain
import psycopg
import pytest
import sqlalchemy
from drain.contrib.testing import Staged
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

@drain.job
async def settle(order_id):
    await asyncio.sleep(0)
    with drain.psycopg_transaction() as connection:
        connection.execute("INSERT INTO orders (id) VALUES (%s)", [order_id])

URL = os.environ["DRAIN_DATABASE_URL"]
STAGE = "INSERT INTO staged_jobs (job_name, job_args) VALUES ('test_async.settle', '[42]')"

def test_psycopg():
    async def main():
        async with await psycopg.AsyncConnection.connect(URL) as connection:
            staged = Staged(connection)
            staged.none()
            await connection.execute(STAGE)
            staged.assert_one(settle, [42])
            assert [each.state for each in await staged.arun(check=True)] == ["finished"]
            rows = await (await connection.execute("SELECT id FROM orders")).fetchall()
            assert rows == [(42,)]
            await connection.rollback()
    asyncio.run(main())

def test_sqlalchemy():
    async def main():
        engine = create_async_engine(URL.replace("postgresql://", "postgresql+psycopg://"))
        async with AsyncSession(engine) as session:
            staged = Staged(session)
            with pytest.raises(drain.DrainError, match="await session.connection"):
                staged.none()
            await session.connection()
            staged.none()
            await session.execute(sqlalchemy.text(STAGE))
            staged.assert_one(settle, [42])
            assert [each.state for each in await staged.arun(check=True)] == ["finished"]
            assert (await session.execute(sqlalchemy.text("SELECT id FROM orders"))).scalars().all() == [42]
            staged.advance(days=1)
            await session.rollback()
        async with engine.connect() as connection:
            staged = Staged(connection)
            staged.none()
            await connection.execute(sqlalchemy.text(STAGE))
            assert [each.state for each in await staged.arun(check=True)] == ["finished"]
            await connection.rollback()
        await engine.dispose()
    asyncio.run(main())
"""


def test_asynchronous_connections(suite: Suite, database_url: str) -> None:
    pytest.importorskip("greenlet")
    assert "2 passed" in suite.run("test_async.py", test_async=ASYNC)
    assert query(database_url, "SELECT * FROM orders") == []


WHOLE_WAY = """
import drain
import psycopg
import pytest

@drain.job
def settle(order_id):
    with drain.psycopg_transaction() as connection:
        connection.execute("INSERT INTO orders (id) VALUES (%s)", [order_id])

@drain.job(max_attempts=1)
def fail():
    raise ValueError

def prepare(url):
    with psycopg.connect(url) as connection:
        connection.execute("CREATE TABLE orders (id bigint)")
        settle.stage(connection, 42)
        fail.stage(connection)

@pytest.mark.drain_servers
def test_the_marker_names_the_servers_in_the_environment(monkeypatch):
    import os
    assert os.environ["DRAIN_REDIS_URL"] and os.environ["DRAIN_DATABASE_URL"]
    with psycopg.connect(os.environ["DRAIN_DATABASE_URL"]) as connection:
        assert connection.execute("SELECT count(*) FROM finished_jobs").fetchall() == [(0,)]

def test_jobs_run_end_to_end(drain_servers):
    prepare(drain_servers.database_url)
    drain_servers.run_until_done()
    with psycopg.connect(drain_servers.database_url) as connection:
        assert connection.execute("SELECT id FROM orders").fetchall() == [(42,)]
        assert connection.execute("SELECT count(*) FROM finished_jobs").fetchall() == [(1,)]
        assert connection.execute("SELECT reason FROM dead_jobs").fetchall() == [("failed",)]

@pytest.mark.drain_servers
def test_jobs_that_cannot_finish_raise_an_error(drain_servers):
    with psycopg.connect(drain_servers.database_url) as connection:
        drain.stage(connection, "nobody.knows")
    with pytest.raises(drain.DrainError, match="the time is over; 1 job is staged"):
        drain_servers.run_until_done(timeout=3)
    with pytest.raises(drain.DrainError, match="cannot be imported"):
        drain_servers.run_until_done(["no.such.module"])
"""


def test_the_servers_fixture_runs_jobs_end_to_end(suite: Suite) -> None:
    printed = suite.run("test_whole_way.py", test_whole_way=WHOLE_WAY)
    assert "3 passed" in printed


def test_without_servers_the_error_names_the_extra(suite: Suite) -> None:
    from drain.embedded import binaries

    nothing = "import drain.embedded.binaries as b\nb._postgres_places = lambda: iter(())\n"
    suite._env = {name: text for name, text in suite._env.items() if name != binaries.POSTGRES}
    # pytest cuts the line of a summary at the width.
    suite._env["COLUMNS"] = "300"
    printed = suite.run(fails=True, conftest=nothing, test_it="def test_it(drain_servers): ...\n")
    assert "no PostgreSQL found: pip install '" in printed
    assert "[servers]'" in printed


def test_a_role_without_ownership_is_refused_in_one_line(database_url: str) -> None:
    from drain.contrib.testing import Staged

    with psycopg.connect(database_url) as connection:
        connection.execute("CREATE ROLE nobody_in_tests")
        connection.execute("GRANT SELECT ON ALL TABLES IN SCHEMA public TO nobody_in_tests")
        connection.execute("SET ROLE nobody_in_tests")
        with pytest.raises(
            Exception, match=r"may not do this: permission denied for .*; connect as the owner"
        ):
            Staged(connection).run()
        connection.rollback()
