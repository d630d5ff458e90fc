-- From version 1 to 2: a random value in each job, bounds for ids and fencing tokens, and functions that trust nobody.
--
-- Programs of version 1 go on working afterwards: they name the columns that they write, leave out the new ones, and
-- call functions that keep their signatures.

-- A name of ours that another role has taken first: CREATE OR REPLACE would leave that role the owner of a function
-- that others run.
DO $$
DECLARE
    taken record;
BEGIN
    SELECT proc.oid::pg_catalog.regprocedure AS name, pg_catalog.pg_get_userbyid(proc.proowner) AS owner INTO taken
    FROM pg_catalog.pg_proc AS proc JOIN pg_catalog.pg_namespace AS home ON home.oid = proc.pronamespace
    WHERE home.nspname = pg_catalog.current_schema() AND pg_catalog.starts_with(proc.proname::pg_catalog.text, 'drain_')
        AND pg_catalog.pg_get_userbyid(proc.proowner) <> current_user
        AND proc.proowner IS DISTINCT FROM (
            SELECT relowner FROM pg_catalog.pg_class WHERE oid = pg_catalog.to_regclass('staged_jobs')::pg_catalog.oid)
    LIMIT 1;
    IF taken IS NOT NULL THEN
        RAISE EXCEPTION 'the function % belongs to the role %, which is not the owner of these tables: drop it first',
            taken.name, taken.owner;
    END IF;
END
$$;

-- Functions close their search_path, only drain_make_days() runs with its owner's rights, and PUBLIC may call none.
-- Their texts are those of schema.sql, where their comments are.
CREATE OR REPLACE FUNCTION drain_truncate_if_empty(partition regclass) RETURNS boolean LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp
    -- Dead rows are passed over faster in the table than in an index, and the enqueuer prefers indexes.
    SET enable_seqscan = on
AS $$
DECLARE
    empty boolean;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'drain_truncate_if_empty() is for read committed transactions';
    END IF;
    -- Most often it is not, and then nobody need be locked out.
    EXECUTE format('SELECT NOT EXISTS (SELECT FROM ONLY %s)', partition) INTO empty;
    IF empty THEN
        EXECUTE format('LOCK TABLE ONLY %s IN ACCESS EXCLUSIVE MODE NOWAIT', partition);
        EXECUTE format('SELECT NOT EXISTS (SELECT FROM ONLY %s)', partition) INTO empty;
    END IF;
    IF empty THEN
        EXECUTE format('TRUNCATE ONLY %s', partition);
    END IF;
    RETURN empty;
EXCEPTION WHEN lock_not_available THEN
    RETURN false;
END
$$;

CREATE OR REPLACE FUNCTION drain_finish(job bigint, token bigint) RETURNS boolean LANGUAGE plpgsql
    SET enable_seqscan = off AS $$
BEGIN
    WITH done AS (DELETE FROM inflight_jobs WHERE id = job AND fencing_token = token RETURNING *)
    INSERT INTO finished_jobs (id, job_name, job_args, job_kwargs, queue, priority, scheduled_at, tag, context,
        staged_at, moved_at, claimed_at, finished_at, finished_by, attempts, fencing_token, last_error, history)
    SELECT id, job_name, job_args, job_kwargs, queue, priority, scheduled_at, tag, context,
        staged_at, moved_at, claimed_at, pg_catalog.clock_timestamp(), claimed_by, attempts + batched::integer,
        fencing_token, last_error, history
    FROM done;
    RETURN FOUND;
END
$$;

CREATE OR REPLACE FUNCTION drain_make_days_of(parent regclass, ahead integer) RETURNS integer LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp SET lock_timeout = '100ms' SET timezone = 'UTC'
AS $$
DECLARE
    most   constant integer := 10000;
    today  date := (now() AT TIME ZONE 'UTC')::date;
    other  regclass := (SELECT partdefid FROM pg_partitioned_table WHERE partrelid = parent);
    home   regnamespace := (SELECT relnamespace FROM pg_class WHERE oid = parent);
    day    date;
    name   text;
    waits  bigint;
    made   integer := 0;
