"""Mutants of the schema and of rights: truncation, partitions, finishes, notifications, idempotency, roles."""

from tests.mutants.mutant import Mutant

MUTANTS = (
    Mutant(
        "wait for the lock before a truncation",
        "schema.sql",
        "IN ACCESS EXCLUSIVE MODE NOWAIT', partition);",
        "IN ACCESS EXCLUSIVE MODE', partition);",
        ("test_truncation.py::test_a_dump_that_has_locked_the_table_is_not_waited_for",),
    ),
    Mutant(
        "truncate without a second look behind the lock",
        "schema.sql",
        "NOWAIT', partition);\n"
        "        EXECUTE format('SELECT NOT EXISTS (SELECT FROM ONLY %s)', partition) INTO empty;",
        "NOWAIT', partition);",
        ("test_truncation.py::test_a_row_that_is_committed_just_before_the_lock_is_seen_behind_it",),
    ),
    Mutant(
        "truncate by a snapshot from before the lock",
        "schema.sql",
        "    IF current_setting('transaction_isolation') <> 'read committed' THEN\n"
        "        RAISE EXCEPTION 'drain_truncate_if_empty()",
        "    IF current_setting('transaction_isolation') = '' THEN\n"
        "        RAISE EXCEPTION 'drain_truncate_if_empty()",
        ("test_truncation.py::test_a_picture_from_before_the_lock_is_refused",),
    ),
    Mutant(
        "truncate the partition whose turn comes next",
        "drain/tables/staged.py",
        "'UTC')::integer / 5 + 2) %% 3)::text",
        "'UTC')::integer / 5 + 1) %% 3)::text",
        ("test_truncation.py::test_the_partition_whose_turn_is_over_is_not_the_one_of_now_nor_the_next",),
    ),
    Mutant(
        "drop a day whose rows have changed since they were archived",
        "schema.sql",
        "counted IS DISTINCT FROM expected_rows OR checksum IS DISTINCT FROM expected_checksum",
        "counted IS DISTINCT FROM expected_rows",
        ("test_partitions.py::test_a_day_whose_rows_are_others_is_left_alone",),
    ),
    Mutant(
        "drop a day with a finish that is not committed yet",
        "schema.sql",
        "        EXECUTE format('LOCK TABLE ONLY %s IN SHARE MODE', partition);\n"
        "        EXECUTE format('SELECT max(id)",
        "        EXECUTE format('SELECT max(id)",
        ("test_retention.py::test_a_job_whose_transaction_is_open_is_counted_with_its_day",),
    ),
    Mutant(
        "drop the day before today",
        "schema.sql",
        "IF keep IS NULL OR keep NOT BETWEEN 1 AND 36500 THEN",
        "IF keep IS NULL OR keep NOT BETWEEN 0 AND 36500 THEN",
        ("test_retention.py::test_today_and_yesterday_are_never_dropped",),
    ),
    Mutant(
        "drop a day while it is being archived",
        "schema.sql",
        "    IF NOT pg_try_advisory_xact_lock(1785684580, 6) THEN\n",
        "    IF NOT pg_try_advisory_xact_lock_shared(1785684580, 6) AND keep = 0 THEN\n",
        ("test_retention.py::test_nothing_is_dropped_while_an_archive_is_written",),
    ),
    Mutant(
        "finish a job under an old token",
        "schema.sql",
        "        WHERE id = job AND fencing_token = token AND salt IS NOT",
        "        WHERE id = job AND fencing_token >= token AND salt IS NOT",
        ("test_claim.py::test_an_outcome_under_an_old_token_changes_nothing",),
    ),
    Mutant(
        "finish another row under its token",
        "schema.sql",
        " AND salt IS NOT DISTINCT FROM job_salt AND claimed_by = worker\n",
        " AND claimed_by = worker\n",
        ("test_failover.py::test_what_a_job_wrote_is_rolled_back_if_its_row_is_that_of_another_claim",),
    ),
    Mutant(
        "finish the claim of another process under its token",
        "schema.sql",
        " AND salt IS NOT DISTINCT FROM job_salt AND claimed_by = worker\n",
        " AND salt IS NOT DISTINCT FROM job_salt\n",
        ("test_failover.py::test_what_a_job_wrote_is_rolled_back_if_its_row_is_that_of_another_claim",),
    ),
    Mutant(
        "finish no row without a salt",
        "schema.sql",
        " AND salt IS NOT DISTINCT FROM job_salt AND claimed_by = worker\n",
        " AND salt = job_salt AND claimed_by = worker\n",
        ("test_failover.py::test_a_row_without_a_salt_is_recorded_as_any_other",),
    ),
    Mutant(
        "look for the row of a job by the search_path of the job",
        "schema.sql",
        "        DELETE FROM %1$s.inflight_jobs\n",
        "        DELETE FROM inflight_jobs\n",
        ("test_search_paths.py::test_a_job_that_sets_the_search_path_finishes",),
    ),
    Mutant(
        "look for the finished jobs by the search_path of the job",
        "schema.sql",
        "    INSERT INTO %1$s.finished_jobs (id,",
        "    INSERT INTO finished_jobs (id,",
        ("test_search_paths.py::test_a_job_that_sets_the_search_path_finishes",),
    ),
    Mutant(
        "forget the schema of the tables once a job may set the search_path",
        "drain/database/postgres.py",
        'return _homes.get(connection, "")',
        'return _homes.get(connection, "")[:0]',
        ("test_search_paths.py::test_a_job_that_sets_the_search_path_is_refused_as_any_other",),
    ),
    Mutant(
        "notify a leader that is awake",
        "schema.sql",
        "    IF NOT pg_catalog.pg_try_advisory_xact_lock_shared(1785684580, 2) THEN\n",
        "    IF pg_catalog.pg_try_advisory_xact_lock_shared(1785684580, 2) IS NOT NULL THEN\n",
        ("test_staging.py::test_a_transaction_notifies_a_sleeping_enqueuer_and_no_other",),
    ),
    Mutant(
        "check once per row whether the leader sleeps",
        "schema.sql",
        "    FOR EACH STATEMENT\n",
        "    FOR EACH ROW\n",
        ("test_staging.py::test_a_statement_of_many_rows_asks_once_whether_the_enqueuer_sleeps",),
    ),
    Mutant(
        "let a sleeping leader wait for its poll",
        "schema.sql",
        "        PERFORM pg_catalog.pg_notify('staged_jobs', '');\n",
        "        PERFORM pg_catalog.pg_notify('staged', '');\n",
        ("test_daemon.py::test_a_commit_wakes_the_one_that_sleeps",),
    ),
    Mutant(
        "let two transactions stage under one idempotency key",
        "schema.sql",
        "            WHERE kept.expires_at <= pg_catalog.clock_timestamp()\n",
        "",
        ("test_idempotency.py::test_a_second_transaction_waits_for_the_commit_of_the_first_and_gets_its_id",),
    ),
    Mutant(
        "answer another job's idempotency key with that job",
        "schema.sql",
        "SELECT CASE WHEN kept.job_name = new.job_name AND kept.digest = ",
        "SELECT CASE WHEN kept.job_name = new.job_name OR kept.digest = ",
        (
            "test_idempotency.py::test_another_name_or_other_arguments_are_a_conflict_that_leaves_the_transaction_as_it_is",
        ),
    ),
    Mutant(
        "delete an idempotency key that may be read again",
        "drain/tables/idempotency.py",
        "interval '1 hour'",
        "interval '1 second'",
        ("test_idempotency.py::test_the_leader_deletes_keys_whose_time_has_been_over_for_an_hour",),
    ),
    Mutant(
        "search the caller's temporary schema first in a function of the owner",
        "schema.sql",
        "    SET search_path = pg_catalog, pg_temp SET lock_timeout = '100ms' SET timezone = 'UTC'\n"
        "AS $$\nDECLARE\n    most   constant integer",
        "    SET search_path = pg_catalog SET lock_timeout = '100ms' SET timezone = 'UTC'\n"
        "AS $$\nDECLARE\n    most   constant integer",
        (
            "test_hostile_roles.py::test_the_one_function_that_runs_as_the_owner_does_its_work_for_a_hostile_caller",
        ),
    ),
    Mutant(
        "let every role finish jobs",
        "schema.sql",
        "    drain_finish(bigint, bigint, bigint, text, jsonb),\n",
        "",
        ("test_roles.py::test_a_role_may_call_those_functions_that_it_needs_and_no_other",),
    ),
    Mutant(
        "finish jobs with the rights of the owner",
        "schema.sql",
        "    RETURNS boolean LANGUAGE plpgsql SET enable_seqscan = off AS $$\n",
        "    RETURNS boolean LANGUAGE plpgsql SECURITY DEFINER SET enable_seqscan = off AS $$\n",
        (
            "test_hostile_roles.py::test_only_the_functions_that_make_and_drop_days_stage_once_and_show_a_state_run_with_the_rights_of_another",
        ),
    ),
    Mutant(
        "install over a function of another role",
        "schema.sql",
        "    IF taken IS NOT NULL THEN\n",
        "    IF taken IS NULL AND current_user = '' THEN\n",
        (
            "test_hostile_roles.py::test_a_function_that_another_role_has_under_a_name_of_ours_is_refused_by_the_schema_itself",
        ),
    ),
    Mutant(
        "hand a function of another role over to the owner",
        "drain/database/roles.py",
        "WHERE role.rolsuper OR role.oid = staged.owner",
        "WHERE role.oid IS NOT NULL",
        (
            "test_hostile_roles.py::test_a_function_that_another_role_has_under_a_name_of_ours_is_not_handed_over_to_the_owner",
        ),
    ),
    Mutant(
        "let an application choose ids",
        "schema.sql",
        "id              bigint      NOT NULL GENERATED ALWAYS AS IDENTITY,",
        "id              bigint      NOT NULL GENERATED BY DEFAULT AS IDENTITY,",
        ("test_staging.py::test_an_id_cannot_be_chosen",),
    ),
    Mutant(
        "let an application give itself any column of a staged job",
        "drain/database/grants.py",
        'f"INSERT ({STAGED_BY_APPLICATIONS}), SELECT (id)"',
        '"INSERT, SELECT (id)"',
        ("test_roles.py::test_a_role_may_do_nothing_else",),
    ),
    Mutant(
        "let an application read what others stage",
        "drain/database/grants.py",
        'f"INSERT ({STAGED_BY_APPLICATIONS}), SELECT (id)"',
        'f"INSERT ({STAGED_BY_APPLICATIONS}), SELECT"',
        ("test_roles.py::test_a_role_may_do_nothing_else",),
    ),
    Mutant(
        "let a worker change finished jobs",
        "drain/database/grants.py",
        '"INSERT, SELECT (id, fencing_token, finished_at, finished_by), UPDATE (result)"',
        '"INSERT, UPDATE, SELECT (id, fencing_token, finished_at, finished_by)"',
        ("test_roles.py::test_a_role_may_do_nothing_else",),
    ),
    Mutant(
        "accept a list as the weight of a key",
        "schema.sql",
        "'strict $.* ? (",
        "'$.* ? (",
        ("test_rules_of_both.py::test_checks_of_the_table_and_python_accept_the_same_rules",),
    ),
)
