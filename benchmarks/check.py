"""`make bench-check`: compare the ratios with the recorded ones.

    python -m benchmarks.check [--servers debian] [--groups noop update] [--rounds 12]
    python -m benchmarks.check --record [--servers debian] [--rounds 9]

Rounds continue until each ratio has a verdict, up to a maximum. Groups whose ratios all have one are not measured
again. The exit code is 0 if all ratios hold, 1 if any fell, and 3 if the machine is too noisy to tell.
`benchmarks/check_figures.py` defines the ratios, `benchmarks/verdict.py` the verdict.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING

from benchmarks import figures, servers, verdict
from benchmarks.check_figures import groups
from benchmarks.peers import environments, peers, results
from benchmarks.peers.bench import bench
from benchmarks.progress import in_words
from benchmarks.verdict import Verdict

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from benchmarks.check_figures import Group
    from benchmarks.peers.bench import Bench
    from drain.embedded import Services

    # Ratios by name, one for each round.
    Ratios = Mapping[str, Sequence[float]]

ROUNDS = 12
RECORD_ROUNDS = 9
RECORD_TITLE = (
    "# Ratios that `make bench-check` compares with\n\n"
    "Short runs, alternating with a yardstick; higher is better. A ratio of processor time divides the "
    "yardstick's total time per job by ours: the total, or that of one component. Each bound of the median is wrong "
    f"with a probability of at most {verdict.DOUBT:.0%}."
)


def main() -> None:
    arguments = _arguments()
    began = monotonic()
    with servers.running(arguments.servers) as started:
        figures.say(f"servers: {arguments.servers}, {servers.title(started)}")
        if arguments.record:
            figures.say(table(record(started, arguments.servers, arguments.rounds or RECORD_ROUNDS)))
            sys.exit(0)
        recorded = results.load(arguments.servers).check
        if not recorded:
            sys.exit(
                f"no ratios are recorded for these servers: run `{_RECORD} --servers {arguments.servers}`"
            )
        found = _measure(started, arguments, recorded)
    verdicts = {name: _judge(name, ratios, recorded) for name, ratios in found.items()}
    figures.say("\n" + compared(found, recorded))
    _conclude(list(verdicts.values()), monotonic() - began)
    sys.exit(verdict.exit_code(list(verdicts.values())))


def record(started: Services, kind: str, rounds: int, path: Path = results.PATH) -> dict[str, list[float]]:
    """Measure all groups, and record the ratios of each round for this kind of servers."""
    _install()
    found: dict[str, list[float]] = {}
    with bench(started) as place:
        chosen = groups()
        for number in range(rounds):
            figures.say(f"round {number + 1} of {rounds}")
            _one_round(place, chosen, number, found)
    recorded = results.load(kind, path)
    recorded.check = found
    results.save(recorded, kind, path)
    return found


def table(found: Ratios) -> str:
    rows = [(name, f"{statistics.median(ratios):.3g}", _bounds(ratios)) for name, ratios in found.items()]
    return figures.table(("ratio", "median", "bounds"), rows)


def compared(found: Ratios, recorded: Ratios) -> str:
    """Format measured ratios, recorded ratios and verdicts as a table."""
    rows = []
    for name, ratios in found.items():
        before = statistics.median(recorded[name]) if name in recorded else None
        rows.append(
            (
                name,
                f"{statistics.median(ratios):.3g}",
                _bounds(ratios),
                f"{before:.3g}" if before else "",
                f"{verdict.of_recorded(ratios, before):.2f}" if before else "",
                str(len(ratios)),
                _judge(name, ratios, recorded).value if before else "not recorded",
            )
        )
    header = ("ratio", "median", "bounds", "recorded", "of it", "rounds", "verdict")
    return figures.table(header, rows)


def _measure(started: Services, arguments: argparse.Namespace, recorded: Ratios) -> dict[str, list[float]]:
    """Measure rounds of the groups that have no verdict yet."""
    _install()
    found: dict[str, list[float]] = {}
    left = [group for group in groups() if group.name in arguments.groups]
    with bench(started) as place:
        for number in range(arguments.rounds or ROUNDS):
            figures.say(f"round {number + 1}: {', '.join(group.name for group in left)}")
            measured = _one_round(place, left, number, found)
            left = [
                group
                for group in left
                if Verdict.CANNOT_TELL
                in [_judge(name, found[name], recorded) for name in measured[group.name]]
            ]
            if not left:
                break
    return found


def _one_round(
    place: Bench, left: Sequence[Group], number: int, found: dict[str, list[float]]
) -> dict[str, list[str]]:
    """Measure one round and add its ratios; returns the names of the ratios by group."""
    names = {}
    for group in left:
        ratios = group.measure(place, number)
        names[group.name] = list(ratios)
        for name, ratio in ratios.items():
            found.setdefault(name, []).append(ratio)
            figures.say(f"    {name}: {ratio:.3g}")
    return names


def _judge(name: str, ratios: Sequence[float], recorded: Ratios) -> Verdict:
    # A new ratio has no record to compare with.
    if name not in recorded:
        return Verdict.HOLDS
    return verdict.verdict(ratios, recorded[name])


def _bounds(ratios: Sequence[float]) -> str:
    low, high = verdict.interval(ratios)
    return "" if low is None or high is None else f"{low:.3g} – {high:.3g}"


def _conclude(verdicts: Sequence[Verdict], seconds: float) -> None:
    counts = ", ".join(f"{verdicts.count(each)} {each.value}" for each in Verdict)
    figures.say(f"\n{counts}; {in_words(seconds)}")
    if Verdict.FELL in verdicts:
        figures.say(f"FELL: a ratio is below {verdict.ALLOWED} of its record.")
    elif Verdict.CANNOT_TELL in verdicts:
        figures.say("CANNOT TELL: the rounds differ too much on this machine. Repeat when it is quiet.")


def _install() -> None:
    environments.make({peers.PGQUEUER.environment})


_RECORD = "python -m benchmarks.check --record"


def _arguments() -> argparse.Namespace:
    names = [group.name for group in groups()]
    parser = argparse.ArgumentParser(prog="python -m benchmarks.check", description=__doc__)
    parser.add_argument("--servers", choices=servers.KINDS, default=servers.EMBEDDED, help="kind of servers")
    parser.add_argument("--groups", nargs="+", choices=names, default=names, help="groups to compare")
    parser.add_argument("--record", action="store_true", help="record the ratios in benchmarks/peers.json")
    parser.add_argument("--rounds", type=int, help=f"rounds at most, {ROUNDS}; to record: {RECORD_ROUNDS}")
    return parser.parse_args()


if __name__ == "__main__":
    main()
