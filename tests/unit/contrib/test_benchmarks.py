"""`make bench`: its parts, how far it has come, and where their figures go."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import __main__ as bench, figures, goals, parts, servers
from benchmarks.peers import environments, killed, killed_busy, peers, report, results, run, work
from benchmarks.peers.delay import Delay
from benchmarks.peers.rate import Run
from benchmarks.peers.results import Delays, Rates, Results
from benchmarks.progress import Progress
from benchmarks.sizes import Sizes


@pytest.fixture
def place(tmp_path: Path) -> parts.Place:
    return parts.Place(tmp_path, servers.EMBEDDED, Sizes())


def run_bench(
    monkeypatch: pytest.MonkeyPatch, directory: Path, failing: set[str], *options: str
) -> list[str]:
    """Run `python -m benchmarks` with parts that only note their names; returns these."""
    measured: list[str] = []

    def measure(part: str, place: parts.Place) -> None:
        measured.append(part)
        if part in failing:
            raise SystemExit(1)
        place.write(part, [f"# {part}"])

    words = ["benchmarks", "--directory", str(directory), "--parts", "drain", "held", "plain", *options]
    monkeypatch.setattr(sys, "argv", words)
    monkeypatch.setattr(bench, "measure", measure)
    monkeypatch.setattr(bench, "commit", lambda: "abc")
    with pytest.raises(SystemExit) as ended:
        bench.main()
    assert ended.value.code == bool(failing)
    return measured


def test_a_failed_part_keeps_the_others_and_is_measured_again_next_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_bench(monkeypatch, tmp_path, {"held"}) == ["drain", "held", "plain"]
    assert "failed: held" in capsys.readouterr().err
    written = (tmp_path / "RESULTS.md").read_text(encoding="utf-8")
    assert "# drain" in written
    assert "# plain" in written
    assert run_bench(monkeypatch, tmp_path, set()) == ["held"]
    assert run_bench(monkeypatch, tmp_path, set()) == []
    assert run_bench(monkeypatch, tmp_path, set(), "--again") == ["drain", "held", "plain"]


def test_each_kind_of_servers_has_its_own_parts_and_sections(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    run_bench(monkeypatch, tmp_path, set())
    assert run_bench(monkeypatch, tmp_path, set(), "--servers", "debian") == ["drain", "held", "plain"]
    written = (tmp_path / "RESULTS.md").read_text(encoding="utf-8")
    assert written.index("# held\n") < written.index("# held, on Debian's servers\n")


def test_a_run_prints_its_expected_duration_before_it_starts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    progress = Progress(tmp_path / ".progress.json", "another commit")
    progress.ended(servers.EMBEDDED, "held", 612)
    run_bench(monkeypatch, tmp_path, set())
    first, *_ = capsys.readouterr().out.split("==")
    assert "held             10 min" in first
    assert "drain            not known" in first


def test_parts_measured_at_another_commit_do_not_count_as_done(tmp_path: Path) -> None:
    path = tmp_path / "progress"
    Progress(path, "abc").ended("embedded", "drain", 5)
    assert Progress.load(path, "abc").is_done("embedded", "drain")
    assert not Progress.load(path, "abc").is_done("debian", "drain")
    assert not Progress.load(path, "def").is_done("embedded", "drain")
    assert not Progress.load(path, "abc", again=True).is_done("embedded", "drain")


def test_a_part_is_replaced_in_place_and_handwritten_text_stays(place: parts.Place) -> None:
    place.results_file.write_text("<!-- minutes -->\nby hand\n\n<!-- plain -->\n# old\n", encoding="utf-8")
    place.write("plain", ["# new"])
    place.write("drain", ["# drained"])
    text = place.results_file.read_text(encoding="utf-8")
    assert "# old" not in text
    assert text.index("# drained") < text.index("# new") < text.index("by hand")


def test_parts_without_a_given_order_keep_their_order(tmp_path: Path) -> None:
    path = tmp_path / "results"
    path.write_text("<!-- b -->\nb\n\n<!-- a -->\na\n", encoding="utf-8")
    assert figures.merge(path, {"c": ["c"]}) == "<!-- b -->\nb\n\n<!-- a -->\na\n\n<!-- c -->\nc\n"


def some_results() -> Results:
    one = Run(10, 100.0, 99.0, 5.0, 80.0, 0.0, {"PostgreSQL": 2.0}, 0.1)
    delay = Delay(2000, 2000, 1.0, 2.0, 8.0, 20.0)
    return Results(
        rates=[Rates(peer.name, name, [one]) for name, measured in run.WORKS.items() for peer in measured],
        delays=[Delays(peer.name, each, [delay]) for each in run.PER_SECOND for peer in peers.ALL],
        killed=[
            killed.Killed(system.name, moment, 1, killed.DONE, 4.0)
            for system in killed.SYSTEMS
            for moment in (work.BEFORE, work.AFTER)
        ],
        killed_busy=[killed_busy.KilledBusy("Graphile Worker, batched", 524, 24, 1500, 20, 0)],
        ratios={"a": [1.0]},
    )


def test_each_kind_of_servers_keeps_its_own_figures(tmp_path: Path) -> None:
    path = tmp_path / "peers.json"
    results.save(some_results(), servers.EMBEDDED, path)
    results.save(Results(machine="another"), servers.DEBIAN, path)
    assert results.load(servers.EMBEDDED, path) == some_results()
    assert results.load(servers.DEBIAN, path) == Results(machine="another")


def test_tables_without_figures_are_left_out() -> None:
    assert "## A job of one UPDATE" in "".join(report.sections(some_results(), "a.png", "b.png"))
    assert "## A job" not in "".join(report.sections(Results(), "a.png", "b.png"))


def test_a_goal_against_a_peer_is_compared_round_by_round() -> None:
    found = some_results()
    found.rates = [each for each in found.rates if each.work == run.UPDATE]
    update = found.rates_of(run.UPDATE)
    fast = Run(10, 300.0, 99.0, 5.0, 80.0, 0.0)
    for name in (peers.DRAIN, peers.DRAIN_PSYCOPG):
        update[name].runs.insert(0, fast)
    for name in (peers.PGQUEUER.name, peers.DRAMATIQ.name):
        update[name].runs[:] = [fast, fast]
    (goal,) = (
        each
        for each in goals.goals(found)
        if each.what == "one UPDATE, `transaction()`, compared with PgQueuer"
    )
    assert goal.measured == [1.0, 100 / 300]
    assert not goal.is_reached


def test_wal_is_a_goal_once_it_was_measured() -> None:
    found = some_results()
    wal = "WAL of such a job from stage to finish"
    assert wal not in {goal.what for goal in goals.goals(found)}
    ours = found.rates_of(run.NOOP)[peers.DRAIN].runs
    ours[:] = [replace(each, wal_bytes=1300.0) for each in ours]
    (goal,) = (goal for goal in goals.goals(found) if goal.what == wal)
    assert not goal.is_reached
    assert goal.measured == [1300.0]


def test_only_systems_that_keep_up_at_two_thousand_commits_a_second_are_goals() -> None:
    found = some_results()
    behind = next(each for each in found.delays if (each.peer, each.per_second) == ("PgQueuer", 2000))
    behind.runs[:] = [Delay(1300, 1300, 1.0, 0.5, 1.0, 2.0)]
    beside = [each.what for each in goals.goals(found) if "which keeps up" in each.what]
    assert any("Dramatiq" in what for what in beside)
    assert not any("PgQueuer" in what for what in beside)


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ((1, killed.DONE), (1, killed.DONE), "exactly once"),
        ((1, killed.DONE), (2, killed.DONE), "at least once"),
        ((0, killed.GONE), (1, killed.GONE), "at most once"),
        ((0, "`doing`"), (1, "`doing`"), "at most once; a person has to look"),
        ((1, killed.DONE), (1, "`doing`"), "once; a person has to look"),
    ],
)
def test_a_systems_guarantee_is_derived_from_both_kill_moments(
    before: tuple[int, str], after: tuple[int, str], expected: str
) -> None:
    found = some_results()
    name = killed.SYSTEMS[0].name
    moments = zip((work.BEFORE, work.AFTER), (before, after), strict=True)
    found.killed[:2] = [killed.Killed(name, moment, *seen, 1.0) for moment, seen in moments]
    row = next(line for line in killed.table(found).splitlines() if line.startswith(f"| {name} |"))
    assert f"| {expected} |" in row


@pytest.mark.parametrize(
    ("name", "after", "expected"),
    [
        ("Graphile Worker", "`locked`", "at least once, after 4 hours"),
        ("pg-boss", "`active`", "at least once, after 15 minutes"),
        ("pg-boss, transactional", killed.DONE, "exactly once, after 15 minutes"),
    ],
)
def test_a_job_under_a_long_claim_counts_as_run_again(name: str, after: str, expected: str) -> None:
    found = some_results()
    found.killed = [
        killed.Killed(name, work.BEFORE, 0, "`active`", 75.0),
        killed.Killed(name, work.AFTER, 1, after, 75.0),
    ]
    assert f"| {expected} |" in killed.table(found)


def test_systems_that_no_goal_names_take_part_in_two_rounds() -> None:
    systems = [(each, each.name) for each in peers.ALL]
    rounds = [[name for _, name in run._taking_part(systems, number)] for number in range(3)]
    assert rounds[0] == rounds[1] == [name for _, name in systems]
    assert rounds[2] == [
        "job-drain",
        "RQ, SimpleWorker",
        "PgQueuer",
        "Dramatiq",
        "Graphile Worker, batched",
        "pg-boss, batched",
    ]


def test_a_system_added_since_the_kills_were_measured_has_no_row_yet() -> None:
    found = some_results()
    (new, *_), found.killed = [killed.SYSTEMS[-1]], found.killed[:-2]
    rows = [line.split(" | ")[0] for line in killed.table(found).splitlines()]
    assert f"| {killed.SYSTEMS[0].name}" in rows
    assert f"| {new.name}" not in rows


def test_figures_recorded_before_a_part_existed_are_still_read(tmp_path: Path) -> None:
    path = tmp_path / "peers.json"
    results.save(some_results(), servers.EMBEDDED, path)
    kept = json.loads(path.read_text(encoding="utf-8"))
    del kept[servers.EMBEDDED]["killed_busy"]
    path.write_text(json.dumps(kept), encoding="utf-8")
    assert results.load(servers.EMBEDDED, path).killed_busy == []


def test_a_killed_busy_worker_has_a_row_with_the_validity_of_its_claims() -> None:
    (row,) = [line for line in killed_busy.table(some_results()).splitlines() if "Graphile" in line]
    assert row == "| Graphile Worker, batched | 524 | 24 | 1,500 | 20 | 0 | 4 hours |"


def test_packages_of_nodejs_are_pinned_exactly_and_named_with_their_peers() -> None:
    pinned = (environments.HERE / "requirements" / "node.json").read_text(encoding="utf-8")
    versions = json.loads(pinned)["dependencies"]
    assert [version for version in versions.values() if not re.fullmatch(r"\d+(\.\d+)+", version)] == []
    assert f"graphile-worker {versions['graphile-worker']}" in peers.versions()
    assert f"pg-boss {versions['pg-boss']}" in peers.versions()
    assert not any("graphile" in each for each in peers.versions(peers.IN_PYTHON))
