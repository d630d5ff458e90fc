"""Version 8 of the tables."""

from __future__ import annotations

from typing import Any, ClassVar

from django.db import migrations

from drain.contrib.django.installation import install


class Migration(migrations.Migration):
    """Models are unchanged."""

    atomic = False
    dependencies: ClassVar[list[tuple[str, str]]] = [("drain", "0003_version_7")]
    operations: ClassVar[list[Any]] = [migrations.RunPython(install, migrations.RunPython.noop)]
