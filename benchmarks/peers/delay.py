"""From commit to start: idle workers, and single jobs committed at a steady rate."""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from time import monotonic, sleep
from typing import TYPE_CHECKING

from benchmarks.peers import peers, work

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.peers.bench import Bench
    from benchmarks.peers.peers import Peer

# Enough for 2,000 commits a second that take 3 ms each.
_THREADS = 8
_WARM_UP_JOBS = 200
_REST_SECONDS = 0.5


@dataclass(frozen=True)
class Delay:
    """One run.

    Attributes:
        committed_per_second: Rate of the producer.
        started_per_second: Rate of the workers.
        started_of_committed: Fraction of the commits whose jobs had started when the run ended.
        p50: Median delay of the started jobs, in milliseconds.
        p99: The same, 99th percentile.
        p999: The same, 99.9th percentile.
    """

    committed_per_second: float
    started_per_second: float
    started_of_committed: float
    p50: float
    p99: float
    p999: float

    def in_words(self) -> str:
        return (
            f"p50 {self.p50:.1f} ms, p99 {self.p99:.1f} ms; "
            f"{self.committed_per_second:,.0f} committed and {self.started_per_second:,.0f} started a second"
        )


def measure(bench: Bench, peer: Peer, per_second: int, seconds: float) -> Delay:
    """Commit single jobs for `seconds`; a peer that falls behind gets at most as long again."""
    bench.reset(peer)
    bench.forget()
    # Wait until both processes are up and have imported everything.
    bench.fill(peer, "noop", _WARM_UP_JOBS)
    with bench.running(peer.programs(bench.services.redis_url, peers.PROCESSES)):
        bench.wait_for_jobs(_WARM_UP_JOBS, 10)
        sleep(_REST_SECONDS)
        bench.produce(peer, per_second, seconds, _THREADS)
        committed = array("d", (bench.directory / work.COMMITS).read_bytes())
        wanted = sum(1 for at in committed if at)
        deadline = monotonic() + seconds
        while len(started := starts(bench)) < wanted and monotonic() < deadline:
            sleep(0.1)
    return _delay(committed, started)


def starts(bench: Bench) -> dict[int, float]:
    path = bench.directory / work.STARTS
    if not path.exists():
        return {}
    # If a job runs twice, its first start counts.
    read = sorted(work.START.iter_unpack(path.read_bytes()), key=lambda start: -start[1])
    return {int(number): at for number, at in read}


def _delay(committed: Sequence[float], starts: dict[int, float]) -> Delay:
    commits = sorted(at for at in committed if at)
    waited = sorted(at - committed[number] for number, at in starts.items() if committed[number])
    if not waited:
        raise RuntimeError("no job was started")
    began = sorted(starts.values())
    return Delay(
        committed_per_second=_per_second(commits),
        started_per_second=_per_second(began),
        started_of_committed=len(waited) / len(commits),
        p50=_percentile(waited, 0.5),
        p99=_percentile(waited, 0.99),
        p999=_percentile(waited, 0.999),
    )


def _per_second(times: Sequence[float]) -> float:
    return (len(times) - 1) / max(times[-1] - times[0], 1e-6)


def _percentile(ordered: Sequence[float], part: float) -> float:
    """Percentile in milliseconds; 0 if the start came before its COMMIT returned."""
    return max(0.0, ordered[min(len(ordered) - 1, round(part * (len(ordered) - 1)))]) * 1000
