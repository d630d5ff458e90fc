"""Ids in a queue's list that are none of our tracked ones: judged by the raw bytes of their call, never unpickled.

ours      a tracked delivery of this very database, under an older namespace
foreign   a tracked delivery of another database: left to the workers of that one
plain     a job of RQ's own, or of forward mode
gone      nothing is known of it: there is no such hash, or it holds no call
"""

from __future__ import annotations

import logging
import re
import time
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from time import monotonic
from typing import Any, NamedTuple
from uuid import UUID

import redis

from drain.wire.producer import ENTRY_POINT, NAMED

log = logging.getLogger(__name__)

# The calls that `push.tracked` writes: with the id and the installation, or with the id alone.
_ENTRY = re.escape(ENTRY_POINT.encode())
_NAME = rb"(?:%b|%b\.[^\n]{1,60})" % (_ENTRY, re.escape(NAMED.encode()))
_TRACKED = re.compile(
    rb"\(\x8c.(?P<name>%b)N(?:I(?P<decimal>\d{1,18})\n|\x8a\x05(?P<binary>.{5}))C\x10(?P<installation>.{16})\x86}t\.|"
    rb"\(V%b\nN\(I(?P<alone>\d{1,18})\nt\(dt\." % (_NAME, _ENTRY),
    re.DOTALL,
)
_LONGEST_CALL = 200
# Ids that are looked at together: a millisecond or two of Redis' time.
_PAGE = 500
# How far ours are looked for behind a whole page of ids of other databases, and how many ids at a time. By name alone:
# measured in milliseconds for each slice.
_SEARCHED = 100_000
_SLICE = 5000
# RQ keeps a failed job for a year.
_KEPT_SECONDS = 31_536_000
_REPORT_SECONDS = 600.0
# Refused jobs are reported one by one up to this number in each period, and then as a count.
_REPORT_PERIOD_SECONDS = 60.0
_REPORTS = 10
REFUSAL = "refused by drain work: only jobs of job-drain's tracked mode run in this queue (--only-tracked)"

# Does to each id, and its copies, what is said of it, if it is still in the list: another worker may have popped it
# meanwhile.
#
# KEYS: the list, the queue's registry of failed jobs. ARGV: now as text, until when the registry keeps a job,
# for how many seconds that is, the reason; then action, number of copies and id of each.
_SETTLE = """
local done = {}
for i = 5, #ARGV, 3 do
  local action, id = ARGV[i], ARGV[i + 2]
  local removed = redis.call('LREM', KEYS[1], ARGV[i + 1], id)
  if removed > 0 then
    done[#done + 1] = id
    local key = 'rq:job:' .. id
    if action == 'tail' then
      for _ = 1, removed do redis.call('RPUSH', KEYS[1], id) end
    elseif action == 'refuse' and redis.call('TYPE', key).ok == 'hash' then
      redis.call('HSET', key, 'status', 'failed', 'ended_at', ARGV[1], 'exc_info', ARGV[4])
      redis.call('EXPIRE', key, ARGV[3])
      redis.call('ZADD', KEYS[2], ARGV[2], id)
    end
  end
end
return done
"""


class Kind(StrEnum):
    """Whose an id is."""

    OURS = "ours"
    FOREIGN = "foreign"
    PLAIN = "plain"
    GONE = "gone"


class Verdict(NamedTuple):
    """What has been found out about an id.

    Attributes:
        kind: Whose it is.
        job_id: Of a tracked job, ours or another database's; 0 otherwise.
        installation: Of another database's job; "" if its version wrote none.
    """

    kind: Kind
    job_id: int = 0
    installation: str = ""


def read_call(data: bytes) -> tuple[str, None, tuple[int | bytes, ...], dict[str, object]] | None:
    """The name and the arguments of a tracked job's call, ours or another database's, without unpickling; else None."""
    match = _TRACKED.fullmatch(_inflated(data))
    if match is None:
        return None
    installation = match["installation"]
    name = (match["name"] or ENTRY_POINT.encode()).decode(errors="replace")
    return name, None, (_job_id(match), installation) if installation else (_job_id(match),), {}


