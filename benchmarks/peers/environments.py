"""A virtual environment for each peer, made once from the versions pinned in `requirements`."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import venv
from pathlib import Path

from benchmarks import figures

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
NODE = "node"
_PLACE = HERE / ".venvs"


def python(environment: str) -> str:
    """Path of an environment's interpreter; our own for ""."""
    return script(environment, "python") if environment else sys.executable


def node(app: str, *words: str) -> list[str]:
    """Command that runs one of `apps` on Node.js."""
    return [script(NODE, "node"), str(_PLACE / NODE / app), *words]


def package(name: str) -> str:
    """Pinned version of a Node.js package."""
    return str(
        json.loads((HERE / "requirements" / f"{NODE}.json").read_text(encoding="utf-8"))["dependencies"][name]
    )


def script(environment: str, name: str) -> str:
    """Path of a program in an environment."""
    return str(_PLACE / environment / "bin" / name)


def make(environments: set[str]) -> None:
    """Make the environments that are missing or have other requirements."""
    for environment in sorted(environments - {""}):
        files = sorted((HERE / "requirements").glob(f"{environment}.*"))
        wanted = "\n".join(file.read_text(encoding="utf-8") for file in files)
        # Written last, so that an interrupted installation is repeated.
        installed = _PLACE / environment / "installed.txt"
        if not (installed.exists() and installed.read_text(encoding="utf-8") == wanted):
            figures.say(f"installing {', '.join(wanted.split())}")
            venv.create(_PLACE / environment, with_pip=True, clear=True)
            _install(environment)
            if environment == NODE:
                _install_packages()
            installed.write_text(wanted, encoding="utf-8")
    if NODE in environments:
        # Node.js looks for packages next to the program.
        for app in (HERE / "apps").glob("*.mjs"):
            shutil.copy(app, _PLACE / NODE)


def _install_packages() -> None:
    place = _PLACE / NODE
    shutil.copy(HERE / "requirements" / f"{NODE}.json", place / "package.json")
    subprocess.run([script(NODE, "npm"), "install", "--silent", "--prefix", str(place)], check=True)


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
