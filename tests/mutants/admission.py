"""Mutants of the rules of queues: limits, rates, keys, turns, order, unique keys."""

from tests.mutants.mutant import Mutant

MUTANTS = (
    Mutant(
        "admit one job more than the limit of a queue",
        "drain/admission/allowances.py",
        "free = self._rules.running - self._running.total if self._rules.running else _NO_LIMIT",
        "free = self._rules.running + 1 - self._running.total if self._rules.running else _NO_LIMIT",
        ("test_limits.py::test_no_more_jobs_of_a_queue_run_than_its_limit",),
    ),
    Mutant(
        "forget under a limit what an earlier leader has admitted",
        "drain/admission/keyed_queue.py",
        "            self._running.rebuild()\n",
        "            self._running.look()\n",
        ("test_limits.py::test_the_next_leader_counts_what_runs_already",),
    ),
    Mutant(
        "let retries pass a limit",
        "drain/admission/keyed_queue.py",
        "            self._begin(job_id, self._retries.key_of(job_id))\n",
        "            self._retries.key_of(job_id)\n",
        ("test_admission_under_changes.py::test_a_retry_that_is_delivered_again_takes_a_place_and_a_token",),
    ),
    Mutant(
        "fill the buckets of a new leader",
        "drain/admission/keyed_queue.py",
        "        self._allowances.refill(self._connection)\n",
        "",
        ("test_limits.py::test_the_next_leader_exceeds_no_rate",),
    ),
    Mutant(
        "count an unknown share of a rate as unused",
        "drain/admission/buckets.py",
        "self._others_full_at = now + missing",
        "self._others_full_at = now",
        ("test_buckets.py::test_what_is_not_known_of_the_time_before_counts_as_taken",),
    ),
    Mutant(
        "take no token from the bucket of a key",
        "drain/admission/allowances.py",
        "self.key_buckets.take(key, 1, now)",
        "self.key_buckets.take(key, 0, now)",
        ("test_limits.py::test_no_more_jobs_of_a_key_begin_than_its_rate_allows",),
    ),
    Mutant(
        "forget a bucket that is in debt",
        "drain/admission/buckets.py",
        "full_at = max(now, self._full_at.get(key, self._others_full_at))",
        "full_at = now",
        ("test_buckets.py::test_in_no_time_more_begin_than_the_burst_and_the_rate_allow",),
    ),
    Mutant(
        "serve heavy keys less often than light ones",
        "drain/admission/turns.py",
        "self._set(key, tag + 1 / self._weights.get(key, 1))",
        "self._set(key, tag + self._weights.get(key, 1))",
        ("test_turns.py::test_a_key_has_as_many_turns_as_its_weight_says_within_a_twentieth",),
    ),
    Mutant(
        "let a key make up for the turns that it was idle",
        "drain/admission/turns.py",
        "self._set(key, max(self._now, self._ended.get(key, 0.0)))",
        "self._set(key, self._ended.get(key, 0.0))",
        ("test_turns.py::test_a_key_that_was_idle_has_no_turns_to_make_up_for",),
    ),
    Mutant(
        "keep the turns of a batch that was rolled back",
        "drain/admission/turns.py",
        "            else:\n                self._set(key, tag)\n        if before is not None:",
        "            elif key not in self.waiting:\n                self._set(key, tag)\n"
        "        if before is not None:",
        ("test_turns.py::test_turns_of_a_selection_that_was_rolled_back_are_undone",),
    ),
    Mutant(
        "count rows of a batch that was rolled back as admitted",
        "drain/admission/streams.py",
        "            self._read_again(selection.touched)\n",
        "            self._selection = selection\n            self.end(range(2**62), ())\n",
        ("test_limits.py::test_a_batch_that_is_rolled_back_has_admitted_nothing",),
    ),
    Mutant(
        "run the jobs of an ordered key by priority",
        "drain/tables/keyed.py",
        "if key not in found or first.id < found[key].id:",
        "if key not in found or first < found[key]:",
        ("test_limits.py::test_the_jobs_of_a_key_run_one_at_a_time_in_the_order_of_their_ids",),
    ),
    Mutant(
        "overtake an ordered job that waits for its retry",
        "drain/tables/keyed.py",
        "OR %(waiting)s AND (",
        "OR NOT %(waiting)s AND (",
        (
            "test_limits.py::test_a_retry_that_waits_keeps_its_key_under_the_next_leader_too",
            "test_order_of_keys.py::test_a_retry_that_is_moved_to_an_ordered_queue_holds_its_key",
        ),
    ),
    Mutant(
        "look for earlier jobs of an ordered key under its first priority alone",
        "drain/tables/keyed.py",
        "WHERE {_WITH_KEY} AND key = heads.key AND priority > heads.priority",
        "WHERE {_WITH_KEY} AND key = heads.key AND priority < heads.priority",
        ("test_order_of_keys.py::test_a_job_keeps_its_place_when_its_priority_changes",),
    ),
    Mutant(
        "overtake a scheduled job of an ordered key that is due and has not matured",
        "drain/tables/keyed.py",
        "WHERE scheduled_at <= now() AND queue = %(queue)s AND (key IN",
        "WHERE scheduled_at <= staged_at AND queue = %(queue)s AND (key IN",
        (
            "test_order_of_keys.py::"
            "test_a_scheduled_job_that_is_due_goes_before_later_ones_of_its_key_though_it_has_not_matured",
        ),
    ),
    Mutant(
        "overtake a due job of an ordered key whose row is locked",
        "drain/admission/sources.py",
        "first = keyed.first_of_keys(self.connection, self.queue, keys) if keys else {}\n",
        "first = keyed.first_of_keys(self.connection, self.queue, keys) if keys else {}\n"
        "        first = {key: row for key, row in first.items() if row.is_ready}\n",
        ("test_order_of_keys.py::test_a_due_job_that_has_not_matured_and_is_locked_keeps_those_behind_it",),
    ),
    Mutant(
        "let the retry of an ordered key go first that came due first",
        "drain/tables/running.py",
        "    ORDER BY id LIMIT 1) AS first",
        "    ORDER BY next_run_at LIMIT 1) AS first",
        (
            "test_admission_under_changes.py::"
            "test_of_the_due_retries_of_an_ordered_key_the_lowest_goes_first_though_it_came_due_last",
        ),
    ),
    Mutant(
        "overtake a dead job of an ordered key",
        "drain/admission/ordering.py",
        "        self._allowances.held.update(found)\n        return found\n",
        "        return ()\n",
        ("test_limits.py::test_a_dead_job_keeps_its_key_until_it_is_revived",),
    ),
    Mutant(
        "lock a row that has gone to another queue",
        "drain/tables/keyed.py",
        "WHERE id = ANY (%s::bigint[]) AND queue = %s FOR UPDATE SKIP LOCKED",
        "WHERE id = ANY (%s::bigint[]) AND %s <> '' FOR UPDATE SKIP LOCKED",
        (
            "test_admission_under_changes.py::test_a_row_that_goes_to_another_queue_before_it_is_locked_stays_staged",
        ),
    ),
    Mutant(
        "leave ids under way out of the depth of a list",
        "drain/admission/depths.py",
        "self._of(queue).on_the_way += count",
        "self._of(queue).on_the_way = 0",
        ("test_depths.py::test_a_list_takes_as_many_jobs_as_its_bound_and_then_none",),
    ),
    Mutant(
        "keep the first of unique jobs where the last is wanted",
        "drain/admission/uniqueness.py",
        'if newest.keep == "last" else min(in_flight or ids)',
        'if newest.keep == "none" else min(in_flight or ids)',
        ("test_uniqueness.py::test_one_stands_and_the_others_give_way",),
    ),
    Mutant(
        "let a unique job give way to a run that has outlived its lease",
        "drain/tables/unique.py",
        "UPDATE inflight_jobs SET fencing_token = fencing_token + 1 WHERE",
        "UPDATE inflight_jobs SET fencing_token = fencing_token WHERE",
        ("test_unique_jobs.py::test_nothing_gives_way_to_a_run_that_has_outlived_its_lease",),
    ),
    Mutant(
        "supersede a unique job that a worker has just claimed",
        "drain/tables/unique.py",
        "WHERE id = ANY (%(ids)s::bigint[]) AND {NOT_CLAIMED} FOR UPDATE SKIP LOCKED",
        "WHERE id = ANY (%(ids)s::bigint[]) FOR UPDATE SKIP LOCKED",
        (
            "test_unique_jobs.py::test_one_that_is_claimed_while_the_leader_decides_runs_and_does_not_give_way",
        ),
    ),
    Mutant(
        "supersede a waiting job in favour of one that has expired",
        "drain/tables/unique.py",
        "AND (job.claimed_at IS NOT NULL OR coalesce(job.expires_at > now(), true))",
        "AND (job.claimed_at IS NOT NULL OR coalesce(job.expires_at > job.staged_at, true))",
        ("test_unique_jobs.py::test_a_job_that_has_expired_stands_for_no_other",),
    ),
    Mutant(
        "free the place of a cancelled job that still runs",
        "drain/admission/running.py",
        "return len(self._running.key_of) + self._cancelled.total()",
        "return len(self._running.key_of)",
        (
            "test_cancelled_claims.py::test_a_job_that_is_cancelled_as_it_runs_keeps_its_place_until_it_is_freed",
        ),
    ),
    Mutant(
        "free the key of a cancelled job that still runs",
        "drain/admission/running.py",
        "return self._running.of_key.get(key, 0) + self._cancelled[key]",
        "return self._running.of_key.get(key, 0)",
        (
            "test_cancelled_claims.py::test_a_job_that_is_cancelled_as_it_runs_keeps_its_place_until_it_is_freed",
        ),
    ),
    Mutant(
        "forget under a new leader which cancelled jobs still run",
        "drain/admission/running.py",
        '        self._cancelled = Counter(job.key or "" for job in jobs if job.id is None)\n',
        "",
        ("test_cancelled_claims.py::test_the_next_leader_counts_cancelled_jobs_that_have_not_ended",),
    ),
    Mutant(
        "keep the place of a cancelled job for ever",
        "drain/tables/cancellations.py",
        'HAS_PLACE = "queue = %(queue)s AND lease_expires_at > now()"',
        'HAS_PLACE = "queue = %(queue)s AND lease_expires_at IS NOT NULL"',
        (
            "test_cancelled_claims.py::test_a_job_that_is_cancelled_as_it_runs_keeps_its_place_until_it_is_freed",
        ),
    ),
    Mutant(
        "keep the place of a cancelled job that was given back",
        "drain/tables/leases.py",
        "if len(released) < len(ids):",
        "if not ids:",
        (
            "test_cancelled_claims.py::test_a_worker_that_gives_back_a_cancelled_job_which_has_not_begun_frees_its_place",
        ),
    ),
    Mutant(
        "take rules that cannot be read for none",
        "drain/admission/admission.py",
        "if queue in self._ruled or queue in self._held:",
        "if queue in self._ruled:",
        (
            "test_held_queues.py::test_rules_that_cannot_be_read_hold_their_queue_and_no_other_until_they_are_changed",
        ),
    ),
    Mutant(
        "let one rule that overflows stop all queues",
        "drain/admission/held.py",
        "_OF_VALUES = (ConfigError, ArithmeticError, ValueError, psycopg.DataError)",
        "_OF_VALUES = (ConfigError,)",
        ("test_held_queues.py::test_an_error_that_the_values_of_rules_cause_anywhere_holds_their_queue",),
    ),
    Mutant(
        "accept a burst that no leader can look back on",
        "drain/admission/rules.py",
        "_LONGEST_REFILL_SECONDS = _YEAR_SECONDS",
        "_LONGEST_REFILL_SECONDS = 100 * _YEAR_SECONDS",
        ("test_rules_of_both.py::test_checks_of_the_table_and_python_accept_the_same_rules",),
    ),
    Mutant(
        "let a later request expire with the one that stands for it",
        "drain/admission/uniqueness.py",
        "return latest != own, latest",
        "return False, latest",
        ("test_unique_jobs.py::test_the_one_that_stands_expires_no_earlier_than_any_that_gave_way_to_it",),
    ),
    Mutant(
        "give way to a job that is being claimed as it expires",
        "drain/admission/uniqueness.py",
        "if not each.is_prolonged or each.stands in prolonged]",
        "if each.stands or prolonged]",
        ("test_unique_jobs.py::test_nothing_gives_way_to_one_that_is_claimed_while_its_expiry_is_put_off",),
    ),
)
