"""Mutants of the read model: numbers of jobs by state and by cause, and what follows from them."""

from tests.mutants.mutant import Mutant

_AGREE = "test_one_definition.py::test_all_counters_agree_on_running_waiting_and_retrying_jobs"
_CAUSES = "test_waiting_jobs.py"

MUTANTS = (
    Mutant(
        "count a job whose lease is over as running",
        "drain/tables/columns.py",
        'RUNNING = "lease_expires_at > now()"',
        'RUNNING = "lease_expires_at IS NOT NULL"',
        (_AGREE,),
    ),
    Mutant(
        "take the sample of a table for all of it",
        "drain/read/states.py",
        "round(row[place] / share)",
        "row[place]",
        ("test_read_model.py::test_a_large_table_is_estimated_from_a_sample_and_marked_so",),
    ),
    Mutant(
        "let a few jobs that were all seen be an estimate",
        "drain/read/queues.py",
        "            are_all = number < up_to and (many is None or name in many)\n",
        "            are_all = number < 0 and (many is None or name in many)\n",
        (_AGREE,),
    ),
    Mutant(
        "call jobs that wait behind a rule or a full list late",
        "drain/read/queue.py",
        "return 0.0 if _HELD & self.waiting.keys() else self.ready_seconds",
        "return 0.0 if _RULED & self.waiting.keys() else self.ready_seconds",
        ("test_read_model.py::test_jobs_behind_a_full_list_are_not_late",),
    ),
    Mutant(
        "call a paused queue stalled",
        "drain/read/queue.py",
        " and not self.per_second and self.paused is None",
        " and not self.per_second",
        ("test_read_model.py::test_a_paused_queue_does_not_stall",),
    ),
    Mutant(
        "call a queue stalled that ends jobs",
        "drain/read/queue.py",
        "self.queued_seconds > STALLED_SECONDS and not self.per_second and",
        "self.queued_seconds > STALLED_SECONDS and",
        ("test_read_model.py::test_a_queue_that_ends_jobs_does_not_stall",),
    ),
    Mutant(
        "let jobs of an ordered key pass a paused one",
        "drain/read/causes.py",
        "ORDER BY known.queue, job.key, job.id\n",
        "ORDER BY known.queue, job.key, job.id DESC\n",
        (f"{_CAUSES}::test_a_paused_job_of_an_ordered_key_holds_those_behind_it",),
    ),
    Mutant(
        "let all jobs of an ordered key be next",
        "drain/read/waiting_by_cause.py",
        '.ordered and key is not None and cause != "paused"',
        '.ordered and key is None and cause != "paused"',
        (f"{_CAUSES}::test_only_one_job_of_an_ordered_key_may_start_at_a_time",),
    ),
    Mutant(
        "count the claims of all queues for each queue",
        "drain/read/causes.py",
        "WHERE next_run_at IS NULL AND queue = ANY (%(queues)s::text[])\n",
        "WHERE next_run_at IS NULL AND queue IS NOT NULL\n",
        (f"{_CAUSES}::test_jobs_of_another_queue_do_not_count_towards_a_limit",),
    ),
    Mutant(
        "free the place of a cancelled job whose worker has not let go",
        "drain/read/causes.py",
        "WHERE {KEEPS_PLACE} AND queue",
        "WHERE NOT {KEEPS_PLACE} AND queue",
        ("test_cancelled_claims.py::test_reports_count_cancelled_jobs_as_the_leader_does",),
    ),
    Mutant(
        "take attempts that a worker has not ended for none",
        "drain/read/tokens.py",
        "({_IN_FLIGHT} WHERE {IS_CLAIMED} ORDER BY",
        "({_IN_FLIGHT} WHERE {IS_CLAIMED} AND job.id < 0 ORDER BY",
        ("test_told_and_done.py::test_the_leader_treats_each_job_as_the_status_reports",),
    ),
    Mutant(
        "count no token that a delivered job holds back",
        "drain/read/tokens.py",
        "- _ROUNDING) + self.held\n",
        "- _ROUNDING)\n",
        (f"{_CAUSES}::test_a_rate_is_used_up_by_jobs_that_are_delivered",),
    ),
    Mutant(
        "let a new leader know when attempts of before began",
        "drain/read/tokens.py",
        "AS whose, greatest(at, since) AS begun_at,",
        "AS whose, at AS begun_at,",
        ("test_explain.py::test_a_burst_is_used_up_before_the_rate_holds_a_job",),
    ),
    Mutant(
        "show no job of a pause as paused",
        "drain/read/causes.py",
        "    if pauses.applies(*job):\n",
        "    if rules is not None and pauses.applies(*job):\n",
        (f"{_CAUSES}::test_paused_jobs_are_counted_separately",),
    ),
    Mutant(
        "leave the total of estimates unmarked",
        "drain/read/system.py",
        "return any(queue.is_estimate(name) for queue in self.queues.values() if getattr(queue, name))",
        "return False",
        ("test_read_model.py::test_a_large_table_is_estimated_from_a_sample_and_marked_so",),
    ),
    Mutant(
        "let a held queue be one of the others",
        "drain/read/system.py",
        "key=lambda name: (found[name].held is None, -found[name].jobs)",
        "key=lambda name: -found[name].jobs",
        ("test_read_model.py::test_a_held_queue_is_always_shown",),
    ),
)
