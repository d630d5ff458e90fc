-- From version 3 to 4: Postgres decides who is next. Jobs may have a key and a unique key, queues may have rules, and jobs
-- may be staged by a schedule or under an idempotency key.
--
-- Programs of version 3 go on working afterwards: they name the columns that they read and write, and leave out the new
-- ones. A leader of version 3 follows no rules, and should be replaced first.

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
LOCK TABLE staged_jobs, inflight_jobs, finished_jobs, dead_jobs IN ACCESS EXCLUSIVE MODE;
SET LOCAL statement_timeout TO DEFAULT;

ALTER TABLE staged_jobs ADD COLUMN key text, ADD COLUMN unique_key text, ADD COLUMN keep text,
    ADD COLUMN quiet_seconds double precision;
ALTER TABLE staged_jobs ADD CONSTRAINT key_must_have_1_to_255_characters
    CHECK (char_length(key) BETWEEN 1 AND 255) NOT VALID;
ALTER TABLE staged_jobs ADD CONSTRAINT unique_key_must_have_1_to_255_characters
    CHECK (char_length(unique_key) BETWEEN 1 AND 255) NOT VALID;
ALTER TABLE staged_jobs ADD CONSTRAINT keep_must_be_first_or_last
    CHECK (keep IN ('first', 'last')) NOT VALID;
ALTER TABLE staged_jobs ADD CONSTRAINT quiet_seconds_must_be_positive_and_at_most_a_year
    CHECK (quiet_seconds > '0' AND quiet_seconds <= '31536000') NOT VALID;
ALTER TABLE staged_jobs ADD CONSTRAINT keep_and_quiet_seconds_need_a_unique_key
    CHECK (unique_key IS NOT NULL OR (keep IS NULL AND quiet_seconds IS NULL)) NOT VALID;
ALTER TABLE inflight_jobs ADD COLUMN key text, ADD COLUMN unique_key text, ADD COLUMN keep text,
    ADD COLUMN quiet_seconds double precision;
ALTER TABLE finished_jobs ADD COLUMN key text, ADD COLUMN superseded_by bigint;
ALTER TABLE dead_jobs ADD COLUMN key text, ADD COLUMN unique_key text, ADD COLUMN keep text,
    ADD COLUMN quiet_seconds double precision;

-- Roles that may stage a job may give it a key: `drain roles` grants columns.
DO $$
DECLARE
    it record;
BEGIN
    FOR it IN
        SELECT DISTINCT job.grantee::pg_catalog.regrole AS role
        FROM pg_catalog.pg_attribute AS home, LATERAL pg_catalog.aclexplode(home.attacl) AS job
        WHERE home.attrelid = 'staged_jobs'::pg_catalog.regclass::pg_catalog.oid
            AND home.attname = 'tag'::pg_catalog.name AND job.privilege_type = 'INSERT'::pg_catalog.text
            AND job.grantee <> 0::pg_catalog.oid
    LOOP
        EXECUTE pg_catalog.format('GRANT INSERT (key, unique_key, keep, quiet_seconds) ON staged_jobs TO %s', it.role);
    END LOOP;
END
$$;

-- The texts are those of schema.sql.
CREATE OR REPLACE FUNCTION drain_finish(job bigint, token bigint) RETURNS boolean LANGUAGE plpgsql
    SET enable_seqscan = off AS $$
BEGIN
    WITH done AS (DELETE FROM inflight_jobs WHERE id = job AND fencing_token = token RETURNING *)
    INSERT INTO finished_jobs (id, job_name, job_args, job_kwargs, queue, priority, scheduled_at, tag, context,
        staged_at, moved_at, claimed_at, finished_at, finished_by, attempts, fencing_token, last_error, history, key)
    SELECT id, job_name, job_args, job_kwargs, queue, priority, scheduled_at, tag, context,
        staged_at, moved_at, claimed_at, pg_catalog.clock_timestamp(), claimed_by, attempts + batched::integer,
        fencing_token, last_error, history, key
    FROM done;
    RETURN FOUND;
