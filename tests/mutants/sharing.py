"""Mutants of transactions that jobs share."""

from tests.mutants.mutant import Mutant

_TESTS = "test_shared_transactions.py::test_"
_STOPS = "test_stops_of_shared_transactions.py::test_"
_HOOKS = "test_hooks_of_shared_transactions.py::test_"
_SHARED = "workers/context/shared.py"
_SHARING = "workers/process/sharing.py"

MUTANTS = (
    Mutant(
        "let a job commit the transaction that it shares",
        _SHARED,
        'return b"BEGIN", _GUARD.format(name=self._guard).encode(), begin',
        'return b"BEGIN", f"DECLARE {self._guard} CURSOR FOR SELECT 1".encode(), begin',
        (f"{_TESTS}a_job_that_ends_the_transaction_otherwise_costs_no_other_its_writes",),
    ),
    Mutant(
        "finish those jobs of a batch whose claims are current",
        "drain/tables/finishes.py",
        "SELECT 1 / (count(*) = %(count)s::bigint)::integer FROM recorded",
        "SELECT 1 / (count(*) <= %(count)s::bigint)::integer FROM recorded",
        (f"{_TESTS}a_stolen_claim_fails_the_batch_and_its_jobs_run_alone",),
    ),
    Mutant(
        "leave a job's settings to the next one",
        _SHARED,
        'return (f"RELEASE {self.savepoint}".encode(), *self._resets, begin)',
        'return (f"RELEASE {self.savepoint}".encode(), begin)',
        (f"{_TESTS}settings_of_a_job_end_with_it",),
    ),
    Mutant(
        "commit what a failed job has written",
        _SHARED,
        "            try:\n                connection.rollback()\n",
        "            try:\n                pass\n",
        (f"{_TESTS}a_failed_job_undoes_only_its_own_writes",),
    ),
    Mutant(
        "count a deadlock with the batch as a failure",
        _SHARING,
        "(undone or _is_from_database(cause))",
        "undone",
        (f"{_TESTS}an_error_of_the_database_may_be_the_fault_of_other_jobs",),
    ),
    Mutant(
        "charge jobs that wait for the commit with the death of their process",
        _SHARING,
        "            self._inbox.journal.commit(job.slot)\n",
        "",
        (f"{_TESTS}a_killed_process_costs_the_others_nothing",),
    ),
    Mutant(
        "take a commit in doubt for a commit",
        _SHARING,
        "is_durable=is_committed is True",
        "is_durable=True",
        (f"{_TESTS}a_commit_in_doubt_is_looked_up",),
    ),
    Mutant(
        "forget the jobs of a batch that was rolled back",
        _SHARING,
        "                again.append(job)\n                continue\n",
        "                continue\n",
        (f"{_TESTS}a_deferred_constraint_fails_only_its_job",),
    ),
    Mutant(
        "let a job share that has failed before",
        "workers/process/jobs.py",
        "self.options.commit == SHARED and claim.attempts == 1",
        "self.options.commit == SHARED",
        (f"{_TESTS}a_failed_job_undoes_only_its_own_writes",),
    ),
    Mutant(
        "send a COMMIT in a shared transaction",
        "workers/context/connection.py",
        "if isinstance(text, str) and _ENDS_TRANSACTION.match(text):",
        "if not isinstance(text, str):",
        (f"{_TESTS}what_would_end_the_transaction_is_refused_before_it_is_sent",),
    ),
    Mutant(
        "undo what SQLAlchemy believes uncommitted",
        "workers/context/connection.py",
        "elif not self.pending and self.savepoint != _KEPT:",
        "elif not self.pending:",
        (f"{_TESTS}sqlalchemys_connection_is_as_new_for_each_job",),
    ),
    Mutant(
        "leave SQLAlchemy's connection to the next job, however it is",
        _SHARING,
        "            or self._transaction.is_spent\n",
        "",
        (f"{_TESTS}sqlalchemys_connection_is_as_new_for_each_job",),
    ),
    Mutant(
        "wait forever for a lock of the own batch",
        _SHARED,
        '_IDLE = "2s"',
        '_IDLE = "0s"',
        (f"{_TESTS}a_job_that_waits_elsewhere_for_its_own_batch_is_freed",),
    ),
    Mutant(
        "leave a batch as the worker stops",
        "workers/process/job_runner.py",
        "        sharing.commit()\n        sharing.close()\n",
        "        sharing.close()\n",
        (f"{_STOPS}a_stopped_worker_awaits_the_running_job_and_commits_its_batch",),
    ),
    Mutant(
        "let the commit of a dead process wait on, with its locks",
        _SHARED,
        "*((_NOTICE_DEAD_CLIENT,) if notices_dead_client else ())",
        "*()",
        (f"{_STOPS}jobs_of_a_worker_killed_as_its_commit_waits_are_given_back",),
    ),
    Mutant(
        "believe a job that gave up because of undone writes",
        _SHARING,
        "is_own = isinstance(error, Dead) and not isinstance(job.interruption.ordered, Dead)",
        "is_own = False",
        (
            "test_job_runner.py::test_a_job_that_gave_up_in_an_undone_batch_runs_again_unless_stopped",
            f"{_HOOKS}hooks_are_called_once_for_jobs_that_run_again",
        ),
    ),
)