BEGIN
    IF ahead IS NULL OR ahead NOT BETWEEN 0 AND 30 THEN
        RAISE EXCEPTION 'drain_make_days() makes the partitions of 0 to 30 days ahead, not of %', ahead;
    END IF;
    -- The lock of two who make the same days. Taken before the look at what is there: behind it, that is the last word.
    IF NOT pg_try_advisory_xact_lock(1785684580, 4) THEN
        RETURN 0;
    END IF;
    FOR day IN SELECT today + generate_series(0, ahead) LOOP
        name := format('%s.%I', home, 'finished_jobs_' || to_char(day, 'YYYYMMDD'));
        CONTINUE WHEN EXISTS (SELECT FROM pg_inherits WHERE inhparent = parent AND inhrelid = to_regclass(name));
        EXECUTE format('SELECT count(*) FROM (SELECT FROM %s WHERE finished_at >= $1 AND finished_at < $1 + 1 LIMIT $2) '
            'AS few', other) INTO waits USING day, most + 1;
        CONTINUE WHEN waits > most;
        BEGIN
            EXECUTE format('CREATE TABLE %s (LIKE %s INCLUDING DEFAULTS, PRIMARY KEY (id))', name, parent);
            -- With this it is known that no row is in the way, and the partition is attached without reading it.
            EXECUTE format('LOCK TABLE %s IN ACCESS EXCLUSIVE MODE', other);
            EXECUTE format('WITH moved AS (DELETE FROM %s WHERE finished_at >= %L AND finished_at < %L RETURNING *) '
                'INSERT INTO %s SELECT * FROM moved', other, day, day + 1, name);
            EXECUTE format('ALTER TABLE %s ATTACH PARTITION %s FOR VALUES FROM (%L) TO (%L)',
                parent, name, day, day + 1);
            made := made + 1;
        EXCEPTION WHEN duplicate_table OR duplicate_object THEN
            RAISE WARNING 'no partition for %: another relation or type has the name %, drop or rename it', day, name;
        END;
    END LOOP;
    RETURN made;
EXCEPTION WHEN lock_not_available THEN
    RETURN 0;
END
$$;

CREATE OR REPLACE FUNCTION drain_make_days(ahead integer) RETURNS integer LANGUAGE sql
    SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    RETURN drain_make_days_of('finished_jobs', ahead);

CREATE OR REPLACE FUNCTION drain_checksum_of(
    partition regclass, OUT counted bigint, OUT checksum numeric
) LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET timezone = 'UTC' SET datestyle = 'ISO'
AS $$
BEGIN
    EXECUTE format('SELECT count(*), coalesce(sum(hashtextextended(job::text, 0)), 0) FROM ONLY %s AS job', partition)
        INTO counted, checksum;
END
$$;

CREATE OR REPLACE FUNCTION drain_drop_day(partition regclass, expected_rows bigint, expected_checksum numeric)
    RETURNS boolean LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lock_timeout = '100ms'
    SET timezone = 'UTC' SET datestyle = 'ISO'
AS $$
DECLARE
    counted  bigint;
    checksum numeric;
BEGIN
    -- The count has to be of what is there once the lock is granted.
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'drain_drop_day() is for read committed transactions';
    END IF;
    -- Somebody else may have dropped it, and then it has no name.
    IF NOT EXISTS (SELECT FROM pg_class WHERE oid = partition) THEN
        RETURN false;
    END IF;
    EXECUTE format('LOCK TABLE ONLY %s IN SHARE MODE', partition);
    -- As drain_checksum_of, which has no name on this search_path.
    EXECUTE format('SELECT count(*), coalesce(sum(hashtextextended(job::text, 0)), 0) FROM ONLY %s AS job', partition)
        INTO counted, checksum;
    IF counted IS DISTINCT FROM expected_rows OR checksum IS DISTINCT FROM expected_checksum THEN
        RETURN false;
    END IF;
    EXECUTE format('DROP TABLE %s', partition);
    RETURN true;
EXCEPTION WHEN undefined_table THEN
    RETURN false;
END
$$;

CREATE OR REPLACE FUNCTION drain_checksum_of_late(day date, OUT counted bigint, OUT checksum numeric)
    LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp SET timezone = 'UTC' SET datestyle = 'ISO'
BEGIN ATOMIC
    SELECT pg_catalog.count(*), coalesce(pg_catalog.sum(pg_catalog.hashtextextended(job::text, 0)), 0)
    FROM finished_jobs_other AS job WHERE finished_at >= day AND finished_at < day + 1;
END;

CREATE OR REPLACE FUNCTION drain_drop_side_table_of(register regclass, side_table text) RETURNS void LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF side_table ~ '^bulk_[0-9a-f]{32}$' THEN
        EXECUTE format('DROP TABLE IF EXISTS %s.%I',
            (SELECT relnamespace::regnamespace FROM pg_class WHERE oid = register), side_table);
        EXECUTE format('DELETE FROM %s WHERE name = $1', register) USING side_table;
    END IF;
END
$$;

CREATE OR REPLACE FUNCTION drain_drop_side_table(side_table text) RETURNS void LANGUAGE sql
    RETURN drain_drop_side_table_of('bulk_side_tables', side_table);

CREATE OR REPLACE FUNCTION drain_create_side_table_of(register regclass, run text) RETURNS text LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    home regnamespace := (SELECT relnamespace FROM pg_class WHERE oid = register);
    name text := 'bulk_' || replace(gen_random_uuid()::text, '-', '');
BEGIN
    EXECUTE format('SELECT %s.drain_drop_side_table(name) FROM %s WHERE created_at < now() - make_interval(days => 1)',
        home, register);
    EXECUTE format(
        'CREATE UNLOGGED TABLE %s.%I (task bigint NOT NULL, job_name text, job_args text, job_kwargs text, queue text, '
        'priority integer, scheduled_at timestamptz, expires_at timestamptz, tag text, max_attempts integer, '
        'timeout_seconds integer, context text) WITH (autovacuum_enabled = off)', home, name);
    EXECUTE format('INSERT INTO %s (name, run_id) VALUES ($1, $2)', register) USING name, run;
    RETURN name;
