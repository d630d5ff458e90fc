"""Mutants of the statements on claimed jobs: claims, leases, finishes and other outcomes, cancels, moves, retries."""

from tests.mutants.mutant import Mutant

MUTANTS = (
    Mutant(
        "claim a job through any of its deliveries",
        "drain/tables/claims.py",
        "AND job.next_run_at IS NULL AND (%(delivery)s::bigint IS NULL OR job.delivery = %(delivery)s)",
        "AND job.next_run_at IS NULL AND (%(delivery)s::bigint IS NULL OR job.delivery >= %(delivery)s)",
        ("test_claim.py::test_a_job_that_was_delivered_again_is_claimed_through_its_latest_delivery_alone",),
    ),
    Mutant(
        "claim a batch of jobs through any of their deliveries",
        "drain/tables/claims.py",
        '_THESE_DELIVERIES = these_pairs("delivery", "deliveries")',
        '_THESE_DELIVERIES = "id = ANY (%(ids)s::bigint[])"',
        ("test_claim.py::test_a_job_that_was_delivered_again_is_claimed_through_its_latest_delivery_alone",),
    ),
    Mutant(
        "claim a job that waits for its retry",
        "drain/tables/claims.py",
        "AND job.next_run_at IS NULL AND (%(delivery)s",
        "AND (%(delivery)s",
        ("test_claim.py::test_a_job_whose_next_attempt_is_not_due_is_refused",),
    ),
    Mutant(
        "claim a batch of jobs that wait for their retries",
        "drain/tables/columns.py",
        "NOT_WAITING = \"coalesce(next_run_at, '-infinity') = '-infinity'\"",
        "NOT_WAITING = \"coalesce(next_run_at, '-infinity') <= now()\"",
        ("test_claim.py::test_a_job_that_waits_is_claimed_by_nobody_before_the_leader_has_renumbered_it",),
    ),
    Mutant(
        "claim a job whose lease still holds",
        "drain/tables/claims.py",
        "(job.lease_expires_at IS NULL OR job.lease_expires_at < clock_timestamp()",
        "(job.lease_expires_at IS NULL OR job.claimed_at < clock_timestamp()",
        ("test_claim.py::test_a_claimed_job_is_refused_until_its_lease_is_over",),
    ),
    Mutant(
        "keep the fencing token of the claim before",
        "drain/tables/claims.py",
        "fencing_token = job.fencing_token + 1,",
        "fencing_token = greatest(job.fencing_token, 1),",
        ("test_claim.py::test_each_claim_raises_the_token_and_the_attempts_by_one",),
    ),
    Mutant(
        "keep the fencing tokens of the batch before",
        "drain/tables/claims.py",
        "    fencing_token = fencing_token + 1,\n",
        "    fencing_token = greatest(fencing_token, 1),\n",
        (
            "test_claim.py::test_a_batch_leaves_out_what_is_claimed_or_not_due_and_what_is_to_be_decided_singly",
        ),
    ),
    Mutant(
        "count a lease from the beginning of the transaction",
        "drain/tables/claims.py",
        "lease_expires_at = clock_timestamp() + make_interval(secs => found.lease_seconds)",
        "lease_expires_at = now() + make_interval(secs => found.lease_seconds)",
        ("test_claim.py::test_a_claim_within_a_long_transaction_still_starts_its_lease_now",),
    ),
    Mutant(
        "claim a job that another database has delivered",
        "drain/tables/claims.py",
        "%(installation)s = {_INSTALLATION}::text)",
        "%(installation)s <> '')",
        ("test_claim.py::test_a_claim_is_refused_for_another_queue_database_or_schema",),
    ),
    Mutant(
        "take a claim of another worker for a repeated one",
        "drain/tables/claims.py",
        "        OR %(again)s AND job.claimed_by = %(worker)s)\n",
        "        OR %(again)s)\n",
        ("test_claim.py::test_a_repeated_claim_takes_no_claim_of_another_worker",),
    ),
    Mutant(
        "bury a job on the attempt that it was promised",
        "drain/tables/claims.py",
        "0 < self.max_attempts < self.attempts and not self.failed_before",
        "0 < self.max_attempts < self.attempts",
        ("test_claim.py::test_a_job_that_failed_has_its_next_attempt_though_its_limit_is_lower_now",),
    ),
    Mutant(
        "run a job again after its worker has died on the last attempt",
        "drain/tables/claims.py",
        "0 < self.max_attempts < self.attempts and not self.failed_before",
        "self.attempts < 0 < self.max_attempts and not self.failed_before",
        ("test_claim.py::test_a_job_whose_worker_died_on_the_last_attempt_is_given_up_by_the_next_one",),
    ),
    Mutant(
        "let a crash of the server undo a claim",
        "drain/tables/claims.py",
        "        set_config('synchronous_commit',\n"
        "            replace(current_setting('synchronous_commit'), 'off', 'on'), true) AS durable\n",
        "        current_setting('synchronous_commit') AS durable\n",
        ("test_claim.py::test_a_claim_outlives_a_crash_of_a_server_that_commits_later_than_it_says",),
    ),
    Mutant(
        "let the sessions of workers commit without waiting for the disk",
        "workers/lease/database.py",
        '"plan_cache_mode": "force_generic_plan"}',
        '"plan_cache_mode": "force_generic_plan", "synchronous_commit": "off"}',
        ("test_leases.py::test_a_session_of_a_worker_waits_for_the_disk_as_the_server_says",),
    ),
    Mutant(
        "take the finish of another claim for this one's",
        "drain/tables/finishes.py",
        "    WHERE id = %s AND fencing_token = %s AND finished_at > now() - interval '1 day')\n",
        "    WHERE id = %s AND %s > 0 AND finished_at > now() - interval '1 day')\n",
        ("test_claim.py::test_a_job_is_finished_under_the_token_of_its_last_claim_alone",),
    ),
    Mutant(
        "ask whether a finish lasts without making it last",
        "drain/tables/finishes.py",
        "    pg_current_xact_id(), pg_logical_emit_message(true, 'drain', '')\"\"\"",
        '    1, 2"""',
        ("test_grouped_commits.py::test_who_asks_whether_a_finish_lasts_makes_it_last",),
    ),
    Mutant(
        "finish, extend and release a batch under any token",
        "drain/tables/leases.py",
        'THESE_CLAIMS = these_pairs("fencing_token", "tokens")',
        'THESE_CLAIMS = "id = ANY (%(ids)s::bigint[])"',
        ("test_claim.py::test_an_outcome_under_an_old_token_changes_nothing",),
    ),
    Mutant(
        "commit the writes of a job whose finish is refused",
        "drain/tables/finishes.py",
        'FINISH_OR_FAIL = "SELECT 1 / drain_finish(%s::bigint, %s::bigint)::integer"',
        'FINISH_OR_FAIL = "SELECT 1, drain_finish(%s::bigint, %s::bigint)::integer"',
        ("test_job_transactions.py::test_a_block_whose_lease_was_taken_over_is_rolled_back",),
    ),
    Mutant(
        "commit the writes of a job that keeps its result, though its finish is refused",
        "drain/tables/finishes.py",
        'RESULT_OR_FAIL = "SELECT 1 / drain_finish_with_result(',
        'RESULT_OR_FAIL = "SELECT 1, drain_finish_with_result(',
        (
            "test_results.py::test_a_transaction_of_a_worker_that_lost_its_claim_is_rolled_back_with_its_result",
        ),
    ),
    Mutant(
        "retry a job under an old token",
        "drain/tables/outcomes.py",
        "pg_catalog.jsonb_build_object('at', clock_timestamp())\n"
        'WHERE id = %(id)s AND fencing_token = %(token)s\n"""',
        "pg_catalog.jsonb_build_object('at', clock_timestamp())\n"
        'WHERE id = %(id)s AND fencing_token >= %(token)s\n"""',
        ("test_claim.py::test_an_outcome_under_an_old_token_changes_nothing",),
    ),
    Mutant(
        "bury a job under an old token",
        "drain/tables/outcomes.py",
        "DELETE FROM inflight_jobs WHERE id = %(id)s AND fencing_token = %(token)s RETURNING *",
        "DELETE FROM inflight_jobs WHERE id = %(id)s AND fencing_token >= %(token)s RETURNING *",
        ("test_claim.py::test_an_outcome_under_an_old_token_changes_nothing",),
    ),
    Mutant(
        "take an attempt off twice when a deferral is sent again",
        "drain/tables/outcomes.py",
        "    attempts = attempts - CASE WHEN lease_expires_at IS NULL OR batched THEN 0 ELSE 1 END,\n"
        "    batched = false\n",
        "    attempts = attempts - CASE WHEN batched THEN 0 ELSE 1 END,\n    batched = false\n",
        ("test_defer_and_dead.py::test_a_deferral_whose_answer_was_lost_counts_once",),
    ),
    Mutant(
        "count an interruption twice when it is sent again",
        "drain/tables/outcomes.py",
        "interruptions = interruptions + CASE WHEN lease_expires_at IS NULL THEN 0 ELSE 1 END,",
        "interruptions = interruptions + 1,",
        ("test_interruptions.py::test_an_interruption_whose_answer_was_lost_is_counted_once",),
    ),
    Mutant(
        "extend the lease of a job that was given back",
        "drain/tables/leases.py",
        "WHERE {THESE_CLAIMS} AND next_run_at IS NULL AND claimed_at IS DISTINCT FROM failed_at",
        "WHERE {THESE_CLAIMS} AND next_run_at IS NULL",
        ("test_leases.py::test_a_heartbeat_that_comes_when_the_job_has_been_given_back_changes_nothing",),
    ),
    Mutant(
        "give a claim back a second time",
        "drain/tables/leases.py",
        "WHERE {THESE_CLAIMS} AND NOT {NOT_CLAIMED}\n",
        "WHERE {THESE_CLAIMS}\n",
        ("test_leases.py::test_a_claim_that_is_given_back_twice_has_one_attempt_taken_off",),
    ),
    Mutant(
        "cancel jobs in flight before staged ones",
        "drain/jobs/cancelling.py",
        "    rows = callers.execute(connection, cancellations.staged_statement(selection), parameters)\n"
        "    failpoint(FailurePoint.CANCELLED)\n"
        "    rows += callers.execute(connection, cancellations.inflight_statement(selection), parameters)\n",
        "    rows = callers.execute(connection, cancellations.inflight_statement(selection), parameters)\n"
        "    failpoint(FailurePoint.CANCELLED)\n"
        "    rows += callers.execute(connection, cancellations.staged_statement(selection), parameters)\n",
        ("test_cancel.py::test_a_job_that_the_leader_moves_meanwhile_is_not_missed",),
    ),
    Mutant(
        "cancel a job without a new fencing token",
        "drain/tables/cancellations.py",
        '"least(fencing_token, 9223372036854775806) + 1" if',
        '"least(fencing_token, 9223372036854775806)" if',
        ("test_cancel.py::test_a_revived_job_cannot_be_finished_by_the_worker_from_before_the_cancel",),
    ),
    Mutant(
        "move a job that a worker runs",
        "drain/tables/changes.py",
        "WHERE {rows} AND lease_expires_at IS NULL ORDER BY id FOR UPDATE",
        "WHERE {rows} ORDER BY id FOR UPDATE",
        ("test_move.py::test_what_waits_is_moved_and_what_runs_is_counted",),
    ),
    Mutant(
        "move a delivered job without calling it back",
        "drain/tables/changes.py",
        "coalesce(%(new_run_at)s::timestamptz, next_run_at, now())",
        "coalesce(%(new_run_at)s::timestamptz, next_run_at)",
        ("test_move.py::test_a_delivered_job_is_called_back_and_delivered_in_its_new_queue",),
    ),
    Mutant(
        "revive a dead job with its first fencing token",
        "drain/tables/dead.py",
        "1000000000000000000 THEN fencing_token ELSE 0 END",
        "1000000000000000000 THEN 0 ELSE 0 END",
        ("test_claim.py::test_a_worker_from_the_former_life_of_a_revived_job_can_record_nothing",),
    ),
)
