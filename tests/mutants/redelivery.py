"""Mutants of redelivery: what is pushed again and when, recovery, failing queues, pauses."""

from tests.mutants.mutant import Mutant

MUTANTS = (
    Mutant(
        "redeliver a job whose lease still holds",
        "drain/tables/redeliveries.py",
        '"lease_expires_at < now() AND lease_expires_at',
        "\"lease_expires_at < now() + interval '1 day' AND lease_expires_at",
        ("test_redelivery.py::test_a_job_whose_lease_ran_out_is_pushed_again_and_no_other",),
    ),
    Mutant(
        "redeliver a retry before its time",
        "drain/tables/redeliveries.py",
        '"queue = %(queue)s AND next_run_at <= now()"',
        '"queue = %(queue)s AND next_run_at IS NOT NULL"',
        ("test_redelivery.py::test_a_job_whose_retry_is_due_is_pushed_again_and_no_other",),
    ),
    Mutant(
        "redeliver a job under its old number",
        "drain/tables/redeliveries.py",
        "SET delivery = number, lease_expires_at = NULL",
        "SET delivery = numbered.previous_delivery, lease_expires_at = NULL",
        ("test_redelivery.py::test_the_hash_of_the_delivery_that_was_replaced_is_gone",),
    ),
    Mutant(
        "wait for a row that a worker is writing",
        "drain/tables/redeliveries.py",
        "WHERE {condition} {but_paused} ORDER BY {order} LIMIT %(limit)s FOR UPDATE SKIP LOCKED",
        "WHERE {condition} {but_paused} ORDER BY {order} LIMIT %(limit)s FOR UPDATE",
        ("test_redelivery.py::test_a_job_that_its_worker_is_writing_is_passed_over",),
    ),
    Mutant(
        "recover only what was never pushed, though Redis has lost its memory",
        "drain/enqueuer/redelivery.py",
        "self._deliveries.pushed_up_to if remembered else 0",
        "self._deliveries.pushed_up_to",
        (
            "test_redelivery.py::test_a_redis_that_lost_its_memory_while_nobody_led_gets_all_that_waits_again_at_once",
        ),
    ),
    Mutant(
        "mark Redis as complete before recovery has pushed",
        "drain/enqueuer/redelivery.py",
        "        remembered = self._redis.remembers()\n",
        "        remembered = self._redis.remembers()\n        self._redis.mark()\n",
        (
            "test_redelivery.py::test_a_leader_that_dies_as_it_fills_a_redis_that_lost_its_memory_leaves_the_rest_to_the_next",
        ),
    ),
    Mutant(
        "take a Redis in recovery for one that remembers",
        "drain/wire/namespace_guard.py",
        "return owner is not None and not owner.recovers",
        "return owner is not None",
        (
            "test_two_databases.py::test_a_take_over_removes_the_ids_of_the_database_that_is_gone_and_no_others_and_pushes_what_was_refused",
        ),
    ),
    Mutant(
        "hand out the numbers of a redelivery a second time",
        "drain/enqueuer/renumbering.py",
        "                self._deliveries.record(jobs[-1].delivery)\n",
        "",
        ("test_redelivery.py::test_what_was_numbered_anew_and_not_pushed_is_pushed_by_the_next_leader",),
    ),
    Mutant(
        "redeliver without a grace what a worker has just popped",
        "drain/enqueuer/lost_deliveries.py",
        "elif now - suspicion.since < self._lost_after_seconds:",
        "elif now < suspicion.since:",
        (
            "test_redelivery.py::test_jobs_that_somebody_popped_and_nobody_claimed_are_pushed_again_after_a_grace",
        ),
    ),
    Mutant(
        "take the head of a list for a lost delivery",
        "drain/enqueuer/lost_deliveries.py",
        "is None else lowest_listed - 1",
        "is None else lowest_listed",
        ("test_redelivery.py::test_what_waits_in_its_list_is_left_there",),
    ),
    Mutant(
        "never find a delivery lost from the middle of a list",
        "drain/enqueuer/oldest_deliveries.py",
        "dict.fromkeys(self._looked_at & deliveries.queues, self._next_number) | oldest",
        "dict.fromkeys(self._looked_at & deliveries.queues, self._next_number)",
        ("test_oldest_deliveries.py::test_each_scan_finds_the_lowest_number_of_each_queue",),
    ),
    Mutant(
        "push all retries of a failing queue at once",
        "drain/enqueuer/failing_queues.py",
        "return None if self.trial is None else 1",
        "return None",
        (
            "test_failing_queues.py::test_of_a_failing_queue_one_retry_is_let_through_and_no_other_while_it_is_under_way",
        ),
    ),
    Mutant(
        "block a failing queue behind a job that kills its worker",
        "drain/enqueuer/failing_queues.py",
        "trial.job_id = None if trial.job_id in job_ids else trial.job_id",
        "trial.job_id = trial.job_id if trial.job_id in job_ids else None",
        (
            "test_failing_queues.py::test_when_the_one_on_trial_loses_its_worker_the_next_one_is_let_through_beside_it",
        ),
    ),
    Mutant(
        "ignore pauses without an end",
        "drain/tables/pauses.py",
        "AND (pause.until IS NULL OR pause.until > now())",
        "AND pause.until > now()",
        (
            "test_pauses.py::test_what_is_delivered_of_a_paused_queue_waits_and_is_delivered_again_once_it_is_resumed",
        ),
    ),
    Mutant(
        "drain a paused queue",
        "drain/admission/admission.py",
        "if self.paused.queue(queue):\n            return 0\n        if self._has_rules(queue):",
        "if self._has_rules(queue):",
        ("test_pauses.py::test_staged_jobs_of_a_paused_queue_stay_staged",),
    ),
    Mutant(
        "give a claim of a paused queue back to other workers",
        "drain/tables/leases.py",
        "WHEN {IS_PAUSED} OR {_HAS_RATE} THEN",
        "WHEN {_HAS_RATE} THEN",
        (
            "test_pauses.py::test_a_job_that_a_worker_gives_back_during_a_pause_waits_and_no_other_worker_starts_it",
        ),
    ),
    Mutant(
        "redeliver jobs whose lease is over without asking for a token",
        "drain/enqueuer/redelivery.py",
        "ruled = self.enqueuer.admission.ruled",
        "ruled = ()",
        (
            "test_admission_of_redelivery.py::test_jobs_whose_worker_died_begin_again_at_the_rate_of_their_queue",
        ),
    ),
    Mutant(
        "renumber a retry that has gone to another queue",
        "drain/tables/redeliveries.py",
        "coalesce(next_run_at, 'infinity') <= now() AND queue = %(queue)s",
        "coalesce(next_run_at, 'infinity') <= now() AND queue = queue",
        (
            "test_admission_of_redelivery.py::test_a_retry_that_is_moved_or_paused_after_it_was_chosen_is_left_out",
        ),
    ),
    Mutant(
        "renumber a retry that has been paused",
        "drain/tables/redeliveries.py",
        "statement = REDELIVER_CHOSEN_BUT_PAUSED if but_paused else REDELIVER_CHOSEN",
        "statement = REDELIVER_CHOSEN",
        (
            "test_admission_of_redelivery.py::test_a_retry_that_is_moved_or_paused_after_it_was_chosen_is_left_out",
        ),
    ),
    Mutant(
        "scan for lost deliveries above all that were given back",
        "drain/enqueuer/oldest_deliveries.py",
        "self._whole_scans = Pacer()",
        "self._whole_scans = Pacer(300.0)",
        (
            "test_oldest_deliveries.py::test_a_claim_that_was_given_back_and_whose_id_is_lost_is_pushed_again_after_the_grace",
        ),
    ),
)
