"""Mutants of Redis: RQ's ids and formats, pushes, pops, owners of namespaces and queues."""

from tests.mutants.mutant import Mutant

MUTANTS = (
    Mutant(
        "drop the ids that stand behind our own",
        "drain/wire/lua/pop.lua",
        "redis.call('LTRIM', key, ours, -1)",
        "redis.call('LTRIM', key, #ids, -1)",
        ("test_wire.py::test_ids_of_other_jobs_and_our_own_behind_them_stay_in_their_list",),
    ),
    Mutant(
        "pop a plain RQ job without its intermediate list",
        "drain/wire/lua/pop.lua",
        "  redis.call('RPUSH', key .. ':intermediate', id)\n",
        "",
        ("test_wire.py::test_a_plain_job_is_in_rqs_intermediate_list_while_a_worker_has_it",),
    ),
    Mutant(
        "take ids of a longer namespace for our own",
        "drain/wire/lua/pop.lua",
        "string.match(id, '^%d+%-%d+$', #prefix + 1)",
        "string.match(id, '%d+%-%d+$', #prefix + 1)",
        ("test_wire.py::test_ids_of_other_jobs_and_our_own_behind_them_stay_in_their_list",),
    ),
    Mutant(
        "lose the id that has come while RQ is suspended",
        "drain/wire/lua/pop.lua",
        "    redis.call('LPUSH', popped_from, popped)\n",
        "",
        ("test_taken_ids.py::test_while_rq_is_suspended_nothing_is_taken",),
    ),
    Mutant(
        "push to a namespace that another database feeds",
        "drain/wire/lua/push.lua",
        "  if is_foreign(owner, ours) then return {owner, {}, {}, {}, {}} end\n",
        "",
        (
            "test_two_databases.py::test_a_push_that_is_under_way_when_another_database_takes_the_namespace_is_refused",
        ),
    ),
    Mutant(
        "push to a queue that another database feeds",
        "drain/wire/lua/push.lua",
        "ids = is_ours(queue) and {}",
        "ids = {}",
        (
            "test_two_databases.py::test_a_queue_that_another_database_feeds_gets_nothing_and_other_queues_go_on",
        ),
    ),
    Mutant(
        "push thin ids to a queue that another database feeds",
        "drain/wire/lua/push_thin.lua",
        "  if is_foreign(feeds, ours) then return {'', {}, {queue, feeds}, {}, {}} end\n",
        "",
        (
            "test_thin_deliveries.py::test_a_queue_of_another_database_and_a_key_that_is_no_list_refuse_thin_ids_too",
        ),
    ),
    Mutant(
        "take a Redis that has lost its memory for a complete one after the next push",
        "drain/wire/lua/push.lua",
        "redis.call('SET', marker, recovering(ours, label))",
        "redis.call('SET', marker, remembering(ours, label))",
        ("test_wire.py::test_a_push_to_a_redis_that_lost_its_memory_does_not_mark_it_as_complete",),
    ),
    Mutant(
        "take a Redis that has lost its memory for a complete one after the next push of thin ids",
        "drain/wire/lua/push_thin.lua",
        "redis.call('SET', marker, recovering(ours, label))",
        "redis.call('SET', marker, remembering(ours, label))",
        ("test_wire.py::test_a_push_to_a_redis_that_lost_its_memory_does_not_mark_it_as_complete",),
    ),
    Mutant(
        "push a part of what must be pushed together",
        "drain/wire/producer.py",
        "return self._send(deliveries, sorted({queue_key(delivery.queue) for delivery in deliveries}))",
        "return self._send(deliveries)",
        ("test_wire.py::test_jobs_that_are_pushed_together_are_all_refused_if_the_key_of_one_is_no_list",),
    ),
    Mutant(
        "push thin ids to a stock worker",
        "drain/wire/lua/need_no_hash.lua",
        "answers[place / 2] = any and not others and 1 or 0",
        "answers[place / 2] = any and 1 or 0",
        ("test_thin_deliveries.py::test_where_another_worker_listens_too_or_none_each_job_has_its_hash",),
    ),
    Mutant(
        "push thin ids to stock workers that RQ's registry lacks, since Redis has lost data",
        "drain/wire/lua/need_no_hash.lua",
        "is_unknown or redis.call('EXISTS', KEYS[place + 1]) == 1",
        "false",
        (
            "test_thin_deliveries.py::test_after_redis_lost_its_memory_jobs_have_hashes_for_an_hour_under_each_leader",
            "test_thin_deliveries.py::test_a_queue_that_has_lost_deliveries_gets_hashes_for_an_hour_under_each_leader",
        ),
    ),
    Mutant(
        "trust RQ's registry after Redis has lost its memory",
        "drain/enqueuer/redelivery.py",
        """        self.enqueuer.thin_queues.distrust()
        total =""",
        "        total =",
        (
            "test_thin_deliveries.py::test_after_redis_lost_its_memory_jobs_have_hashes_for_an_hour_under_each_leader",
        ),
    ),
    Mutant(
        "spell a thin delivery like a whole one",
        "drain/wire/ids.py",
        'return f"{namespace}-{job_id}-0{delivery}"',
        'return f"{namespace}-{job_id}-{delivery}"',
        ("test_thin_deliveries.py::test_where_only_drain_work_listens_ids_have_no_hashes",),
    ),
    Mutant(
        "read a delivery number from the ids of other namespaces",
        "drain/wire/ids.py",
        'match = re.fullmatch(rf"{re.escape(namespace)}-[0-9]{{1,18}}-([0-9]{{1,18}})", rq_id)',
        'match = re.fullmatch(r".+-[0-9]{1,18}-([0-9]{1,18})", rq_id)',
        ("test_wire.py::test_the_delivery_number_is_read_from_our_ids_alone",),
    ),
    Mutant(
        "take a call of another database for our own",
        "drain/wire/calls.py",
        "Kind.OURS if named == installation else Kind.FOREIGN",
        "Kind.OURS if named or not installation else Kind.FOREIGN",
        ("test_wire.py::test_a_call_is_judged_by_its_bytes",),
    ),
    Mutant(
        "cut ids in calls to four bytes",
        "drain/wire/jobs.py",
        'job_id.to_bytes(5, "little")',
        '(job_id % 2**32).to_bytes(5, "little")',
        ("test_wire.py::test_a_call_names_the_installation_and_is_short_enough_for_redis_to_pack_the_hash",),
    ),
    Mutant(
        "let RQ end a job before its own timeout",
        "drain/wire/jobs.py",
        "outer = min(timeout_seconds + _OUTER_TIMEOUT_MARGIN_SECONDS, _LONGEST_TIMEOUT_SECONDS)",
        "outer = min(timeout_seconds, _LONGEST_TIMEOUT_SECONDS)",
        ("test_wire.py::test_rq_gives_a_tracked_job_up_only_after_its_own_time_limit_has_failed",),
    ),
    Mutant(
        "run a plain RQ job again that RQ has begun",
        "drain/wire/lua/give_back_unbegun.lua",
        "if redis.call('EXISTS', KEYS[3]) == 0 and redis",
        "if redis",
        ("test_wire.py::test_a_plain_job_is_given_back_unless_rq_has_begun_with_it",),
    ),
    Mutant(
        "give ids back to the wrong end of their list",
        "drain/wire/moves.py",
        "pipeline.lpush(queue_key(queue), rq_id)",
        "pipeline.rpush(queue_key(queue), rq_id)",
        ("test_wire.py::test_ids_that_are_given_back_come_first_again_in_their_order",),
    ),
    Mutant(
        "take over a namespace without pushing what was refused",
        "drain/wire/lua/take_over.lua",
        "  redis.call('SET', marker, recovering(ours, label))\n",
        "  redis.call('SET', marker, remembering(ours, label))\n",
        (
            "test_two_databases.py::test_a_take_over_removes_the_ids_of_the_database_that_is_gone_and_no_others_and_pushes_what_was_refused",
        ),
    ),
)
