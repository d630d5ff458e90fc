"""Mutants of jobs that wait for others: looks, comparisons, retries and discards."""

from tests.mutants.mutant import Mutant

_EDGES = "drain/tables/edges.py"
_TESTS = "test_dependencies.py"

MUTANTS = (
    Mutant(
        "look without the transactions that ran at the last look",
        _EDGES,
        "(_LATER, _RAN)",
        "(_LATER,)",
        (f"{_TESTS}::test_an_end_that_commits_after_later_transactions_is_seen",),
    ),
    Mutant(
        "look only at the transactions that ran at the last look",
        _EDGES,
        "(_LATER, _RAN)",
        "(_RAN,)",
        (f"{_TESTS}::test_a_job_waits_until_its_predecessor_has_finished",),
    ),
    Mutant(
        "look past edges that are new",
        "drain/enqueuer/unblocker.py",
        "[*findings.children, *findings.died]",
        "[*findings.died]",
        (f"{_TESTS}::test_an_edge_to_a_finished_job_is_met",),
    ),
    Mutant(
        "unblock a job that waits for another one",
        "drain/tables/staged.py",
        "        AND (SELECT true FROM job_edges WHERE child_id = id AND {CHILD_WAITS} LIMIT 1) IS NULL) IS TRUE))",
        "        ) IS TRUE))",
        (f"{_TESTS}::test_a_job_waits_for_its_last_predecessor",),
    ),
    Mutant(
        "end the waiting of a child that a retry has just blocked again",
        _EDGES,
        " AND changed_xid = seen.changed_xid\n",
        "\n",
        (f"{_TESTS}::test_a_retry_that_commits_within_the_leaders_statement_stays_blocked",),
    ),
    Mutant(
        "wait for a child that another session has locked",
        _EDGES,
        "IS TRUE FOR UPDATE SKIP LOCKED",
        "IS TRUE FOR UPDATE",
        (f"{_TESTS}::test_a_child_that_another_session_has_locked_is_unblocked_later",),
    ),
    Mutant(
        "lead without a walk over the edges that were left",
        "drain/enqueuer/unblocker.py",
        "        self._walk_at = 0.0\n        self._pause",
        "        self._walk_at = inf\n        self._pause",
        (f"{_TESTS}::test_a_new_leader_finds_what_the_last_one_left",),
    ),
    Mutant(
        "retry a job without a note for the leader",
        "drain/tables/dead.py",
        "'met' END, changed_xid = pg_current_xact_id()",
        "'met' END",
        (f"{_TESTS}::test_a_retried_job_whose_predecessor_stays_dead_is_cancelled_again",),
    ),
    Mutant(
        "discard a job without a note for the leader",
        "drain/tables/dead.py",
        "UPDATE job_edges SET changed_xid = pg_current_xact_id()",
        "UPDATE job_edges SET changed_xid = changed_xid",
        (f"{_TESTS}::test_a_discarded_predecessor_never_holds",),
    ),
    Mutant(
        "cancel a job that is to be held",
        "drain/enqueuer/comparison.py",
        'if edge.on_failure == "cancel":',
        'if edge.on_failure != "run":',
        (f"{_TESTS}::test_each_edge_says_what_follows_a_death",),
    ),
    Mutant(
        "lock a child that was retried since it was read",
        _EDGES,
        '{these_rows(versions="xmin::text::bigint")}',
        "id = ANY (%(ids)s::bigint[])",
        (f"{_TESTS}::test_a_child_that_was_retried_since_it_was_read_waits_for_its_new_edges",),
    ),
    Mutant(
        "forward a job without a note for those that wait for it",
        "drain/tables/staged.py",
        "UPDATE job_edges SET on_failure = 'cancel', changed_xid = pg_current_xact_id()",
        "UPDATE job_edges SET changed_xid = changed_xid",
        (f"{_TESTS}::test_jobs_that_wait_for_one_of_a_forward_queue_are_cancelled",),
    ),
)
