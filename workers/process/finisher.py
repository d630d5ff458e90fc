"""The thread that empties the hand: it finishes jobs in Postgres, many in one statement, and clears them in Redis."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

import psycopg

from drain.errors import UnavailableError
from drain.failpoints import FailurePoint, failpoint
from drain.tables import outcomes
from drain.wire import Consumer
from workers.execution.death import Death
from workers.execution.outcome import Finished, Outcome
from workers.execution.recorder import Recorder, is_news, log_finished
from workers.execution.rq_books import RQBooks
from workers.lease.database import Database
from workers.process.inbox import ClaimedJob, Inbox
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
        books: What RQ is to be told of them.
    """

    inbox: Inbox
    consumer: Consumer
    database: Database
    ended: bool = False
    finished: int = 0
    failed: int = 0
    books: RQBooks = field(init=False)
    _recorder: Recorder = field(init=False)
    # RQ id and queue of each.
    _uncleared: list[tuple[str, str]] = field(default_factory=list)
    _unfinished: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._recorder = Recorder(self.database)
        self.books = RQBooks(self.inbox.told.ring)

    def run(self) -> None:
        """Go on until nothing more will end, and all is recorded."""
        try:
            while not self.ended or self.inbox.ended:
                if not self.inbox.ended:
                    self.inbox.done.wait()
                if not self.ended and self.inbox.waits:
                    self.inbox.full.wait(_TOGETHER_SECONDS)
                self._record([self.inbox.ended.popleft() for _ in range(len(self.inbox.ended))])
            self._clear([])
        finally:
            self.database.close()

    def end(self, rq_id: str, queue: str, word: str, death: Death | None) -> None:
        """A job has been recorded, by somebody else or by us, with this word for what became of it.

        Its hash is cleared with those of the next ones, or kept for RQ to show a dead one as failed.
        """
        if word == "finished":
            self.finished += 1
        elif word != "interrupted":
            self.failed += 1
        self.inbox.journal.count(self.finished, self.failed)
        if death is not None and self.books.died(rq_id, death):
            return
        # What depends on one that somebody else has, or that is dead, is not released.
        if word == "finished":
            self._uncleared.append((rq_id, queue))
        else:
            self._unfinished.append(rq_id)

    def leave(self) -> None:
        """Count a job that somebody else has: its hash is not ours to clear."""
        self.failed += 1
        self.inbox.journal.count(self.finished, self.failed)

    def _record(self, ended: Sequence[tuple[ClaimedJob, Outcome]]) -> None:
        if not ended:
            return
        for held, _ in ended:
            held.lease.ending = True
        finished = [held for held, result in ended if isinstance(result, Finished)]
        done = self._finish(finished)
        failpoint(FailurePoint.RECORDED)
        # What raises here ends the process: whoever comes after it sees in the journal what is left.
        for held, result in ended:
            if done is None and isinstance(result, Finished):
                self._unfinished.append(held.rq_id)
            elif done is None or held.claim.id not in done:
                self._record_one(held, result)
        self._clear([(held.rq_id, held.claim.queue) for held in finished if done and held.claim.id in done])
        # Only now: what the journal holds no longer, nobody clears after a death.
        for held, _ in ended:
            self.inbox.forget(held)
        self.inbox.room.ring()

    def _finish(self, ended: Sequence[ClaimedJob]) -> set[int] | None:
        """Finish those that can be finished together; None if the database is away."""
        if not ended:
            return set()
        claims = [held.claim for held in ended]
        try:
            done = self.database.ask(lambda c: outcomes.finish_many(c, claims))
        except psycopg.Error:
            # One of them cannot be finished: each is looked at by itself.
            return set()
        except UnavailableError as error:
            self.database.stores.leave(len(claims), error)
            return None
        self.finished += len(done)
        self.inbox.journal.count(self.finished, self.failed)
        if is_news(claims):
            log_finished([(held.claim, held.took) for held in ended if held.claim.id in done], _MORE)
        return done

    def _record_one(self, held: ClaimedJob, result: Outcome) -> None:
        try:
            word = self._recorder.record(held.claim, result)
        except UnavailableError as error:
            log.debug("the outcome of job %d could not be recorded: %s", held.claim.id, error)
            self.database.stores.leave(1, error)
            self._unfinished.append(held.rq_id)
            return
        self.end(held.rq_id, held.claim.queue, word, self._recorder.last_death())
        if word == "finished":
            log_finished([(held.claim, held.took)], _MORE)

    def _clear(self, ended: list[tuple[str, str]]) -> None:
        uncleared, self._uncleared = self._uncleared, []
        unfinished, self._unfinished = self._unfinished, []
        ended = [*uncleared, *ended]
        if not ended and not unfinished:
            return
        try:
            with answering(self.database.stores, REDIS):
                awaited = self.consumer.clear([rq_id for rq_id, _ in ended])
                if unfinished:
                    self.consumer.clear_unless_awaited(unfinished)
            queues = dict(ended)
            for rq_id in awaited:
                self.books.finished(rq_id, queues[rq_id])
        except UnavailableError:
            # The next ones may find it again.
            self._uncleared = ended[-_MOST_UNCLEARED:]
            self._unfinished = unfinished[-_MOST_UNCLEARED:]
