"""Version 9 of the tables."""

from __future__ import annotations

from typing import Any, ClassVar

from django.db import migrations

from drain.contrib.django.installation import install


class Migration(migrations.Migration):
    """Flows."""

    atomic = False
    dependencies: ClassVar[list[tuple[str, str]]] = [("drain", "0004_version_8")]
    operations: ClassVar[list[Any]] = [migrations.RunPython(install, migrations.RunPython.noop)]
