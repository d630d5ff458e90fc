"""A virtual environment for each peer, of the versions that are pinned in `requirements`; made once."""

from __future__ import annotations

import subprocess
import sys
import venv
from pathlib import Path

from benchmarks import figures

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
BULLMQ, _IOREDIS = "6.7.0", "6.0.0"
_PLACE = HERE / ".venvs"


def python(environment: str) -> str:
    """Its interpreter; our own for ""."""
    return script(environment, "python") if environment else sys.executable


def node_modules() -> Path:
    """Install BullMQ by npm if it is not there; raise RuntimeError without npm."""
    place = _PLACE / "bullmq"
    if not (place / "node_modules" / "ioredis").exists():
        words = [
            "npm",
            "install",
            "--silent",
            "--prefix",
            str(place),
            f"bullmq@{BULLMQ}",
            f"ioredis@{_IOREDIS}",
        ]
        try:
            subprocess.run(words, check=True)
        except (OSError, subprocess.CalledProcessError) as error:
            raise RuntimeError(f"BullMQ is not installed: {error}") from None
    return place


def script(environment: str, name: str) -> str:
    """One of its programs."""
    return str(_PLACE / environment / "bin" / name)


def make(environments: set[str]) -> None:
    """Make those that are not there, or that were made of other requirements."""
    for environment in sorted(environments - {""}):
        wanted = (HERE / "requirements" / f"{environment}.txt").read_text(encoding="utf-8")
        # Written last, so that one that was cut short is made again.
        installed = _PLACE / environment / "installed.txt"
        if installed.exists() and installed.read_text(encoding="utf-8") == wanted:
            continue
        figures.say(f"installing {', '.join(wanted.split())}")
        venv.create(_PLACE / environment, with_pip=True, clear=True)
        _install(environment)
        installed.write_text(wanted, encoding="utf-8")


def _install(environment: str) -> None:
    requirements = HERE / "requirements" / f"{environment}.txt"
    words = ["-m", "pip", "install", "--disable-pip-version-check", "--progress-bar", "off"]
    with subprocess.Popen(
        [python(environment), *words, "-r", str(requirements)], stdout=subprocess.PIPE, text=True
    ) as process:
        for line in process.stdout or ():
            if line.startswith(("Collecting", "Installing", "Successfully")):
                figures.say(f"  {line.strip()}")
    if process.returncode:
        raise RuntimeError(f"pip could not install {requirements}")
