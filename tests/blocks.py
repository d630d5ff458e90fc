"""All ways in which a job may have its transaction, each as a `with` block whose value takes the same statements."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from importlib.util import find_spec
from typing import Any

from psycopg.conninfo import conninfo_to_dict
from sqlalchemy.ext.asyncio import AsyncSession

from drain.workers import async_psycopg_transaction, async_transaction, psycopg_transaction, transaction
from drain.workers.context.current import current_attempt

Block = Callable[[], AbstractContextManager[Any]]


class InLoop:
    """What an async block yields, for a job that is a function: each call runs the loop until it is answered."""

    def __init__(self, runner: asyncio.Runner, handle: Any) -> None:
        self.handle = handle
        self._run = runner.run

    def execute(self, statement: Any, parameters: Sequence[Any] | None = None) -> Any:
        return self._run(self._execute(statement, parameters))

    def rollback(self) -> None:
        self._run(self.handle.rollback())

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        is_session = isinstance(self.handle, AsyncSession)
        with entered(self._run, self.handle.begin_nested() if is_session else self.handle.transaction()):
            yield

    async def _execute(self, statement: Any, parameters: Sequence[Any] | None) -> Any:
        if not isinstance(self.handle, AsyncSession):
            return await self.handle.execute(statement, parameters)
        connection = await self.handle.connection()
        text = statement.decode() if isinstance(statement, bytes) else statement
        return await connection.exec_driver_sql(text, None if parameters is None else tuple(parameters))


class OfDjango:
    """Django's connection."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection

    def execute(self, statement: Any, parameters: Sequence[Any] | None = None) -> Any:
        with self.connection.cursor() as cursor:
            cursor.execute(statement, parameters)

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        from django.db.transaction import atomic

        with atomic():
            yield


@contextmanager
def entered(run: Callable[[Any], Any], block: Any) -> Iterator[Any]:
    """An `async with` of a function. If it is thrown away, so is the block."""
    value = run(block.__aenter__())
    try:
        yield value
    except GeneratorExit:
        raise
    except BaseException as error:
        if not run(block.__aexit__(type(error), error, error.__traceback__)):
            raise
    else:
        run(block.__aexit__(None, None, None))


@contextmanager
def async_transaction_in_loop() -> Iterator[InLoop]:
    with asyncio.Runner() as runner, entered(runner.run, async_transaction()) as session:
        yield InLoop(runner, session)


@contextmanager
def async_psycopg_transaction_in_loop() -> Iterator[InLoop]:
    with asyncio.Runner() as runner, entered(runner.run, async_psycopg_transaction()) as connection:
        yield InLoop(runner, connection)


@contextmanager
def django_transaction() -> Iterator[OfDjango]:
    from drain.contrib.django import transaction

    use_django_at(current_attempt().database_url)
    with transaction() as connection:
        yield OfDjango(connection)


def use_django_at(database_url: str, **options: Any) -> None:
    """Let Django's default database be this one, with connections that are kept from job to job."""
    import django
    from django.conf import settings
    from django.db import connections

    parts = conninfo_to_dict(database_url)
    default = {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": parts.get("dbname"),
        "HOST": parts.get("host", ""),
        "PORT": parts.get("port", ""),
        "USER": parts.get("user", ""),
        "PASSWORD": parts.get("password") or "",
        "CONN_MAX_AGE": None,
        "OPTIONS": {"application_name": "drain job"},
        **options,
    }
    if not settings.configured:
        settings.configure(DATABASES={"default": default}, USE_TZ=True)
        django.setup()
    known = connections.settings["default"]
    if any(known[key] != value for key, value in default.items()):
        forget_django()
        known.update(default)


def forget_django() -> None:
    """Close Django's connections of this thread."""
    from django.db import connections

    connections.close_all()
    for alias in connections:
        if hasattr(connections._connections, alias):
            del connections[alias]


WAYS: dict[str, Block] = {
    "sqlalchemy": transaction,
    "psycopg": psycopg_transaction,
    "async sqlalchemy": async_transaction_in_loop,
    "async psycopg": async_psycopg_transaction_in_loop,
}
if find_spec("drain.contrib"):
    WAYS["django"] = django_transaction