def _job_id(match: re.Match[bytes]) -> int:
    binary = match["binary"]
    return int.from_bytes(binary, "little") if binary else int(match["decimal"] or match["alone"])


def judge(data: object, installation: str) -> Verdict:
    """Tell whose a job is by its call, as Redis holds it.

    Args:
        data: The field `data` of its hash; None or an error of Redis' where there is none.
        installation: UUID of our database.
    """
    if not isinstance(data, bytes) or not data:
        return Verdict(Kind.GONE)
    match = _TRACKED.fullmatch(_inflated(data))
    if match is None:
        return Verdict(Kind.PLAIN)
    theirs = str(UUID(bytes=match["installation"])) if match["installation"] else ""
    return Verdict(Kind.OURS if theirs == installation else Kind.FOREIGN, _job_id(match), theirs)


def _inflated(data: bytes) -> bytes:
    """The bytes before RQ compressed them, which it does when it saves a job; no more than a call of ours has."""
    if data.startswith(b"x"):
        try:
            return zlib.decompressobj().decompress(data, _LONGEST_CALL)
        except zlib.error:
            return data
    return data


class Strangers:
    """Judges and settles such ids for one worker.

    Args:
        client: The connection to Redis; what it raises is for the caller to translate.
    """

    def __init__(self, client: redis.Redis) -> None:
        self._redis = client
        self._settle = client.register_script(_SETTLE)
        self._reported_at: dict[str, float] = {}
        self._period_began = -_REPORT_PERIOD_SECONDS
        self._reports = self._unreported = 0

    def judge(self, rq_ids: Sequence[bytes], installation: str) -> list[Verdict]:
        """Tell whose these ids are, in one round trip."""
        with self._redis.pipeline(transaction=False) as pipeline:
            for rq_id in rq_ids:
                pipeline.hget(b"rq:job:" + rq_id, "data")
            return [judge(data, installation) for data in pipeline.execute(raise_on_error=False)]

    def sift(
        self, queue: str, ours: re.Pattern[bytes], installation: str, *, only_tracked: bool
    ) -> tuple[list[tuple[bytes, int]], bool]:
        """Clear the way for our jobs at the head of a list.

        Ids of other databases are moved behind all others, or stay where they are if there is nothing else. Where only
        tracked jobs run, plain ones are moved to RQ's registry of failed jobs, and ids without a job are dropped.

        Returns:
            Deliveries of ours under an older namespace, taken from the list, with their job ids; and whether nothing
            but ids of other databases is left at the head.
        """
        key = f"rq:queue:{queue}"
        page: Any = self._redis.lrange(key, 0, _PAGE - 1)
        copies = Counter(rq_id for rq_id in page if not ours.fullmatch(rq_id))
        unknown = list(copies)
        verdicts = dict(zip(unknown, self.judge(unknown, installation), strict=True))
        actions = {
            rq_id: action
            for rq_id, verdict in verdicts.items()
            if (action := _action(verdict.kind, only_tracked=only_tracked))
        }
        foreign = [rq_id for rq_id, verdict in verdicts.items() if verdict.kind is Kind.FOREIGN]
        stays = len(page) < _PAGE and set(page) <= {*foreign, *actions}
        # A page of nothing else goes behind the next one, which is looked at at once only if ours are further on.
        is_foreign = stays or (set(page) == set(foreign) and not self._is_further_on(key, ours))
        if not stays:
            actions |= dict.fromkeys(foreign, "tail")
        done = self._act(queue, actions, copies)
        if foreign:
            self._report_foreign(queue, foreign[0], verdicts[foreign[0]])
        self._report_refused(queue, [rq_id for rq_id in done if actions[rq_id] == "refuse"], "refused")
        self._report_refused(queue, [rq_id for rq_id in done if actions[rq_id] == "drop"], "dropped")
        taken = [(rq_id, verdicts[rq_id].job_id) for rq_id in done if actions[rq_id] == "take"]
        return taken, bool(foreign) and is_foreign

    def _is_further_on(self, key: str, ours: re.Pattern[bytes]) -> bool:
        """Whether an id that has our name stands behind the first page, as far as is searched."""
        for first in range(_PAGE, _SEARCHED, _SLICE):
            rq_ids: Any = self._redis.lrange(key, first, first + _SLICE - 1)
            if any(map(ours.fullmatch, rq_ids)):
                return True
            if len(rq_ids) < _SLICE:
                return False
        return False

    def remove(self, queue: str, rq_ids: Sequence[bytes], installation: str) -> int:
        """Take those of these ids from the list whose call names this installation; returns how many there were."""
        copies = Counter(rq_ids)
        verdicts = zip(copies, self.judge(list(copies), installation), strict=True)
        with self._redis.pipeline(transaction=False) as pipeline:
            for rq_id in [rq_id for rq_id, verdict in verdicts if verdict.installation == installation]:
                # From the tail, so that no copy is taken that is yet to be read.
                pipeline.lrem(f"rq:queue:{queue}", -copies[rq_id], rq_id)  # type: ignore[arg-type]
            return sum(pipeline.execute())

    def refuse(self, queue: str, rq_id: bytes) -> None:
        """Move a plain job of the list to RQ's registry of failed jobs."""
        self._report_refused(queue, self._act(queue, {rq_id: "refuse"}, {rq_id: 1}), "refused")

    def _act(self, queue: str, actions: dict[bytes, str], copies: Mapping[bytes, int]) -> list[bytes]:
        if not actions:
            return []
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        until = int(time.time()) + _KEPT_SECONDS
        words: list[Any] = [now, until, _KEPT_SECONDS, zlib.compress(REFUSAL.encode())]
        for rq_id, action in actions.items():
            words += [action, copies[rq_id], rq_id]
        done: Any = self._settle(keys=[f"rq:queue:{queue}", f"rq:failed:{queue}"], args=words)
        return list(done)

    def _report_foreign(self, queue: str, rq_id: bytes, verdict: Verdict) -> None:
        now = monotonic()
        if now - self._reported_at.get(queue, -_REPORT_SECONDS) < _REPORT_SECONDS:
            return
        self._reported_at[queue] = now
        log.error(
            "queue %s holds jobs of another database, such as %s of installation %s: they are left to its own "
            "workers; give the queues of the two databases different names",
            queue,
            shown(rq_id),
            verdict.installation or "unknown",
            extra={"event": "foreign_job", "queue": queue},
        )

    def _report_refused(self, queue: str, rq_ids: Sequence[bytes], word: str) -> None:
        what = "not tracked, now in RQ's FailedJobRegistry" if word == "refused" else "no such job"
        for place, rq_id in enumerate(rq_ids):
            now = monotonic()
            if now - self._period_began >= _REPORT_PERIOD_SECONDS:
                self._say_unreported()
                self._period_began, self._reports = now, 0
            if self._reports == _REPORTS:
                self._unreported += len(rq_ids) - place
                return
            self._reports += 1
            log.warning(
                "%s %s in queue %s: %s",
                word,
                shown(rq_id),
                queue,
                what,
                extra={"event": f"untracked_{word}", "queue": queue},
            )

    def _say_unreported(self) -> None:
        if self._unreported:
            log.warning(
                "refused or dropped %d more ids that are not tracked",
                self._unreported,
                extra={"event": "untracked"},
            )
        self._unreported = 0


def shown(rq_id: bytes) -> str:
    """An id that somebody else has made, for people to read."""
    return ascii(rq_id.decode(errors="replace"))[1:-1][:100]


def _action(kind: Kind, *, only_tracked: bool) -> str:
    if kind is Kind.OURS:
        return "take"
    if not only_tracked:
        return ""
    return {Kind.PLAIN: "refuse", Kind.GONE: "drop"}.get(kind, "")
