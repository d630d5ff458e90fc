"""`make bench`: measure the parts in order, and write each to RESULTS.md as soon as it ends.

After an interruption or a failure, the next run measures the parts that are not done for this commit.
"""

from __future__ import annotations

import argparse
import sys
import traceback
from dataclasses import fields, replace
from pathlib import Path
from time import monotonic

from benchmarks import figures, servers
from benchmarks.parts import PARTS, Place, measure
from benchmarks.progress import Progress, commit, in_words
from benchmarks.sizes import SHORT, Sizes

HERE = Path(__file__).parent
SHORT_DIRECTORY = HERE / ".short"


def main() -> None:
    """Measure the parts that are not done; exit with 1 if any fails."""
    arguments = _arguments()
    place = _place(arguments)
    progress = Progress.load(place.directory / ".progress.json", commit(), again=arguments.again)
    wanted = [part for part in arguments.parts if place.kind in PARTS[part].kinds]
    left = [part for part in wanted if not progress.is_done(place.kind, part)]
    _announce(place.kind, progress, wanted, left)
    failed = [part for part in left if not _measure(part, place, progress)]
    for part in failed:
        print(f"failed: {part}; `make bench` measures it again", file=sys.stderr)
    sys.exit(1 if failed else 0)


def _measure(part: str, place: Place, progress: Progress) -> bool:
    """Measure one part; on failure, print the traceback and return False, so that the others still run."""
    figures.say(f"\n== {part}, on servers: {place.kind}")
    began = monotonic()
    try:
        measure(part, place)
    # exactness and crashes are also standalone programs, which exit on failure.
    except (Exception, SystemExit):  # noqa: BLE001
        traceback.print_exc()
        return False
    progress.ended(place.kind, part, monotonic() - began)
    figures.say(f"== {part} took {progress.last_time(place.kind, part)}; written to {place.results_file}")
    return True


def _announce(kind: str, progress: Progress, wanted: list[str], left: list[str]) -> None:
    """Print the parts to measure, and how long they took last time."""
    figures.say(f"commit {progress.commit or 'not known'}, servers: {kind}")
    for part in wanted:
        state = progress.last_time(kind, part) if part in left else "done for this commit"
        figures.say(f"  {part:16} {state}")
    known = [progress.seconds.get(f"{kind}:{part}") for part in left]
    total = in_words(sum(seconds or 0.0 for seconds in known))
    figures.say(f"last time, the {len(left)} parts took {total}" if all(known) and left else "")
    if len(left) < len(wanted):
        figures.say("--again also measures the parts that are done")


def _place(arguments: argparse.Namespace) -> Place:
    base = SHORT if arguments.short else Sizes()
    given = {field.name: getattr(arguments, field.name) for field in fields(Sizes)}
    sizes = replace(base, **{name: value for name, value in given.items() if value is not None})
    directory = arguments.directory or (SHORT_DIRECTORY if arguments.short else HERE)
    directory.mkdir(parents=True, exist_ok=True)
    return Place(directory, arguments.servers, sizes)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "--parts", nargs="+", choices=list(PARTS), default=list(PARTS), help="parts to measure, in this order"
    )
    parser.add_argument("--servers", choices=servers.KINDS, default=servers.EMBEDDED, help="kind of servers")
    parser.add_argument("--again", action="store_true", help="also measure the parts that are done")
    parser.add_argument(
        "--short", action="store_true", help=f"small sizes, as a smoke test; writes to {SHORT_DIRECTORY}"
    )
    parser.add_argument("--directory", type=Path, help="directory to write to")
    for field in fields(Sizes):
        parser.add_argument(
            f"--{field.name.replace('_', '-')}", type=type(field.default), help=f"{field.default:,}"
        )
    return parser.parse_args()


if __name__ == "__main__":
    main()
