"""`op.drain_upgrade` and `op.drain_downgrade`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn, cast

from alembic.operations import MigrateOperation, Operations
from alembic.util import CommandError

from drain.config import VARIABLES
from drain.contrib.alembic.statements import Statements, explained
from drain.database import schema
from drain.database.postgres import Connection
from drain.errors import DrainError, SchemaError
from drain.urls import require_schema_name


@Operations.register_operation("drain_upgrade")
class UpgradeOperation(MigrateOperation):
    """Bring job-drain's tables to a version, unless they have it or a newer one.

    Args:
        since: Version before, 0 for none; needed by `alembic upgrade --sql`.
        schema: Created if missing; default: DRAIN_SCHEMA, or the first of the search_path.
    """

    def __init__(self, version: int, since: int | None = None, schema: str | None = None) -> None:
        self.version = version
        self.since = since
        self.schema = schema or os.environ.get(VARIABLES["schema"], "").strip() or None

    @classmethod
    def drain_upgrade(
        cls,
        operations: Operations,
        *,
        version: int,
        since: int | None = None,
        schema: str | None = None,
    ) -> None:
        """Bring job-drain's tables to a version within the migration's transaction; arguments as for the class.

        Raises:
            CommandError: It cannot be done; Alembic prints the line.
        """
        operations.invoke(cls(version, since, schema))

    def reverse(self) -> MigrateOperation:
        """Return the operation that refuses."""
        return DowngradeOperation(self.version - 1)

    def to_diff_tuple(self) -> tuple[Any, ...]:
        """Describe the operation for Alembic."""
        return ("drain_upgrade", self.version)


@Operations.register_operation("drain_downgrade")
class DowngradeOperation(MigrateOperation):
    """Refuse to downgrade job-drain's tables."""

    def __init__(self, version: int) -> None:
        self.version = version

    @classmethod
    def drain_downgrade(cls, operations: Operations, *, version: int) -> None:
        """Raise CommandError with advice."""
        operations.invoke(cls(version))


@Operations.implementation_for(UpgradeOperation)
def _upgrade(operations: Operations, operation: UpgradeOperation) -> None:
    with _told_by_alembic(), explained():
        _require_version(operation.version)
        if operation.schema:
            require_schema_name(operation.schema)
        if operations.get_context().as_sql:
            _print(operations, operation)
        else:
            _execute(operations, operation)


@Operations.implementation_for(DowngradeOperation)
def _downgrade(_: Operations, operation: DowngradeOperation) -> NoReturn:
    raise CommandError(
        f"job-drain's tables do not go back to version {operation.version}: an older version has no place for what "
        "they hold. Leave them (`pass` in downgrade()): upgrade() then finds nothing to do; or restore a backup"
    )


def _execute(operations: Operations, operation: UpgradeOperation) -> None:
    statements = Statements(operations.get_bind())
    if not statements.is_in_transaction():
        raise SchemaError("op.drain_upgrade() needs a transaction: call it outside of an autocommit_block()")
    with _in_schema(statements, operation.schema):
        statements.execute(schema.LOCK)
        found = schema.version_before(_as_ours(statements))
        if found < operation.version:
            for step, _ in schema.steps(found, operation.version):
                statements.run(f"{schema.PATIENCE};\n{step}")
        is_unfinished = schema.is_unfinished(_as_ours(statements))
    if is_unfinished:
        _finish(operations, operation, is_empty=not found)


def _finish(operations: Operations, operation: UpgradeOperation, *, is_empty: bool) -> None:
    """Run the statements after the commit, in one transaction."""
    rest = "\n".join(after for _, after in schema.steps(1, operation.version))
    script = f"{schema.LOCK};\n{schema.PATIENCE};\n{rest}"
    context = operations.get_context()
    # Alembic must not commit a transaction begun by env.py.
    if is_empty or context._in_external_transaction:
        statements = Statements(operations.get_bind())
        with _in_schema(statements, operation.schema):
            statements.run(script)
        return
    # Statements sent together are one transaction.
    with context.autocommit_block():
        path = f"SET LOCAL search_path = {operation.schema};\n" if operation.schema else ""
        Statements(operations.get_bind()).run(path + script)


def _print(operations: Operations, operation: UpgradeOperation) -> None:
    if operation.since is None:
        raise SchemaError("without a database, op.drain_upgrade() needs the version before: since=0 for none")
    context = operations.get_context()
    first, *rest = schema.blocks(operation.version, operation.since)
    if operation.schema:
        context.impl.static_output(schema.path_to(operation.schema))
    context.impl.static_output(f"{first}SET LOCAL lock_timeout TO DEFAULT;")
    for block in rest:
        with context.autocommit_block():
            context.impl.static_output(f"BEGIN;\n{block}COMMIT;")
    if operation.schema:
        context.impl.static_output("RESET search_path;")


@contextmanager
def _in_schema(statements: Statements, name: str | None) -> Iterator[None]:
    with statements.kept_settings():
        if name:
            schema.make(_as_ours(statements), name)
            statements.execute(f"SET LOCAL search_path = {name}")
        yield


@contextmanager
def _told_by_alembic() -> Iterator[None]:
    try:
        yield
    except DrainError as error:
        raise CommandError(str(error)) from error


def _require_version(version: int) -> None:
    if not 1 <= version <= schema.VERSION:
        raise SchemaError(
            f"there is no version {version} of the schema; this program knows 1 to {schema.VERSION}: "
            "install the job-drain that the migration was written for, or a newer one"
        )


def _as_ours(statements: Statements) -> Connection:
    return cast(Connection, statements)