END
$$;

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
        'timeout_seconds integer, context text, key text, unique_key text, keep text, quiet_seconds double precision) '
        'WITH (autovacuum_enabled = off)', home, name);
    EXECUTE format('INSERT INTO %s (name, run_id) VALUES ($1, $2)', register) USING name, run;
    RETURN name;
END
$$;

-- queues: rules of a queue, for the enqueuer, which follows a change within a second. A queue without a row has no rules.
CREATE TABLE queues (
    queue           text        PRIMARY KEY,
    -- Upper bound of the jobs that are delivered or claimed at a time, of the queue and of each key.
    running         integer,
    running_per_key integer,
    -- Upper bound of the jobs that begin in a time, as '100/s', '10/min', '5/h' or '1/d'; and how many may begin at once
    -- after a pause.
    rate            text,
    rate_per_key    text,
    burst           integer,
    -- Keys take turns, those with a weight as often as {"key": weight} says; other keys have the weight 1.
    fair            boolean     NOT NULL DEFAULT false,
    weights         jsonb       NOT NULL DEFAULT '{}',
    -- The jobs of a key run one at a time, in the order of their ids; what becomes of the others when one is dead.
    ordered         boolean     NOT NULL DEFAULT false,
    on_dead         text        NOT NULL DEFAULT 'hold',
    -- Seconds of waiting that count as one step of priority.
    aging_seconds   double precision,
    changed_at      timestamptz NOT NULL DEFAULT clock_timestamp(),

    CONSTRAINT queue_must_be_a_name_that_rq_can_carry
        CHECK (queue ~ '^[A-Za-z0-9_][A-Za-z0-9_.:-]*$' AND char_length(queue) <= 100),
    CONSTRAINT running_must_be_positive CHECK (running > 0 AND running_per_key > 0),
    CONSTRAINT rate_must_be_a_number_a_time
        CHECK (rate ~ '^[1-9][0-9]{0,8}/(s|min|h|d)$' AND rate_per_key ~ '^[1-9][0-9]{0,8}/(s|min|h|d)$'),
    CONSTRAINT burst_must_be_positive CHECK (burst > 0),
    CONSTRAINT weights_must_be_an_object CHECK (jsonb_typeof(weights) = 'object'),
    CONSTRAINT weights_must_be_numbers_from_one_thousandth_to_1000
        CHECK (NOT jsonb_path_exists(weights, '$.* ? (@.type() != "number" || @ < 0.001 || @ > 1000)')),
    CONSTRAINT on_dead_must_be_hold_or_skip CHECK (on_dead IN ('hold', 'skip')),
    CONSTRAINT aging_seconds_must_be_positive_and_at_most_a_year
        CHECK (aging_seconds > '0' AND aging_seconds <= '31536000'),
    -- Rules that contradict each other.
    CONSTRAINT running_per_key_must_not_exceed_running CHECK (running_per_key <= running),
    CONSTRAINT ordered_needs_running_per_key_of_one CHECK (NOT ordered OR coalesce(running_per_key, 1) = 1),
    CONSTRAINT weights_need_fair CHECK (fair OR weights = '{}'),
    CONSTRAINT burst_needs_a_rate CHECK (burst IS NULL OR coalesce(rate, rate_per_key) IS NOT NULL),
    CONSTRAINT on_dead_needs_ordered CHECK (ordered OR on_dead = 'hold'),
    CONSTRAINT aging_needs_a_queue_without_rules_for_keys
        CHECK (aging_seconds IS NULL OR NOT (fair OR ordered OR coalesce(running_per_key::text, rate_per_key) IS NOT NULL))
);

