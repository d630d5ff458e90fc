"""The thread that empties the hand: it finishes jobs in Postgres, many in one statement, and clears them in Redis."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

import psycopg

from drain.crashpoints import CrashPoint, reached
from drain.errors import UnavailableError
from drain.transitions import inflight
from drain.wire import Intake
from workers.database import Database
from workers.hand import Hand, Held
from workers.outcome import Finished, Outcome
from workers.recording import Recorder, is_news, log_finished
from workers.stores import REDIS, answering

log = logging.getLogger(__name__)

# What has ended waits for its like for so long, so that one statement does for all. A worker that is killed
# meanwhile leaves a journal; one whose machine dies repeats them.
_TOGETHER_SECONDS = 0.01
# Ids of hashes that could not be cleared while Redis was away.
_MOST_UNCLEARED = 100_000
_MORE = "; -v logs every one"


@dataclass(slots=True)
class Finisher:
    """Records outcomes, until `ended` is set and nothing is left.

    Attributes:
        hand: What to empty.
        intake: Where the hashes are.
        database: Where the jobs are; no other thread uses it.
        ended: Nothing more will end.
        finished, failed: How many so far.
    """

    hand: Hand
    intake: Intake
    database: Database
    ended: bool = False
    finished: int = 0
    failed: int = 0
    _recorder: Recorder = field(init=False)
    _uncleared: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._recorder = Recorder(self.database)

    def run(self) -> None:
        """Go on until nothing more will end, and all is recorded."""
        try:
            while not self.ended or self.hand.ended:
                if not self.hand.ended:
                    self.hand.done.wait()
                if not self.ended and self.hand.waits:
                    self.hand.full.wait(_TOGETHER_SECONDS)
                self._record([self.hand.ended.popleft() for _ in range(len(self.hand.ended))])
            self._clear([])
        finally:
            self.database.close()

    def clear_later(self, rq_id: str) -> None:
        """Clear the hash of a job that somebody else has recorded, with those of the next ones."""
        self._uncleared.append(rq_id)

    def count(self, word: str) -> None:
        """A job has been recorded, by somebody else or by us, with this word for what became of it."""
        if word == "finished":
            self.finished += 1
        elif word != "interrupted":
            self.failed += 1
        self.hand.journal.count(self.finished, self.failed)

    def _record(self, ended: Sequence[tuple[Held, Outcome]]) -> None:
        if not ended:
            return
        for held, _ in ended:
            held.lease.settling = True
        done = self._finish([held for held, result in ended if isinstance(result, Finished)])
        reached(CrashPoint.RECORDED)
        # What raises here ends the process: whoever comes after it sees in the journal what is left.
        for held, result in ended:
            if held.claim.id not in done:
                self._record_one(held, result)
            self.hand.forget(held)
        self.hand.room.ring()
        self._clear([held.rq_id for held, _ in ended])

    def _finish(self, ended: Sequence[Held]) -> set[int]:
        if not ended:
            return set()
        claims = [held.claim for held in ended]
        try:
            done = self.database.ask(lambda c: inflight.finish_many(c, claims))
        except psycopg.Error:
            # One of them cannot be finished: each is looked at by itself.
            return set()
        except UnavailableError as error:
            self.database.stores.leave(len(claims), error)
            return {claim.id for claim in claims}
        self.finished += len(done)
        self.hand.journal.count(self.finished, self.failed)
        if is_news(claims):
            log_finished([(held.claim, held.took) for held in ended if held.claim.id in done], _MORE)
        return done

    def _record_one(self, held: Held, result: Outcome) -> None:
        try:
            word = self._recorder.record(held.claim, result)
        except UnavailableError as error:
            log.debug("the outcome of job %d could not be recorded: %s", held.claim.id, error)
            self.database.stores.leave(1, error)
            return
        self.count(word)
        if word == "finished":
            log_finished([(held.claim, held.took)], _MORE)

    def _clear(self, rq_ids: list[str]) -> None:
        uncleared, self._uncleared = self._uncleared, []
        rq_ids = [*uncleared, *rq_ids]
        if not rq_ids:
            return
        try:
            with answering(self.database.stores, REDIS):
                self.intake.clear(rq_ids)
        except UnavailableError:
            # The next ones may find it again.
            self._uncleared = rq_ids[-_MOST_UNCLEARED:]
