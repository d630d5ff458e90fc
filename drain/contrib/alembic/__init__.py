"""Job-drain's tables among an application's Alembic migrations.

    from drain.contrib.alembic import include_name, include_object

In `env.py`, passed to `context.configure`, both keep `alembic revision --autogenerate` from dropping our tables. The
import also adds an operation that brings our tables to a version, unless reached:

    op.drain_upgrade(version=4)

    filters     tables that autogenerate ignores
    operations  `op.drain_upgrade`, and `op.drain_downgrade`, which refuses
    statements  our statements on Alembic's connection, with any driver

Tables change within the migration's transaction; checks of existing rows follow in a second one.
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