-- queue_pauses: queues, names of jobs and keys of which nothing is started: a job to which all columns apply that are
-- not NULL. `until` is NULL for as long as nobody resumes it.
CREATE TABLE queue_pauses (
    number    bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    queue     text,
    job_name  text,
    key       text,
    until     timestamptz,
    reason    text,
    paused_by text,
    paused_at timestamptz NOT NULL DEFAULT clock_timestamp(),

    CONSTRAINT something_must_be_paused CHECK (coalesce(queue, job_name, key) IS NOT NULL),
    CONSTRAINT names_of_a_pause_must_have_1_to_255_characters
        CHECK (char_length(queue) BETWEEN 1 AND 255 AND char_length(job_name) BETWEEN 1 AND 255
            AND char_length(key) BETWEEN 1 AND 255),
    -- A time that programs cannot read would end the leader.
    CONSTRAINT times_must_lie_between_the_years_1_and_9999
        CHECK (least(until, paused_at) > '0001-01-02 00:00:00+00'
            AND greatest(until, paused_at) < '9999-12-30 00:00:00+00')
);
CREATE UNIQUE INDEX queue_pauses_once
    ON queue_pauses (coalesce(queue, ''), coalesce(job_name, ''), coalesce(key, ''), (until IS NULL));

-- crons: schedules. At each tick of a schedule the leader stages its job, and moves the schedule on, in one transaction.
-- Plain SQL can schedule too; after a change of the line or the zone, set next_tick_at to NULL:
--
--     INSERT INTO crons (name, job_name, cron) VALUES ('nightly report', 'shop.jobs.report', '0 3 * * *');
CREATE TABLE crons (
    name         text        PRIMARY KEY,
    job_name     text        NOT NULL,
    -- Five fields, as in crontab(5), read in this time zone.
    cron         text        NOT NULL,
    timezone     text        NOT NULL DEFAULT 'UTC',
    -- Ticks that passed while there was no leader: 'last' of them is staged, 'all', or 'none'.
    missed       text        NOT NULL DEFAULT 'last',
    job_args     jsonb       NOT NULL DEFAULT '[]',
    job_kwargs   jsonb       NOT NULL DEFAULT '{}',
    -- Options of the staged rows, by the names of their columns.
    options      jsonb       NOT NULL DEFAULT '{}',
    -- True: @job(cron=...) declares it, and `drain work` keeps it as the code says. False: an application's own.
    declared     boolean     NOT NULL DEFAULT false,
    paused       boolean     NOT NULL DEFAULT false,
    -- Reason for which the leader cannot stage its job. Each new leader tries again.
    error        text,
    -- NULL: the leader computes it, as the first tick after changed_at.
    next_tick_at timestamptz,
    last_tick_at timestamptz,
    last_job_id  bigint,
    changed_at   timestamptz NOT NULL DEFAULT clock_timestamp(),

    -- The tag of the jobs is 'cron:' and the name.
    CONSTRAINT name_must_be_a_word_of_up_to_250_characters CHECK (name ~ '^[^[:cntrl:]]{1,250}$'),
    CONSTRAINT job_name_must_be_a_name_of_up_to_255_characters
        CHECK (job_name = btrim(job_name) AND char_length(job_name) BETWEEN 1 AND 255),
    CONSTRAINT cron_must_not_exceed_255_characters CHECK (char_length(cron) <= 255),
    CONSTRAINT timezone_must_not_exceed_255_characters CHECK (char_length(timezone) <= 255),
    CONSTRAINT missed_must_be_last_all_or_none CHECK (missed IN ('last', 'all', 'none')),
    CONSTRAINT job_args_must_be_a_json_array CHECK (jsonb_typeof(job_args) = 'array'),
    CONSTRAINT job_kwargs_must_be_a_json_object CHECK (jsonb_typeof(job_kwargs) = 'object'),
    CONSTRAINT job_arguments_must_not_exceed_1_mebibyte
        CHECK (octet_length(job_args::text) + octet_length(job_kwargs::text) <= 1048576),
    CONSTRAINT options_must_be_a_json_object CHECK (jsonb_typeof(options) = 'object'),
    CONSTRAINT times_must_lie_between_the_years_1_and_9999
        CHECK (least(next_tick_at, last_tick_at, changed_at) > '0001-01-02 00:00:00+00'
            AND greatest(next_tick_at, last_tick_at, changed_at) < '9999-12-30 00:00:00+00')
);
CREATE INDEX crons_next_tick ON crons (next_tick_at NULLS FIRST) WHERE NOT paused AND error IS NULL;

