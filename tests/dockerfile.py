"""The Dockerfile, carried out without Docker: the same files, the same commands, in an empty directory.

Instead of the base image there is a virtual environment that sees the dependencies which are installed for the tests,
and nothing else of them: job-drain itself comes from the files that the Dockerfile copies. What it installs by hash is
there already, in the versions of the tests.
"""

from __future__ import annotations

import fnmatch
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import venv
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from tests.helpers import ROOT

# Top directories of the image that the Dockerfile names.
_ABSOLUTE = re.compile(r"(?<![\w./])/(?=(?:src|app|usr)\b)")
# All that is needed is there, so pip asks no index, and need not look at what the dependencies need in turn.
_PIP = {"PIP_NO_INDEX": "1", "PIP_NO_DEPS": "1"}
# Root may write to any file unless it gives up this capability.
_AS_IF_NOT_ROOT = ["setpriv", "--bounding-set=-dac_override", "--"]


class Image:
    """What the Dockerfile makes, below a directory.

    Args:
        root: Where it is made; becomes the image's root directory.
        text: The Dockerfile.

    Attributes:
        environment: What ENV has set.
        user: What USER names.
        ports: What EXPOSE names.
        healthcheck: Words of the HEALTHCHECK.
    """

    def __init__(self, root: Path, text: str) -> None:
        self._root = root
        self._directory = root
        self._entrypoint: list[str] = []
        self.environment: dict[str, str] = {}
        self.user, self.ports = "", ""
        self.healthcheck: list[str] = []
        self._context = set(context())
        _make_base(root)
        for name, rest in instructions(text):
            self._instructions[name](self, rest)
        subprocess.run(["chmod", "-R", "a-w", root], check=True)

    def run(self, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run the entry point as `docker run` would, with no right to write in the image."""
        return self.execute([*self._entrypoint, *words], environment)

    def execute(
        self, words: Sequence[str], environment: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a program of the image."""
        prefix = _AS_IF_NOT_ROOT if os.geteuid() == 0 and shutil.which("setpriv") else []
        return self._process([*prefix, *words], environment or {})

    def _process(
        self, words: Sequence[str], environment: Mapping[str, str]
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            words,
            cwd=self._directory,
            env={"PATH": f"{self._root}/venv/bin:{os.defpath}", "HOME": "/nonexistent"}
            | _PIP
            | self.environment
            | dict(environment),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def _inside(self, text: str) -> str:
        return _ABSOLUTE.sub(f"{self._root}/", text)

    def _copy(self, rest: str) -> None:
        *sources, target = rest.split()
        for source in sources:
            place = Path(self._inside(target))
            files = [path for path in self._context if path == source or path.startswith(f"{source}/")]
            assert files, f"COPY {source}: nothing that .dockerignore lets through"
            for path in files:
                # A directory's content goes into the target, a file beside others.
                goal = place / (Path(path).name if path == source else Path(path).relative_to(source))
                goal.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(ROOT / path, goal, follow_symlinks=False)

    def _run(self, rest: str) -> None:
        done = self._process(["/bin/sh", "-c", self._inside(rest)], {})
        assert done.returncode == 0, f"RUN {rest}\n{done.stdout}{done.stderr}"

    def _env(self, rest: str) -> None:
        self.environment |= dict(word.split("=", 1) for word in shlex.split(self._inside(rest)))

    def _workdir(self, rest: str) -> None:
        self._directory = Path(self._inside(rest))
        self._directory.mkdir(parents=True, exist_ok=True)

    def _healthcheck(self, rest: str) -> None:
        self.healthcheck = [self._inside(word) for word in json.loads(rest.partition("CMD ")[2])]

    def _set_entrypoint(self, rest: str) -> None:
        self._entrypoint = json.loads(rest)

    def _set_user(self, rest: str) -> None:
        self.user = rest

    def _set_ports(self, rest: str) -> None:
        self.ports = rest

    # An instruction that is missing here fails the test.
    _instructions: Mapping[str, Callable[[Image, str], None]] = {
        "ARG": lambda *_: None,
        "FROM": lambda *_: None,
        "COPY": _copy,
        "RUN": _run,
        "ENV": _env,
        "WORKDIR": _workdir,
        "EXPOSE": _set_ports,
        "HEALTHCHECK": _healthcheck,
        "USER": _set_user,
        "ENTRYPOINT": _set_entrypoint,
    }


def instructions(text: str) -> Iterator[tuple[str, str]]:
    """Name and rest of each instruction of a Dockerfile."""
    without_comments = re.sub(r"^\s*#.*\n", "", text, flags=re.MULTILINE)
    for line in without_comments.replace("\\\n", "").splitlines():
        if line.strip():
            name, _, rest = line.partition(" ")
            yield name, rest.strip()


def context() -> Iterator[str]:
    """Paths of the files that `.dockerignore` lets through to `docker build`."""
    rules = [
        (line.startswith("!"), line.removeprefix("!"))
        for line in (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
        if line and not line.startswith("#")
    ]
    tops = {Path(pattern).parts[0] for allowed, pattern in rules if allowed}
    for top in sorted(tops):
        place = ROOT / top
        for path in [place] if place.is_file() else place.rglob("*"):
            if (path.is_file() or path.is_symlink()) and _is_let_through(path.relative_to(ROOT), rules):
                yield str(path.relative_to(ROOT))


def _is_let_through(path: Path, rules: Sequence[tuple[bool, str]]) -> bool:
    """Whether the last rule that matches the path, or a directory that it is in, allows it."""
    names = [str(path), *map(str, path.parents)][:-1]
    allowed = True
    for allows, pattern in rules:
        patterns = {pattern, pattern.removeprefix("**/")}
        if any(fnmatch.fnmatchcase(name, each) for name in names for each in patterns) or (
            pattern.startswith("**/") and pattern[3:] in path.parts
        ):
            allowed = allows
    return allowed


def _make_base(root: Path) -> None:
    """A Python without packages of its own but the dependencies of the tests, and the programs that RUN needs."""
    venv.create(root / "venv", symlinks=True)
    (packages,) = root.glob("venv/lib/python3*/site-packages")
    # Not a site directory: the .pth file that leads from there to this working tree is not read.
    installed = [entry for entry in sys.path if entry.endswith("site-packages")]
    (packages / "dependencies.pth").write_text("\n".join(installed))
    _make_program(
        root / "venv/bin/pip",
        'case "$*" in *--require-hashes*) exit 0;; esac; exec python -m pip --disable-pip-version-check "$@"',
    )
    _make_program(root / "venv/bin/useradd", "exit 0")


def _make_program(path: Path, line: str) -> None:
    path.write_text(f"#!/bin/sh\n{line}\n")
    path.chmod(0o755)
