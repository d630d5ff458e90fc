"""Mutants of jobs that wait for events, or sleep."""

from tests.mutants.mutant import Mutant

_WAITS = "drain/tables/waits.py"
_TESTS = "test_waiting_for_events.py"

MUTANTS = (
    Mutant(
        "park a job under an outdated claim",
        _WAITS,
        "    WHERE {THIS_CLAIM} AND {NOT_WAITING}\n    RETURNING id, staged_by",
        "    WHERE id = %(id)s AND {NOT_WAITING}\n    RETURNING id, staged_by",
        (f"{_TESTS}::test_a_worker_that_has_lost_the_job_cannot_park_it",),
    ),
    Mutant(
        "park a job again that is due",
        _WAITS,
        "    WHERE {THIS_CLAIM} AND {NOT_WAITING}\n    RETURNING id, staged_by",
        "    WHERE {THIS_CLAIM}\n    RETURNING id, staged_by",
        (f"{_TESTS}::test_parking_again_after_a_lost_answer_undoes_nothing",),
    ),
    Mutant(
        "count the attempt that waits",
        _WAITS,
        "        attempts = attempts - CASE WHEN lease_expires_at IS NULL OR batched THEN 0 ELSE 1 END,\n",
        "",
        (f"{_TESTS}::test_a_job_that_waits_holds_nothing_and_gets_the_payload[wait_for]",),
    ),
    Mutant(
        "restart the timeout when a job waits again",
        _WAITS,
        "deadline = CASE WHEN wait.name = excluded.name THEN wait.deadline ELSE excluded.deadline END",
        "deadline = excluded.deadline",
        (f"{_TESTS}::test_a_job_moved_to_now_waits_on_until_its_first_deadline",),
    ),
    Mutant(
        "look at deadlines before events",
        _WAITS,
        "            ELSE coalesce(\n",
        "            WHEN wait.deadline <= now() THEN '{{{{\"timeout\": true}}}}' ELSE coalesce(\n",
        (f"{_TESTS}::test_an_event_beats_a_deadline_that_has_passed_as_well",),
    ),
    Mutant(
        "let an event reach the jobs of all roles",
        _WAITS,
        "event.name = wait.event AND {_REACHES} ORDER BY id",
        "event.name = wait.event ORDER BY id",
        (f"{_TESTS}::test_an_event_reaches_only_the_jobs_of_its_role",),
    ),
    Mutant(
        "take the latest event",
        _WAITS,
        "{_REACHES} ORDER BY id LIMIT 1",
        "{_REACHES} ORDER BY id DESC LIMIT 1",
        (f"{_TESTS}::test_the_first_event_wins_and_reaches_all_jobs",),
    ),
    Mutant(
        "wait for a job that another session has locked",
        _WAITS,
        "ORDER BY id FOR UPDATE SKIP LOCKED",
        "ORDER BY id FOR UPDATE",
        (f"{_TESTS}::test_a_locked_job_is_found_again",),
    ),
    Mutant(
        "forget a wait whose job was locked",
        _WAITS,
        "return self.found == self.ended < MOST",
        "return True",
        (f"{_TESTS}::test_a_locked_job_is_found_again",),
    ),
    Mutant(
        "let a job catch its wait",
        "workers/errors.py",
        "class Parked(BaseException):",
        "class Parked(Exception):",
        (f"{_TESTS}::test_code_that_catches_exceptions_does_not_stop_a_wait",),
    ),
    Mutant(
        "redeliver resumed jobs at the next round",
        "drain/enqueuer/matcher.py",
        "self.has_resumed |= found.resumed > 0",
        "self.has_resumed = False",
        (f"{_TESTS}::test_jobs_run_on_at_once_even_if_their_process_is_not_done_with_them",),
    ),
    Mutant(
        "drop a delivery of a job whose attempt is being forgotten",
        "workers/process/claimer.py",
        "known[each.job_id].lease.ending",
        "False",
        ("test_claimer.py::test_a_job_resumed_before_its_process_forgets_it_is_claimed_again",),
    ),
)
