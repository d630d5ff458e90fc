"""Mutants of worker processes: decisions, leases, transactions of jobs, the journal, recovery, the supervisor."""

from tests.mutants.mutant import Mutant

MUTANTS = (
    Mutant(
        "retry a job that has failed on its last attempt",
        "workers/execution/decision.py",
        "if claim.max_attempts and claim.attempts >= claim.max_attempts:",
        "if claim.max_attempts and claim.attempts > claim.max_attempts:",
        ("test_decision.py::test_a_job_that_failed_for_the_last_time_is_dead",),
    ),
    Mutant(
        "record a refused outcome as if it had been accepted",
        "workers/execution/recorder.py",
        "if answer is not None and answer is not False:",
        "if answer is not None:",
        ("test_claim.py::test_a_worker_whose_lease_was_taken_over_records_nothing",),
    ),
    Mutant(
        "retry a job that has failed after its own commit",
        "workers/execution/attempt.py",
        "    if attempt.finished:\n        return AlreadyFinished(",
        "    if attempt.finished and isinstance(result, Finished):\n        return AlreadyFinished(",
        (
            "test_job_transactions.py::test_a_job_that_raises_after_its_commit_stays_finished_and_somebody_is_told",
        ),
    ),
    Mutant(
        "finish a job whose transaction is still open",
        "workers/execution/attempt.py",
        "if attempt.in_transaction and isinstance(result, Finished):",
        "if attempt.in_transaction and isinstance(result, Failed):",
        (
            "test_job_transactions.py::test_a_transaction_that_is_left_open_fails_the_job_instead_of_losing_what_it_wrote",
        ),
    ),
    Mutant(
        "let a job begin a second transaction after its finish",
        "workers/context/finish_guard.py",
        "if attempt.finished or attempt.in_transaction:",
        "if attempt.in_transaction:",
        ("test_job_transactions.py::test_a_second_transaction_is_refused_and_the_job_stays_finished",),
    ),
    Mutant(
        "forget a transaction that was thrown away",
        "workers/context/finish_guard.py",
        "attempt.in_transaction = never_ended",
        "attempt.in_transaction = False",
        ("test_job_transactions.py::test_a_transaction_that_is_thrown_away_fails_the_job_too",),
    ),
    Mutant(
        "let a job commit before its finish",
        "workers/context/guarded.py",
        "        if attempt is None:\n            raise too_early()\n",
        "        if attempt is None:\n            return attempt\n",
        (
            "test_job_transactions.py::test_whoever_would_commit_a_psycopg_transaction_earlier_is_refused_with_nothing_written",
        ),
    ),
    Mutant(
        "let a forked child end the transaction of its parent",
        "workers/context/inherited.py",
        "    if not _owners:\n        return\n",
        "    if _owners:\n        return\n",
        ("test_job_transactions.py::test_a_child_that_leaves_the_block_ends_nothing_of_its_parents",),
    ),
    Mutant(
        "finish a job that has committed in SQL",
        "workers/context/guarded.py",
        "self._committed_early = True",
        "self._committed_early = False",
        (
            "test_job_transactions.py::test_a_job_that_commits_in_sql_fails_and_what_it_writes_afterwards_is_rolled_back",
        ),
    ),
    Mutant(
        "commit each statement of a job's transaction by itself",
        "workers/context/connection.py",
        "        self.autocommit = False\n        self.cursor_factory",
        "        self.autocommit = True\n        self.cursor_factory",
        ("test_job_transactions.py::test_a_block_that_raises_leaves_nothing_and_is_tried_again",),
    ),
    Mutant(
        "group the commits of a worker that runs one job at a time",
        "workers/context/connection.py",
        "waits=not attempt.groups_commit, result=attempt.result",
        "waits=False, result=attempt.result",
        ("test_grouped_commits.py::test_a_worker_that_runs_one_job_at_a_time_waits_for_each_commit",),
    ),
    Mutant(
        "take a grouped commit for a durable one",
        "workers/process/outcome_batch.py",
        "elif isinstance(outcome, AlreadyFinished) and not outcome.is_durable:",
        "elif isinstance(outcome, AlreadyFinished) and outcome.is_durable:",
        (
            "test_finisher.py::test_a_job_whose_finish_is_refused_or_undone_by_a_crash_does_not_count_as_finished",
        ),
    ),
    Mutant(
        "count jobs as finished whose finish was refused",
        "workers/process/outcome_batch.py",
        "            if job.claim.id in recorded:\n",
        "            if job.claim.id:\n",
        (
            "test_finisher.py::test_a_job_whose_finish_is_refused_or_undone_by_a_crash_does_not_count_as_finished",
        ),
    ),
    Mutant(
        "lend a connection on that a job has changed",
        "workers/context/guarded.py",
        "return self._settings() == self._as_opened and not is_ended(self)",
        "return not is_ended(self)",
        ("test_job_transactions.py::test_what_a_job_sets_on_its_connection_is_not_there_for_the_next",),
    ),
    Mutant(
        "let a claim run out while its job runs",
        "workers/lease/lease.py",
        "self.beat_at = asked_at + self.heartbeat_seconds",
        "self.beat_at = NEVER",
        ("test_leases.py::test_a_job_that_runs_for_longer_than_its_lease_keeps_it",),
    ),
    Mutant(
        "report a lost lease to a job whose finish was not answered",
        "workers/lease/extension.py",
        "if finishes.is_finished(connection, claim):",
        "if lease.cancelled:",
        (
            "test_job_transactions.py::test_a_heartbeat_after_a_commit_whose_answer_was_lost_does_not_say_that_the_lease_is_lost",
        ),
    ),
    Mutant(
        "claim a job that this process still runs",
        "workers/process/claimer.py",
        "if each.job_id is not None and each.job_id not in known}",
        "if each.job_id is not None}",
        ("test_lagging_replicas.py::test_a_process_does_not_claim_a_job_again_that_it_still_runs",),
    ),
    Mutant(
        "recover jobs of a dead process without their salts",
        "workers/handover/journal.py",
        "salt = _NO_SALT if claim.salt is None else claim.salt",
        "salt = _NO_SALT",
        ("test_journal.py::test_it_tells_how_far_each_job_is",),
    ),
    Mutant(
        "note a grouped commit in the journal as a finish",
        "workers/process/inbox.py",
        "            self.journal.commit(job.slot)\n",
        "            self.journal.finish(job.slot)\n",
        (
            "test_finisher.py::test_the_journal_says_of_a_job_that_has_finished_itself_that_it_may_be_finished",
        ),
    ),
    Mutant(
        "note a job that has raised as finished",
        "workers/handover/journal.py",
        "    def end(self, slot: int) -> None:\n"
        '        """Note that the function raised: if the process dies, the job runs again."""\n'
        "        self._write(slot + _STATE_AT, _STATE_AND_TIME.pack(_CLAIMED, _NEVER))\n",
        "    def end(self, slot: int) -> None:\n"
        '        """Note that the function of a job has raised."""\n'
        "        self._write(slot + _STATE_AT, _STATE_AND_TIME.pack(_FINISHED, _NEVER))\n",
        ("test_journal.py::test_it_tells_how_far_each_job_is",),
    ),
    Mutant(
        "overwrite the jobs that a dead process has left",
        "workers/handover/journal.py",
        "free = [number for number, (*_, progress, _) in enumerate(self._slots()) if not progress]",
        "free = [number for number, (*_, progress, _) in enumerate(self._slots())]",
        ("test_journal.py::test_what_a_child_writes_its_parent_reads_and_the_next_child_does_not_overwrite",),
    ),
    Mutant(
        "let a job that hangs run for ever",
        "workers/handover/journal.py",
        "progress == _RUNNING and kill_at < now for",
        "progress == _CLAIMED and kill_at < now for",
        ("test_journal.py::test_only_what_runs_is_overdue_and_nothing_that_is_left_behind",),
    ),
    Mutant(
        "finish for a dead process a job whose commit was lost",
        "workers/handover/recovery.py",
        "progress=Progress.FINISHED if finished else Progress.CLAIMED",
        "progress=Progress.FINISHED if finished is not None else Progress.CLAIMED",
        ("test_lost_commits.py::test_the_successor_of_a_dead_process_finishes_no_job_whose_commit_was_lost",),
    ),
    Mutant(
        "run a job again that has ended in a dead process",
        "workers/handover/recovery.py",
        "    if entry.progress is Progress.FINISHED:\n        recorder.record(",
        "    if entry.progress is Progress.COMMITTED:\n        recorder.record(",
        (
            "test_lost_commits.py::test_the_successor_of_a_dead_process_finishes_ended_jobs_and_charges_only_the_running_one",
        ),
    ),
    Mutant(
        "charge the neighbours of the job that has killed its process",
        "workers/handover/recovery.py",
        "            if entry.progress is not Progress.CLAIMED:\n",
        "            if entry.progress is not Progress.NONE:\n",
        (
            "test_lost_commits.py::test_the_successor_of_a_dead_process_finishes_ended_jobs_and_charges_only_the_running_one",
        ),
    ),
    Mutant(
        "drop outcomes that wait when the worker ends",
        "workers/process/finisher.py",
        "while not self._is_last_batch or inbox.outcomes:",
        "while not self._is_last_batch:",
        ("test_finisher.py::test_outcomes_that_were_added_before_the_stop_are_recorded",),
    ),
    Mutant(
        "start a worker process after a stop signal",
        "workers/supervisor/supervisor.py",
        "            if self._stops and not always:\n",
        "            if self._stops and always:\n",
        ("test_supervisor.py::test_no_process_is_forked_once_a_stop_signal_has_come",),
    ),
    Mutant(
        "leave the jobs of a process that was killed as it stopped",
        "workers/supervisor/supervisor.py",
        "return is_last and not any(slot.pid or slot.needs_recovery for slot in self._slots)",
        "return is_last and not any(slot.pid for slot in self._slots)",
        ("test_batches.py::test_a_worker_that_is_killed_while_it_stops_leaves_nothing_behind",),
    ),
    Mutant(
        "retire a worker process that a job has ended with exit code 0",
        "workers/supervisor/reaper.py",
        "if code == DONE and (slot.journal.resigned or stopping):",
        "if code == DONE:",
        ("test_supervisor.py::test_a_process_that_exits_with_0_is_replaced_unless_it_has_resigned",),
    ),
)