END
$$;

CREATE OR REPLACE FUNCTION drain_create_side_table(run text) RETURNS text LANGUAGE sql
    RETURN drain_create_side_table_of('bulk_side_tables', run);

CREATE OR REPLACE FUNCTION drain_wake_enqueuer() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NOT pg_catalog.pg_try_advisory_xact_lock_shared(1785684580, 2) THEN
        PERFORM pg_catalog.pg_notify('staged_jobs', '');
    END IF;
    RETURN NULL;
END
$$;

REVOKE ALL ON FUNCTION
    drain_truncate_if_empty(regclass), drain_finish(bigint, bigint), drain_make_days(integer),
    drain_make_days_of(regclass, integer), drain_checksum_of(regclass), drain_checksum_of_late(date),
    drain_drop_day(regclass, bigint, numeric), drain_create_side_table(text), drain_drop_side_table(text),
    drain_create_side_table_of(regclass, text), drain_drop_side_table_of(regclass, text), drain_wake_enqueuer()
    FROM PUBLIC;

-- Up to version 1 everybody could call these. Roles that could make use of one, since the tables behind it were granted
-- to them, go on.
DO $$
DECLARE
    it record;
BEGIN
    FOR it IN
        SELECT DISTINCT may.function, job.grantee::pg_catalog.regrole AS role
        FROM (VALUES
            ('drain_finish(bigint, bigint)'::pg_catalog.regprocedure, 'inflight_jobs'::pg_catalog.regclass,
                'DELETE'::pg_catalog.text),
            ('drain_make_days(integer)', 'drain_state', 'UPDATE'),
            ('drain_truncate_if_empty(regclass)', 'staged_jobs_ready_0', 'TRUNCATE')
        ) AS may (function, relation, privilege)
            JOIN pg_catalog.pg_class AS home ON home.oid = may.relation::pg_catalog.oid,
        LATERAL pg_catalog.aclexplode(home.relacl) AS job
        WHERE job.privilege_type = may.privilege AND job.grantee NOT IN (home.relowner, 0::pg_catalog.oid)
    LOOP
        EXECUTE pg_catalog.format('GRANT EXECUTE ON FUNCTION %s TO %s', it.function, it.role);
    END LOOP;
END
$$;

-- All locks at once or none, and in the order in which jobs pass through the tables. Everybody who stages waits
-- behind this statement, so it ends before the second (deadlock_timeout) after which PostgreSQL would look for a
-- deadlock, and end the transaction of somebody else.
SET LOCAL statement_timeout = '900ms';
LOCK TABLE staged_jobs, inflight_jobs, dead_jobs IN ACCESS EXCLUSIVE MODE;
SET LOCAL statement_timeout TO DEFAULT;

-- First the column, then its default: rows from before get no value, and no table is rewritten.
ALTER TABLE staged_jobs ADD COLUMN salt bigint;
ALTER TABLE staged_jobs ALTER COLUMN salt SET DEFAULT (random() * 9007199254740992)::bigint;
ALTER TABLE inflight_jobs ADD COLUMN salt bigint;
ALTER TABLE dead_jobs ADD COLUMN salt bigint;

-- NOT VALID: the rows that are there are read after the commit, when nobody waits.
ALTER TABLE staged_jobs ADD CONSTRAINT id_must_lie_between_1_and_10_to_the_power_of_18
    CHECK (id > 0 AND id < 1000000000000000000) NOT VALID;
ALTER TABLE staged_jobs ADD CONSTRAINT fencing_token_must_lie_between_0_and_10_to_the_power_of_18
    CHECK (fencing_token >= 0 AND fencing_token <= 1000000000000000000) NOT VALID;

INSERT INTO drain_schema (version) VALUES (2);

-- After the commit:

-- No program could deliver these.
WITH refused AS (
    DELETE FROM staged_jobs
    WHERE NOT (id > 0 AND id < 1000000000000000000 AND fencing_token >= 0 AND fencing_token <= 1000000000000000000)
    RETURNING *
)
INSERT INTO dead_jobs (id, job_name, job_args, job_kwargs, queue, priority, scheduled_at, expires_at, tag,
    max_attempts, timeout_seconds, context, staged_at, fencing_token, history, salt, reason, explanation)
SELECT id, job_name, job_args, job_kwargs, queue, priority, scheduled_at, expires_at, tag,
    max_attempts, timeout_seconds, context, staged_at, fencing_token, history, salt, 'unreadable',
    'its id or its fencing token is not one that job-drain gives'
FROM refused;
ALTER TABLE staged_jobs VALIDATE CONSTRAINT id_must_lie_between_1_and_10_to_the_power_of_18;
ALTER TABLE staged_jobs VALIDATE CONSTRAINT fencing_token_must_lie_between_0_and_10_to_the_power_of_18;
