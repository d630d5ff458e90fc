"""Runs the soak: `python -m tests.soak`, or `make soak`."""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from time import time

from programs.processes import ended_by_sigterm
from rich.console import Console

from benchmarks.soak import sections
from drain.errors import DrainError
from tests.soak import plots, report
from tests.soak.report import Result
from tests.soak.soak import soak

_INTERRUPTED = 130
# Of the tables, if not written to a terminal.
_WIDTH = 140


def main() -> int:
    """Run it; the exit code is 0 if everything was survived."""
    given = _arguments()
    console = Console(highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else _WIDTH)
    seed = int(time()) if given.seed is None else given.seed
    console.print(f"soak for {given.seconds:g} s; to repeat it: SOAK_SEED={seed}")
    try:
        with ended_by_sigterm(), ExitStack() as stack:
            directory = given.directory or Path(
                stack.enter_context(tempfile.TemporaryDirectory(prefix="soak-"))
            )
            result = soak(seed, given.seconds, directory, console.print, given.load)
    except DrainError as error:
        console.print(f"Error: {error}", markup=False)
        return 1
    except KeyboardInterrupt:
        console.print("interrupted; all processes have ended")
        return _INTERRUPTED
    report.conclude(console, result)
    if given.output:
        _write(given.output, result)
    return 0 if result.holds else 1


def _write(directory: Path, result: Result) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    summary = directory / "soak.json"
    summary.write_text(json.dumps(result.as_json(), indent=2) + "\n", encoding="utf-8")
    plots.draw(result.series, directory / "soak.png")
    (directory / "soak.md").write_text("\n\n".join(sections(summary)) + "\n", encoding="utf-8")


def _arguments() -> argparse.Namespace:
    environment = os.environ
    seed = environment.get("SOAK_SEED")
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument(
        "--seconds",
        type=float,
        default=float(environment.get("SOAK_SECONDS") or 60),
        help="how long the faults go on; SOAK_SECONDS",
    )
    parser.add_argument("--seed", type=int, default=int(seed) if seed else None, help="SOAK_SEED")
    parser.add_argument(
        "--load",
        type=float,
        default=float(environment.get("SOAK_LOAD") or 1),
        help="0.5: applications pause for twice as long; SOAK_LOAD",
    )
    parser.add_argument("--directory", type=Path, help="keep logs here")
    parser.add_argument(
        "--output",
        type=Path,
        default=environment.get("SOAK_OUTPUT"),
        help="directory for soak.md, soak.png and soak.json; SOAK_OUTPUT",
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
