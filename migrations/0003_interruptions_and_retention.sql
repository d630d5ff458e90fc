-- From version 2 to 3: how often an attempt of a job did not count, because its worker was told to stop; and days of
-- finished_jobs can be dropped by the leader.
--
-- Programs of version 2 go on working afterwards: they name the columns that they read and write, and leave out the new
-- ones. An attempt that one of them interrupts counts, as before.

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

-- All locks at once or none. Everybody who drains, claims or finishes waits behind this statement, so it ends before the
-- second (deadlock_timeout) after which PostgreSQL would look for a deadlock, and end the transaction of somebody else.
SET LOCAL statement_timeout = '900ms';
LOCK TABLE inflight_jobs, drain_state IN ACCESS EXCLUSIVE MODE;
SET LOCAL statement_timeout TO DEFAULT;

-- A default that is a constant is kept beside the table: no row is read or written.
ALTER TABLE inflight_jobs ADD COLUMN interruptions integer NOT NULL DEFAULT 0;

-- Roles that may count attempts may count these: `drain roles` grants columns.
DO $$
DECLARE
    it record;
BEGIN
    FOR it IN
        SELECT DISTINCT job.grantee::pg_catalog.regrole AS role
        FROM pg_catalog.pg_attribute AS home, LATERAL pg_catalog.aclexplode(home.attacl) AS job
        WHERE home.attrelid = 'inflight_jobs'::pg_catalog.regclass::pg_catalog.oid
            AND home.attname = 'attempts'::pg_catalog.name AND job.privilege_type = 'UPDATE'::pg_catalog.text
            AND job.grantee <> 0::pg_catalog.oid
    LOOP
        EXECUTE pg_catalog.format('GRANT UPDATE (interruptions) ON inflight_jobs TO %s', it.role);
    END LOOP;
END
$$;

ALTER TABLE drain_state ADD COLUMN dropped_before date;
ALTER TABLE drain_state ADD COLUMN dropped_up_to bigint;

-- The texts are those of schema.sql.
-- Drops the oldest day of finished_jobs that is over, but for the last `keep` of them, by UTC. Returns that day and the
-- number of its jobs, an estimate for a large one; nothing if there is none, or while `drain archive` is at work. Of a
-- day without a partition some thousand rows are deleted. A day that is in use is left alone after a moment, with
-- lock_not_available. Any other table that has been attached to finished_jobs is left alone for good.
CREATE OR REPLACE FUNCTION drain_drop_old_day_of(
    parent regclass, notes regclass, keep integer, OUT day date, OUT jobs bigint
) LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lock_timeout = '100ms'
    SET timezone = 'UTC' SET datestyle = 'ISO'
AS $$
DECLARE
    most      constant integer := 10000;
    small     constant bigint := 64 * 1024 * 1024;
    days      constant text := 'FOR VALUES FROM (''%s 00:00:00+00'') TO (''%s 00:00:00+00'')';
    lower     constant text := '^FOR VALUES FROM \(''(\d{4}-\d\d-\d\d) 00:00:00\+00''\)';
    first     date := (now() AT TIME ZONE 'UTC')::date - keep;
    other     regclass := (SELECT partdefid FROM pg_partitioned_table WHERE partrelid = parent);
    partition regclass;
    highest   bigint;
BEGIN
    -- The count has to be of what is there once the lock is granted.
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'drain_drop_old_day() is for read committed transactions';
    END IF;
    IF keep IS NULL OR keep NOT BETWEEN 1 AND 36500 THEN
        RAISE EXCEPTION 'drain_drop_old_day() keeps 1 to 36500 days, not %', keep;
    END IF;
    -- The lock that `drain archive` holds.
    IF NOT pg_try_advisory_xact_lock(1785684580, 6) THEN
        RETURN;
    END IF;
    SELECT child.oid, begins INTO partition, day
    FROM pg_inherits JOIN pg_class AS child ON child.oid = inhrelid,
        LATERAL (SELECT pg_get_expr(child.relpartbound, child.oid)) AS bounds (text),
        LATERAL (SELECT substring(bounds.text FROM lower)::date) AS bound (begins)
    WHERE inhparent = parent AND child.relkind = 'r' AND begins < first
        AND bounds.text = format(days, begins, begins + 1)
        AND child.relname::text = 'finished_jobs_' || to_char(begins, 'YYYYMMDD')
    ORDER BY begins LIMIT 1;
    IF partition IS NOT NULL THEN
        EXECUTE format('LOCK TABLE ONLY %s IN SHARE MODE', partition);
        EXECUTE format('SELECT max(id) FROM ONLY %s', partition) INTO highest;
        IF pg_relation_size(partition) < small THEN
            EXECUTE format('SELECT count(*) FROM ONLY %s', partition) INTO jobs;
        ELSE
            jobs := (SELECT greatest(reltuples, 0)::bigint FROM pg_class WHERE oid = partition);
        END IF;
        EXECUTE format('DROP TABLE %s', partition);
    ELSE
        EXECUTE format('SELECT (min(finished_at) AT TIME ZONE ''UTC'')::date FROM %s WHERE finished_at < $1', other)
            INTO day USING first;
        IF day IS NULL THEN
            RETURN;
        END IF;
        EXECUTE format('WITH gone AS (DELETE FROM %1$s WHERE ctid = ANY (ARRAY('
            'SELECT ctid FROM %1$s WHERE finished_at >= $1 AND finished_at < $1 + 1 LIMIT $2)) RETURNING id) '
            'SELECT count(*), max(id) FROM gone', other) INTO jobs, highest USING day, most;
    END IF;
    EXECUTE format('UPDATE %s SET dropped_before = greatest(dropped_before, $1), '
        'dropped_up_to = greatest(dropped_up_to, $2)', notes) USING day + 1, highest;
END
$$;

-- Runs with the rights of the owner, since the leader owns no table (`drain run --keep-days`). The caller chooses
-- nothing but how many days stay, and today and the day before it are always among them.
CREATE OR REPLACE FUNCTION drain_drop_old_day(keep integer, OUT day date, OUT jobs bigint) LANGUAGE sql
    SECURITY DEFINER SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT dropped.day, dropped.jobs FROM drain_drop_old_day_of('finished_jobs', 'drain_state', keep) AS dropped;
END;

REVOKE ALL ON FUNCTION drain_drop_old_day(integer), drain_drop_old_day_of(regclass, regclass, integer) FROM PUBLIC;

INSERT INTO drain_schema (version) VALUES (3);
