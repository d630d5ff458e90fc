"""Mutants of jobs that wait for others: looks, comparisons, retries and discards."""

from tests.mutants.mutant import Mutant

_EDGES = "drain/tables/edges.py"
_LOOKS = "drain/tables/edge_looks.py"
_TESTS = "test_dependencies.py"
_FLOWS, _GROWTH, _REFUSED, _BY = (
    *("test_ends_of_flows.py", "test_growing_flows.py", "test_refused_members.py", "test_standing_by.py"),
)

MUTANTS = (
    Mutant(
        "look without the transactions that ran at the last look",
        _LOOKS,
        "(_LATER, _RAN)",
        "(_LATER,)",
        (f"{_TESTS}::test_an_end_that_commits_after_later_transactions_is_seen",),
    ),
    Mutant(
        "look only at the transactions that ran at the last look",
        _LOOKS,
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
        "LIMIT 1) IS NULL)\n        IS TRUE",
        "LIMIT 1) IS NULL OR true)\n        IS TRUE",
        (f"{_TESTS}::test_a_job_waits_for_its_last_predecessor",),
    ),
    Mutant(
        "wait for a child that another session has locked",
        _EDGES,
        "    FOR UPDATE SKIP LOCKED\n), met AS",
        "    FOR UPDATE\n), met AS",
        (f"{_TESTS}::test_a_page_leaves_out_a_child_that_another_session_has_locked",),
    ),
    Mutant(
        "forget a finished job whose child another session has locked",
        "drain/enqueuer/comparison.py",
        "return replace(compared, awaited=awaited)",
        "return compared",
        (f"{_TESTS}::test_a_child_that_another_session_has_locked_is_unblocked_later",),
    ),
    Mutant(
        "lead without a walk over the edges that were left",
        "drain/enqueuer/unblocker.py",
        "        self._walk_at = 0.0\n        self._eager",
        "        self._walk_at = inf\n        self._eager",
        (f"{_TESTS}::test_a_new_leader_finds_what_the_last_one_left",),
    ),
    Mutant(
        "retry a job without a note for the leader",
        "drain/tables/dead.py",
        "'met' END,\n        changed_xid = pg_current_xact_id()",
        "'met' END",
        (f"{_TESTS}::test_a_retried_job_whose_predecessor_stays_dead_is_cancelled_again",),
    ),
    Mutant(
        "discard a job without a note for the leader",
        "drain/tables/dead.py",
        "UPDATE job_edges SET changed_xid = pg_current_xact_id()\n    WHERE awaited_id",
        "UPDATE job_edges SET changed_xid = changed_xid\n    WHERE awaited_id",
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
    Mutant(
        "let a flow's end be run by workers",
        "drain/tables/staged.py",
        "job_name = '{MARKER}' AS is_marker",
        "false AS is_marker",
        (f"{_FLOWS}::test_a_flow_ends_after_its_last_member",),
    ),
    Mutant(
        "join a flow without a lock on its end",
        "schema.sql",
        "    WHERE job.id = flow AND (job.scheduled_at = '9999-12-29 00:00:00+00') IS TRUE FOR SHARE;",
        "    WHERE job.id = flow AND (job.scheduled_at = '9999-12-29 00:00:00+00') IS TRUE;",
        (f"{_GROWTH}::test_a_job_that_has_joined_but_not_committed_holds_the_end",),
    ),
    Mutant(
        "join a flow that has ended",
        "schema.sql",
        "IS TRUE FOR SHARE;\n    IF NOT FOUND THEN",
        "IS TRUE FOR SHARE;\n    IF false THEN",
        (f"{_GROWTH}::test_nothing_joins_a_flow_that_has_ended_or_is_cancelled",),
    ),
    Mutant(
        "join a flow without its callback for complete",
        "schema.sql",
        "array_remove(ARRAY[complete, undoing], NULL)",
        "array_remove(ARRAY[undoing], NULL)",
        (f"{_GROWTH}::test_a_member_adds_one_in_the_transaction_that_finishes_it",),
    ),
    Mutant(
        "let a member wait for its flow's callbacks",
        "schema.sql",
        "AND edge.on_failure = 'hold' AND given.parent >= edge.child_id\n",
        "AND edge.on_failure = 'hold' AND given.parent = edge.child_id\n",
        (f"{_REFUSED}::test_members_wait_only_for_members_and_for_earlier_jobs",),
    ),
    Mutant(
        "let a job that waits join any flow",
        "schema.sql",
        "own.child_id = given.id AND own.parent_id >= flow\n",
        "own.child_id = given.id AND own.parent_id = flow\n",
        (f"{_REFUSED}::test_a_job_that_waits_joins_only_where_its_predecessors_are",),
    ),
    Mutant(
        "let a job wait for a later one",
        "schema.sql",
        "    WHERE given.parent >= given.child LIMIT 1;",
        "    WHERE given.parent = given.child LIMIT 1;",
        (f"{_REFUSED}::test_no_job_waits_for_itself_or_a_later_one",),
    ),
    Mutant(
        "run a job that stands by although the awaited one finished",
        "drain/enqueuer/comparison.py",
        'if outcome == "finished" and edge.on_failure == "only":',
        'if outcome == "finished" and edge.on_failure == "never":',
        (f"{_BY}::test_a_job_that_stands_by_runs_after_a_death_alone",),
    ),
    Mutant(
        "meet the edge of a job that stands by at a finish",
        _EDGES,
        "WHERE on_failure <> 'only' AND (awaited_id",
        "WHERE (awaited_id",
        (f"{_BY}::test_a_job_that_stands_by_runs_after_a_death_alone",),
    ),
    Mutant(
        "take a superseded job for a finished one",
        _EDGES,
        "THEN (SELECT superseded_by IS NULL FROM",
        "THEN (SELECT true FROM",
        (f"{_TESTS}::test_the_job_that_stands_for_a_superseded_one_is_awaited",),
    ),
    Mutant(
        "hear no death within a flow",
        "drain/enqueuer/comparison.py",
        'if edge.on_failure == "hold" and outcomes[edge.awaited] == "dead"',
        'if edge.on_failure == "held" and outcomes[edge.awaited] == "dead"',
        (f"{_FLOWS}::test_the_first_death_runs_its_callback_once",),
    ),
    Mutant(
        "forget a callback of deaths that another session has locked",
        "drain/enqueuer/comparison.py",
        "left | missed, found",
        "left, found",
        (f"{_FLOWS}::test_a_callback_of_deaths_that_another_session_has_locked_runs_later",),
    ),
    Mutant(
        "pass on the death that holds an ordinary job",
        _EDGES,
        "WHERE job.id = given.id AND (job_name = '{MARKER}') IS TRUE)",
        "WHERE job.id = given.id AND (job_name <> '') IS TRUE)",
        (f"{_BY}::test_only_markers_pass_on_a_death_that_holds_them",),
    ),
)