-- idempotency_keys: jobs that were staged with an idempotency key: staged again with the same key, it is the same job.
CREATE TABLE idempotency_keys (
    idempotency_key text        PRIMARY KEY,
    job_id          bigint,
    job_name        text        NOT NULL,
    -- SHA-256 of the name and the arguments.
    digest          bytea       NOT NULL,
    staged_at       timestamptz NOT NULL DEFAULT now(),
    expires_at      timestamptz NOT NULL,

    CONSTRAINT idempotency_key_must_have_1_to_255_characters
        CHECK (char_length(idempotency_key) BETWEEN 1 AND 255)
);
CREATE INDEX idempotency_keys_expired ON idempotency_keys (expires_at);

-- Stages a job, unless one was staged under this key that is still kept: the key is kept for `keep_seconds` from now on.
-- Returns the id of the job under the key, as a negative number if that job has another name or other arguments.
-- `job` has the columns that an application may give, and job_name at least:
--
--     SELECT drain_stage_once('webhook:9f', 86400, '{"job_name": "shop.jobs.send_receipt", "job_args": [42]}');
--
-- A second transaction with the same key waits until the first one has ended. At repeatable read it fails then with
-- serialization_failure, as any transaction that writes what another one has written.
--
-- Runs with the rights of the owner, since an application may read no key of others, and change none.
CREATE OR REPLACE FUNCTION drain_stage_once(key text, keep_seconds double precision, job jsonb) RETURNS bigint
    LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    WITH given AS (
        SELECT new.*, coalesce(new.job_args, '[]'::jsonb) AS args, coalesce(new.job_kwargs, '{}'::jsonb) AS kwargs
        FROM pg_catalog.jsonb_to_record(drain_stage_once.job) AS new (job_name text, job_args jsonb, job_kwargs jsonb,
            queue text, priority integer, scheduled_at timestamptz, expires_at timestamptz, tag text,
            max_attempts integer, timeout_seconds integer, context jsonb, key text, unique_key text, keep text,
            quiet_seconds double precision)
    ), reserved AS (
        INSERT INTO idempotency_keys AS kept (idempotency_key, job_id, job_name, digest, expires_at)
        SELECT drain_stage_once.key, pg_catalog.nextval('staged_jobs_id_seq'::regclass), given.job_name,
            pg_catalog.sha256(pg_catalog.convert_to(
                pg_catalog.concat_ws(' ', given.job_name, given.args, given.kwargs), 'UTF8'::name)),
            pg_catalog.clock_timestamp() + pg_catalog.make_interval(secs => keep_seconds)
        FROM given WHERE NOT EXISTS (
            SELECT FROM idempotency_keys AS known
            WHERE known.idempotency_key = drain_stage_once.key AND known.expires_at > pg_catalog.clock_timestamp())
        ON CONFLICT (idempotency_key) DO UPDATE SET job_id = excluded.job_id, job_name = excluded.job_name,
            digest = excluded.digest, staged_at = excluded.staged_at, expires_at = excluded.expires_at
            WHERE kept.expires_at <= pg_catalog.clock_timestamp()
        RETURNING kept.job_id
    )
    INSERT INTO staged_jobs (id, job_name, job_args, job_kwargs, queue, priority, scheduled_at, expires_at, tag,
        max_attempts, timeout_seconds, context, key, unique_key, keep, quiet_seconds)
    OVERRIDING SYSTEM VALUE
    SELECT reserved.job_id, given.job_name, given.args, given.kwargs, coalesce(given.queue, 'default'),
        coalesce(given.priority, 0), coalesce(given.scheduled_at, pg_catalog.now())
            + pg_catalog.make_interval(secs => coalesce(given.quiet_seconds, '0')),
        given.expires_at, given.tag, given.max_attempts, given.timeout_seconds, given.context, given.key,
        given.unique_key, given.keep, given.quiet_seconds
    FROM reserved, given;

    SELECT CASE WHEN kept.job_name = new.job_name AND kept.digest = pg_catalog.sha256(pg_catalog.convert_to(
            pg_catalog.concat_ws(' ', new.job_name, coalesce(new.job_args, '[]'::jsonb),
                coalesce(new.job_kwargs, '{}'::jsonb)), 'UTF8'::name))
        THEN kept.job_id ELSE - kept.job_id END
    FROM idempotency_keys AS kept, pg_catalog.jsonb_to_record(drain_stage_once.job)
        AS new (job_name text, job_args jsonb, job_kwargs jsonb)
    WHERE kept.idempotency_key = drain_stage_once.key;
