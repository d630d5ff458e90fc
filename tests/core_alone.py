"""Runs the core's tests in a copy without the extensions: `make test-core`, or `python -m tests.core_alone`.

The copy lacks `drain/contrib`, and its metadata lack the entry points that lead there. Left out are tests in folders
called `contrib`, files that import an extension, and tests with the marker `contrib`. All words are pytest's.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).parents[1]
EXTENSIONS = "drain/contrib"
IMPORT = re.compile(r"^(from|import) (drain\.contrib|tests\.web_pages)\b", re.M)
OPTIONS = "-q --strict-markers --strict-config --disable-plugin-autoload -p xdist -p _hypothesis_pytestplugin"


def main() -> int:
    """Run them; the exit code is pytest's."""
    with TemporaryDirectory(prefix="core-") as name:
        copy = Path(name)
        copy_core(copy)
        ignored = [f"--ignore={path.relative_to(copy)}" for path in of_extensions(copy)]
        words = ["-o", f"addopts={OPTIONS}", "-m", "not contrib", *ignored, *sys.argv[1:]]
        command = [sys.executable, "-m", "pytest", *words]
        environment = os.environ | {"PYTHONPATH": name}
        return subprocess.run(command, cwd=copy, env=environment, check=False).returncode


def of_extensions(root: Path) -> list[Path]:
    """Folders and files of tests that need extensions."""
    files = [
        path
        for path in (root / "tests").rglob("test_*.py")
        if IMPORT.search(path.read_text(encoding="utf-8"))
    ]
    return [*(root / "tests").glob("*/contrib"), *files]


def copy_core(copy: Path) -> None:
    """Copy the project without its extensions, as if it were installed."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, cwd=ROOT, capture_output=True, check=True).stdout.decode().split("\0")
    for name in names:
        if ((ROOT / name).is_file() and not name.startswith(f"{EXTENSIONS}/")) or (ROOT / name).is_symlink():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, copy / name, follow_symlinks=False)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    # The first metadata of a name on the path are those of the package.
    info = copy / f"job_drain-{project['version']}.dist-info"
    info.mkdir()
    lines = f"Metadata-Version: 2.1\nName: job-drain\nVersion: {project['version']}\n"
    (info / "METADATA").write_text(lines, encoding="utf-8")
    extension = f"{EXTENSIONS.replace('/', '.')}."
    groups = [
        f"[{group}]\n"
        + "".join(f"{name} = {value}\n" for name, value in found.items() if not value.startswith(extension))
        for group, found in project["entry-points"].items()
    ]
    (info / "entry_points.txt").write_text("".join(groups), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
