"""Job-drain's tables among the migrations of an application that has Alembic.

    from drain.contrib.alembic import include_name, include_object

in `env.py`, both passed to `context.configure`, keep `alembic revision --autogenerate` from dropping our tables. The
import also gives the scripts an operation, which brings our tables to a version:

    op.drain_upgrade(version=4)

    filters     which tables autogenerate leaves alone
    operations  `op.drain_upgrade`, and `op.drain_downgrade`, which refuses
    statements  our statements on Alembic's connection, whatever its driver is

What always holds: a version that the database has already is nothing to do. The tables change in the transaction of the
migration, or not at all; checks of the rows that are there follow in a transaction of their own.
"""

try:
    import alembic  # noqa: F401
except ModuleNotFoundError as missing:
    from drain import extras

    raise ModuleNotFoundError(
        f"drain.contrib.alembic needs Alembic: {extras.install('alembic')}", name=missing.name
    ) from None

from drain.contrib.alembic.filters import include_name, include_object
from drain.contrib.alembic.operations import DowngradeOperation, UpgradeOperation

__all__ = ["DowngradeOperation", "UpgradeOperation", "include_name", "include_object"]