END;

-- Roles that stage may stage once, too; roles that let scheduled rows mature may do what unique keys need.
REVOKE ALL ON FUNCTION drain_stage_once(text, double precision, jsonb) FROM PUBLIC;
DO $$
DECLARE
    it record;
BEGIN
    FOR it IN
        SELECT DISTINCT job.grantee::pg_catalog.regrole AS role, home.attname = 'tag'::pg_catalog.name AS stages
        FROM pg_catalog.pg_attribute AS home, LATERAL pg_catalog.aclexplode(home.attacl) AS job
        WHERE home.attrelid = 'staged_jobs'::pg_catalog.regclass::pg_catalog.oid AND job.grantee <> 0::pg_catalog.oid
            AND (home.attname = 'tag'::pg_catalog.name AND job.privilege_type = 'INSERT'::pg_catalog.text
                OR home.attname = 'matured_at'::pg_catalog.name AND job.privilege_type = 'UPDATE'::pg_catalog.text)
    LOOP
        IF it.stages THEN
            EXECUTE pg_catalog.format('GRANT EXECUTE ON FUNCTION drain_stage_once(text, double precision, jsonb) TO %s',
                it.role);
        ELSE
            EXECUTE pg_catalog.format(
                'GRANT UPDATE (scheduled_at) ON staged_jobs, staged_jobs_ready, staged_jobs_scheduled TO %s', it.role);
            EXECUTE pg_catalog.format('GRANT UPDATE (fencing_token) ON inflight_jobs TO %s', it.role);
            EXECUTE pg_catalog.format('GRANT INSERT, SELECT (superseded_by) ON finished_jobs TO %s', it.role);
            EXECUTE pg_catalog.format(
                'GRANT DELETE, SELECT (idempotency_key, expires_at) ON idempotency_keys TO %s', it.role);
        END IF;
    END LOOP;
END
$$;

-- Roles get the rights on the new tables that the programs of version 4 need with their role: a role is known by a right
-- that `drain roles` gives to no other.
DO $$
DECLARE
    it record;
