"""Mutants of the leader: its lock, its sleep, its batches and pushes, and the ticks of schedules."""

from tests.mutants.mutant import Mutant

MUTANTS = (
    Mutant(
        "give the session lock back with the statement that took it",
        "drain/database/locks.py",
        "SELECT pg_try_advisory_lock({lock})",
        "SELECT pg_try_advisory_xact_lock({lock})",
        ("test_leadership.py::test_there_is_one_leader_at_a_time",),
    ),
    Mutant(
        "lead whether or not the lock is free",
        "drain/enqueuer/leader.py",
        "if not take(connection, locks.LEADER):",
        "if not take(connection, locks.LEADER) and connection.closed:",
        ("test_leadership.py::test_there_is_one_leader_at_a_time",),
    ),
    Mutant(
        "take the session lock after BEGIN, on the snapshot of a standby",
        "drain/enqueuer/leader.py",
        "    if not take(connection, locks.LEADER):",
        '    connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")\n'
        "    if not take(connection, locks.LEADER):",
        ("test_leadership.py::test_a_standbys_first_batch_contains_no_row_drained_before",),
    ),
    Mutant(
        "drain on another connection than the one that holds the lock",
        "drain/enqueuer/daemon.py",
        "with self._enqueuer(connection, state, self.settings.depth) as enqueuer:",
        "with self._enqueuer(self._connect(), state, self.settings.depth) as enqueuer:",
        ("test_leadership.py::test_the_leader_uses_a_single_session_which_holds_the_lock",),
    ),
    Mutant(
        "take a shared session for the connection's own",
        "drain/database/pooler.py",
        "if len(set(pids.values())) < len(pids):",
        "if len(pids) < len(set(pids.values())):",
        ("test_poolers.py::test_shared_sessions_are_detected",),
    ),
    Mutant(
        "lead behind a pooler without a look at the session",
        "drain/enqueuer/daemon.py",
        "pooler.require_own_session(connection, self.settings.database_url)",
        "postgres.is_pooled(connection)",
        (
            "test_poolers.py::test_an_enqueuer_refuses_a_pooler_that_shares_sessions[SmallPooler-transaction-once]",
        ),
    ),
    Mutant(
        "sleep though an open transaction has not notified",
        "drain/enqueuer/leader.py",
        "yield locked",
        "yield True",
        ("test_staging.py::test_staging_does_not_wait_for_an_enqueuer_that_falls_asleep_or_wakes",),
    ),
    Mutant(
        "wait without a look for rows committed before the sleep",
        "drain/enqueuer/sleeper.py",
        "            moved = enqueuer.run_once()\n",
        "            moved = enqueuer.run_once() if self._wait(until) else 0\n",
        ("test_daemon.py::test_a_job_committed_as_the_leader_falls_asleep_is_drained_first",),
    ),
    Mutant(
        "delete staged rows by range",
        "drain/tables/staged.py",
        "WITH moved AS (\n    DELETE FROM staged_jobs_ready WHERE id = ANY (%(ids)s::bigint[])",
        "WITH moved AS (\n    DELETE FROM staged_jobs_ready WHERE id <= (SELECT max(each) FROM unnest("
        "%(ids)s::bigint[]) AS each)",
        (
            "test_enqueuer.py::test_lower_priorities_are_pushed_first_and_equal_ones_in_the_order_of_their_ids",
        ),
    ),
    Mutant(
        "delete forwarded rows by range",
        "drain/tables/staged.py",
        "WITH gone AS (DELETE FROM staged_jobs_ready WHERE id = ANY (%s::bigint[]) RETURNING id)",
        "WITH gone AS (DELETE FROM staged_jobs_ready WHERE id <= (SELECT max(each) "
        "FROM unnest(%s::bigint[]) AS each) RETURNING id)",
        ("test_forward.py::test_only_jobs_of_a_queue_whose_key_is_not_a_list_stay",),
    ),
    Mutant(
        "drain at read committed",
        "drain/enqueuer/batches.py",
        "IsolationLevel.READ_COMMITTED if skip_locked else IsolationLevel.REPEATABLE_READ",
        "IsolationLevel.READ_COMMITTED",
        ("test_enqueuer.py::test_a_job_that_is_withdrawn_while_its_batch_is_open_is_not_pushed",),
    ),
    Mutant(
        "push tracked jobs before their move is committed",
        "drain/enqueuer/mover.py",
        "            ids = [row.id for row in moved]\n",
        "            ids = [row.id for row in moved]\n"
        "            from drain.wire import tracked\n"
        "            self._redis.push(\n"
        '                tracked(self._redis.namespace, row.id, row.queue, "-", None, number)\n'
        "                for number, row in enumerate(moved, before + 1)\n"
        "            )\n",
        ("test_enqueuer.py::test_a_tracked_job_is_committed_before_it_is_pushed",),
    ),
    Mutant(
        "commit the move of a batch before its forwarded jobs are pushed",
        "drain/enqueuer/mover.py",
        "commits = not forward.deliveries and not forward.unreadable",
        "commits = True",
        ("test_forward.py::test_only_jobs_of_a_queue_whose_key_is_not_a_list_stay",),
    ),
    Mutant(
        "push forwarded jobs before their rows are deleted",
        "drain/enqueuer/mover.py",
        "        staged.delete_forwarded(self._connection, list(forward.deliveries))\n",
        "        self._redis.push_together(list(forward.deliveries.values()))\n"
        "        staged.delete_forwarded(self._connection, list(forward.deliveries))\n",
        ("test_forward.py::test_a_row_that_could_not_be_deleted_was_not_pushed",),
    ),
    Mutant(
        "raise the watermark before the push",
        "drain/enqueuer/pusher.py",
        "        if not is_short(rows):\n",
        "        self._deliveries.pushed(up_to, ())\n        self._deliveries.record_watermark()\n"
        "        if not is_short(rows):\n",
        ("test_enqueuer.py::test_jobs_moved_but_not_pushed_are_pushed_by_the_next_leader",),
    ),
    Mutant(
        "raise the watermark that recovery holds",
        "drain/enqueuer/deliveries.py",
        "        if not self._watermark_is_held:\n",
        "        if up_to:\n",
        ("test_deliveries.py::test_a_held_watermark_rises_to_the_last_number_at_the_end",),
    ),
    Mutant(
        "raise the watermark after a push that failed",
        "drain/enqueuer/deliveries.py",
        "            self._watermark_is_held = False\n        self._pushed_up_to = self._last_delivery\n",
        "            self._watermark_is_held = False\n            self._pushed_up_to = self._last_delivery\n",
        ("test_deliveries.py::test_a_held_watermark_stays_unchanged_if_a_push_fails",),
    ),
    Mutant(
        "begin a term with delivery number 0",
        "drain/enqueuer/deliveries.py",
        "self._last_delivery, self._pushed_up_to = progress",
        "self._last_delivery, self._pushed_up_to = 0, progress.pushed_up_to",
        ("test_enqueuer.py::test_a_new_leader_continues_the_delivery_numbers",),
    ),
    Mutant(
        "push whole jobs under the numbers of their neighbours",
        "drain/enqueuer/pusher.py",
        "for number, row in enumerate(rows, up_to - len(rows) + 1)\n",
        "for number, row in enumerate(rows, up_to - len(rows))\n",
        ("test_redelivery.py::test_each_job_that_was_lost_has_its_own_grace",),
    ),
    Mutant(
        "never look again for rows that were committed late",
        "drain/enqueuer/cursor.py",
        "return self._has_caught_up or self._sweeps.is_due()",
        "return self._sweeps.is_due()",
        ("test_cursor.py::test_a_scan_that_is_not_full_is_followed_by_a_sweep",),
    ),
    Mutant(
        "let scheduled jobs run whenever one is due",
        "drain/tables/staged.py",
        "scheduled_at <= now() ORDER BY scheduled_at LIMIT %s",
        "scheduled_at <= now() + interval '100 years' ORDER BY scheduled_at LIMIT %s",
        ("test_truncation.py::test_a_scheduled_row_becomes_ready_once_it_is_due",),
    ),
    Mutant(
        "ask for a due row that is locked again and again",
        "drain/enqueuer/sleeper.py",
        "if_due=_LOCKED_SECONDS",
        "if_due=0.0",
        ("test_sleeper.py::test_a_locked_due_row_is_tried_again_after_a_pause",),
    ),
    Mutant(
        "deliver jobs that have expired",
        "drain/tables/lanes.py",
        "coalesce(job.expires_at <= now(), false)",
        "coalesce(job.expires_at <= '-infinity', false)",
        ("test_enqueuer.py::test_an_expired_job_is_dead_and_the_others_are_pushed",),
    ),
    Mutant(
        "give up a row that only took too long",
        "drain/enqueuer/batches.py",
        "return rows if rows > 1 else 0",
        "return rows",
        ("test_poison.py::test_a_single_slow_row_is_not_buried",),
    ),
    Mutant(
        "move a schedule on in a transaction of its own",
        "drain/enqueuer/ticker.py",
        "with postgres.transaction(self._connection, psycopg.IsolationLevel.READ_COMMITTED):",
        "with self._connection.cursor():",
        (
            "test_ticks.py::test_two_concurrent_tickers_stage_a_tick_once",
            "test_ticks.py::test_each_tick_is_staged_once_even_if_many_leaders_die",
        ),
    ),
    Mutant(
        "stage a tick that another ticker has locked",
        "drain/tables/crons.py",
        "ORDER BY next_tick_at NULLS FIRST LIMIT %(limit)s FOR UPDATE SKIP LOCKED",
        "ORDER BY next_tick_at NULLS FIRST LIMIT %(limit)s",
        ("test_ticks.py::test_two_concurrent_tickers_stage_a_tick_once",),
    ),
    Mutant(
        "skip missed ticks that do not fit into one transaction",
        "drain/enqueuer/ticker.py",
        "return Ticks(schedule.name, staged, table.after(ticks[-1]))",
        "return Ticks(schedule.name, staged, table.after(schedule.now))",
        ("test_ticks.py::test_a_year_of_missed_ticks_is_staged_in_parts",),
    ),
    Mutant(
        "tick twice in an hour that the clock shows twice",
        "drain/jobs/timetable.py",
        "if at > moment:",
        "if at:",
        ("test_timetable.py::test_a_schedule_created_in_the_repeated_hour_has_no_past_tick",),
    ),
    Mutant(
        "take the time of a finish as it is",
        "drain/tables/waiting.py",
        'THEN {finite("max(finished_at)")} END',
        "THEN max(finished_at) END",
        ("test_failing_queues.py::test_a_finish_at_an_impossible_time_does_not_stop_the_leader",),
    ),
)