BEGIN
    FOR it IN
        SELECT DISTINCT may.rights, job.grantee::pg_catalog.regrole AS role
        FROM (VALUES
            -- The enqueuer.
            ('staged_jobs_ready', 'DELETE', 'SELECT ON queues, queue_pauses'),
            ('staged_jobs_ready', 'DELETE', 'DELETE ON queue_pauses'),
            ('staged_jobs_ready', 'DELETE', 'SELECT (queue, key, reason, attempts, died_at) ON dead_jobs'),
            ('staged_jobs_ready', 'DELETE', 'SELECT (key, attempts, moved_at, claimed_at) ON finished_jobs'),
            ('staged_jobs_ready', 'DELETE', 'SELECT, UPDATE (next_tick_at, last_tick_at, last_job_id, error) ON crons'),
            ('staged_jobs_ready', 'DELETE', 'INSERT (job_name, job_args, job_kwargs, queue, priority, scheduled_at, '
                'expires_at, tag, max_attempts, timeout_seconds, context, key, unique_key, keep, quiet_seconds) ON staged_jobs'),
            -- Workers.
            ('stale_finishes', 'INSERT', 'INSERT (queue, job_name, key, until, reason, paused_by), '
                'UPDATE (until, reason, paused_by), SELECT (queue, job_name, key, until, reason, paused_by) ON queue_pauses'),
            ('stale_finishes', 'INSERT', 'SELECT (reason) ON dead_jobs'),
            ('stale_finishes', 'INSERT', 'SELECT (queue, key, priority, id, scheduled_at, staged_at, matured_at) '
                'ON staged_jobs_ready, staged_jobs_scheduled'),
            ('stale_finishes', 'INSERT', 'SELECT (name, job_name, cron, timezone, missed, options, declared, next_tick_at), '
                'INSERT (name, job_name, cron, timezone, missed, options, declared), UPDATE (name, job_name, cron, timezone, '
                'missed, options, declared, next_tick_at, error, changed_at) ON crons'),
            -- Inspection.
            ('stale_finishes', 'SELECT', 'SELECT ON queues, queue_pauses, crons, idempotency_keys')
        ) AS may (relation, privilege, rights)
            JOIN pg_catalog.pg_class AS home ON home.oid = may.relation::pg_catalog.regclass::pg_catalog.oid,
        LATERAL pg_catalog.aclexplode(home.relacl) AS job
        WHERE job.privilege_type = may.privilege AND job.grantee NOT IN (home.relowner, 0::pg_catalog.oid)
    LOOP
        EXECUTE pg_catalog.format('GRANT %s TO %s', it.rights, it.role);
    END LOOP;
END
$$;

INSERT INTO drain_schema (version) VALUES (4);

-- After the commit:
-- All locks at once or none, as above: the leader, which moves rows from table to table, could otherwise hold one of them
-- and wait for another.
SET LOCAL statement_timeout = '900ms';
LOCK TABLE staged_jobs, inflight_jobs, dead_jobs IN ACCESS EXCLUSIVE MODE;
SET LOCAL statement_timeout TO DEFAULT;
ALTER TABLE staged_jobs VALIDATE CONSTRAINT key_must_have_1_to_255_characters;
ALTER TABLE staged_jobs VALIDATE CONSTRAINT unique_key_must_have_1_to_255_characters;
ALTER TABLE staged_jobs VALIDATE CONSTRAINT keep_must_be_first_or_last;
ALTER TABLE staged_jobs VALIDATE CONSTRAINT quiet_seconds_must_be_positive_and_at_most_a_year;
ALTER TABLE staged_jobs VALIDATE CONSTRAINT keep_and_quiet_seconds_need_a_unique_key;
-- These let transactions that stage wait while they read the rows that are there: a second for a million. (CONCURRENTLY
-- is not possible in a transaction.)
CREATE INDEX IF NOT EXISTS staged_jobs_in_lanes
    ON staged_jobs_ready (((priority > 0)::integer * 2 + (key IS NOT NULL)::integer), queue COLLATE "C", priority, id)
    WHERE scheduled_at <= staged_at OR matured_at IS NOT NULL;
CREATE INDEX IF NOT EXISTS staged_jobs_by_key ON staged_jobs_ready (queue, key, priority, id)
    WHERE (scheduled_at <= staged_at OR matured_at IS NOT NULL) AND key IS NOT NULL;
CREATE INDEX IF NOT EXISTS staged_jobs_unique ON staged_jobs (unique_key, id) WHERE unique_key IS NOT NULL;
CREATE INDEX IF NOT EXISTS inflight_jobs_unique ON inflight_jobs (unique_key)
    WHERE unique_key IS NOT NULL AND lease_expires_at IS NULL;
CREATE INDEX IF NOT EXISTS dead_jobs_by_key ON dead_jobs (queue, key) WHERE key IS NOT NULL;
DROP INDEX IF EXISTS staged_jobs_due;
