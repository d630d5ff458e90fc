-- From version 5 to 6: fences of claims, rules that cannot be followed, places of cancelled jobs, and the role that has
-- staged a job.
--
-- Programs of version 5 go on working afterwards: they name the columns that they read and write, and the functions that
-- they call keep their signatures. A leader of version 5 counts no cancelled job as running; a job that it has moved has
-- no role, so no application can read its result.

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

-- All locks at once or none. Everybody who stages, drains, claims or finishes waits behind this statement, so it ends
-- before the second (deadlock_timeout) after which PostgreSQL would look for a deadlock, and end the transaction of
-- somebody else.
SET LOCAL statement_timeout = '900ms';
LOCK TABLE staged_jobs, inflight_jobs, finished_jobs, dead_jobs, queues, idempotency_keys, bulk_runs
    IN ACCESS EXCLUSIVE MODE;
SET LOCAL statement_timeout TO DEFAULT;

-- Ordered queues: a job that waits for its next attempt holds its key. Few rows wait, and the others are in lists that
-- hold what workers take in a tenth of a second: the index is made in milliseconds.
CREATE INDEX IF NOT EXISTS inflight_jobs_holding ON inflight_jobs (queue, key, id)
    WHERE next_run_at IS NOT NULL AND key IS NOT NULL;

-- Rules that cannot be followed hold their queue, and the leader notes why. The table is small, so its checks are
-- validated at once: rows are brought within them first, which changes nothing that a job could notice.
UPDATE queues SET burst = least(burst, (
    SELECT pg_catalog.min(split_part(given, '/', 1)::bigint * 31536000
        / CASE split_part(given, '/', 2) WHEN 's' THEN 1 WHEN 'min' THEN 60 WHEN 'h' THEN 3600 ELSE 86400 END)
    FROM (VALUES (rate), (rate_per_key)) AS rates (given)))
WHERE burst IS NOT NULL;
UPDATE queues SET weights = (
    SELECT coalesce(pg_catalog.jsonb_object_agg(key, value), '{}') FROM pg_catalog.jsonb_each(weights)
    WHERE char_length(key) BETWEEN 1 AND 255 AND jsonb_typeof(value) = 'number')
WHERE weights <> '{}';
ALTER TABLE queues
    ADD COLUMN error text,
    DROP CONSTRAINT weights_must_be_numbers_from_one_thousandth_to_1000,
    ADD CONSTRAINT weights_must_be_numbers_from_one_thousandth_to_1000
        CHECK (NOT jsonb_path_exists(weights, 'strict $.* ? (@.type() != "number" || @ < 0.001 || @ > 1000)', '{}', true)),
    ADD CONSTRAINT keys_of_weights_must_have_1_to_255_characters
        CHECK (NOT jsonb_path_exists(
        weights, 'strict $.keyvalue() ? (!(@.key like_regex "^.{1,255}$" flag "s"))', '{}', true)),
    ADD CONSTRAINT burst_must_fill_within_a_year
        CHECK (CASE WHEN rate ~ '^[1-9][0-9]{0,8}/(s|min|h|d)$' THEN
        burst::bigint * CASE split_part(rate, '/', 2) WHEN 's' THEN 1 WHEN 'min' THEN 60 WHEN 'h' THEN 3600 ELSE 86400 END
            <= split_part(rate, '/', 1)::bigint * 31536000
        ELSE true END),
    ADD CONSTRAINT burst_must_fill_within_a_year_for_each_key
        CHECK (CASE WHEN rate_per_key ~ '^[1-9][0-9]{0,8}/(s|min|h|d)$' THEN
        burst::bigint * CASE split_part(rate_per_key, '/', 2) WHEN 's' THEN 1 WHEN 'min' THEN 60 WHEN 'h' THEN 3600 ELSE 86400 END
            <= split_part(rate_per_key, '/', 1)::bigint * 31536000
        ELSE true END);

-- cancelled_claims: claims of jobs that were cancelled while a worker had them. Until the worker has confirmed that its
-- attempt has ended, or the lease is over, such a claim keeps its place among the running jobs of its queue and key.
CREATE TABLE IF NOT EXISTS cancelled_claims (
    id               bigint      NOT NULL,
    -- The token of the claim; the dead job has a higher one.
    fencing_token    bigint      NOT NULL,
    salt             bigint,
    queue            text        NOT NULL,
    key              text,
    claimed_at       timestamptz NOT NULL,
    claimed_by       text        NOT NULL,
    lease_expires_at timestamptz NOT NULL,
    PRIMARY KEY (id, fencing_token)
);
CREATE INDEX IF NOT EXISTS cancelled_claims_of_queues ON cancelled_claims (queue);

-- The role that has staged a job. The default follows: with it, ADD COLUMN would name the owner in each row that is there.
ALTER TABLE staged_jobs ADD COLUMN staged_by text;
ALTER TABLE staged_jobs ALTER COLUMN staged_by
    SET DEFAULT coalesce(nullif(pg_catalog.current_setting('role'), 'none'), session_user::text);
ALTER TABLE inflight_jobs ADD COLUMN staged_by text;
ALTER TABLE finished_jobs ADD COLUMN staged_by text;
ALTER TABLE dead_jobs ADD COLUMN staged_by text;

-- Bulk runs copy straight into staged_jobs, and note what they stage as they begin. Drivers of an earlier version that
-- are still at work fail, and have staged nothing.
ALTER TABLE bulk_runs
    ADD COLUMN plan text,
    ADD COLUMN begun_at timestamptz,
    ADD COLUMN position text,
    ALTER COLUMN committed_at DROP NOT NULL;
ALTER TABLE bulk_runs ALTER COLUMN begun_at SET DEFAULT now();
SELECT drain_drop_side_table(name) FROM bulk_side_tables;
DROP FUNCTION drain_create_side_table(text), drain_create_side_table_of(regclass, text), drain_drop_side_table(text),
    drain_drop_side_table_of(regclass, text);
DROP TABLE bulk_side_tables;

-- What gave way to a unique job, for the case that this one is cancelled.
ALTER TABLE staged_jobs ADD COLUMN stands_for jsonb;
ALTER TABLE inflight_jobs ADD COLUMN stands_for jsonb;
ALTER TABLE dead_jobs ADD COLUMN stands_for jsonb;

-- From here on the texts are those of schema.sql.

-- Records a claimed job as finished if this is still its claim; returns true if it was. `kept` is its result, or NULL if
-- none is kept. Transactions of jobs call it too, in sessions whose settings are the application's: a plan that was made
-- there while inflight_jobs was empty would be kept, and would read the whole table for each job.
--
-- The tables are named with their schema, since the search_path may be the job's. A search_path of the function's own
-- would hold for triggers of the application too, and costs 12 us of 70 at each call (measured, PostgreSQL 15); a body
-- that is parsed now costs 170, for its plan.
DO $do$ BEGIN EXECUTE pg_catalog.format($text$
CREATE OR REPLACE FUNCTION drain_finish(job bigint, token bigint, job_salt bigint, worker text, kept jsonb)
    RETURNS boolean LANGUAGE plpgsql SET enable_seqscan = off AS $$
BEGIN
    WITH done AS (
        DELETE FROM %1$s.inflight_jobs
        WHERE id = job AND fencing_token = token AND salt IS NOT DISTINCT FROM job_salt AND claimed_by = worker
        RETURNING *
    )
    INSERT INTO %1$s.finished_jobs (id, job_name, job_args, job_kwargs, queue, priority, scheduled_at, tag, context,
        staged_at, moved_at, claimed_at, finished_at, finished_by, attempts, fencing_token, last_error, history, key,
        staged_by, result)
    SELECT id, job_name, job_args, job_kwargs, queue, priority, scheduled_at, tag, context,
        staged_at, moved_at, claimed_at, pg_catalog.clock_timestamp(), claimed_by, attempts + batched::integer,
        fencing_token, last_error, history, key, staged_by, kept
    FROM done;
    RETURN FOUND;
END
$$
$text$, (SELECT relnamespace::pg_catalog.regnamespace FROM pg_catalog.pg_class
    WHERE oid = 'inflight_jobs'::pg_catalog.regclass::pg_catalog.oid)); END $do$;

-- Workers of version 5 call these two, which cannot distinguish the claim from one in another history of the database.
CREATE OR REPLACE FUNCTION drain_finish(job bigint, token bigint) RETURNS boolean LANGUAGE sql
    SET enable_seqscan = off
BEGIN ATOMIC
    SELECT coalesce((SELECT drain_finish(id, fencing_token, salt, claimed_by, NULL::jsonb) FROM inflight_jobs
        WHERE id = job AND fencing_token = token), false);
END;

CREATE OR REPLACE FUNCTION drain_finish_with_result(job bigint, token bigint, kept jsonb) RETURNS boolean LANGUAGE sql
    SET enable_seqscan = off
BEGIN ATOMIC
    SELECT coalesce((SELECT drain_finish(id, fencing_token, salt, claimed_by, kept) FROM inflight_jobs
        WHERE id = job AND fencing_token = token), false);
END;

-- Role of the session: that of SET ROLE, or the one that has logged in. In a function that runs with the rights of the
-- owner, current_user is the owner.
CREATE OR REPLACE FUNCTION drain_role() RETURNS text LANGUAGE sql STABLE
    RETURN coalesce(nullif(pg_catalog.current_setting('role'), 'none'::text), session_user::text);

-- State of one job, for the role that has staged it, the members of that role, and roles that may read finished_jobs
-- anyway: no argument, no traceback and no context. No row: no table has the job, or another role has staged it. States:
-- waiting, scheduled, running, retrying, finished, superseded, dead, cancelled, expired.
--
-- Runs with the rights of the owner, since an application may not read the jobs of others whole.
CREATE OR REPLACE FUNCTION drain_job_state(
    job bigint, OUT id bigint, OUT job_name text, OUT queue text, OUT state text, OUT attempts integer,
    OUT staged_at timestamptz, OUT started_at timestamptz, OUT finished_at timestamptz, OUT error text,
    OUT has_result boolean, OUT result jsonb
) RETURNS SETOF record LANGUAGE sql STABLE SECURITY DEFINER ROWS 1 SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    WITH found AS (
        SELECT held.id, held.job_name, held.queue,
            CASE WHEN held.lease_expires_at IS NOT NULL THEN 'running' WHEN held.next_run_at IS NULL THEN 'waiting'
                WHEN held.last_error IS NULL THEN 'scheduled' ELSE 'retrying' END AS state,
            held.attempts + held.batched::integer AS attempts, held.staged_at, held.claimed_at AS started_at,
            NULL::timestamptz AS finished_at, held.last_error, NULL::text AS explanation, NULL::jsonb AS result,
            held.staged_by
        FROM inflight_jobs AS held WHERE held.id = drain_job_state.job
        UNION ALL
        SELECT done.id, done.job_name, done.queue,
            CASE WHEN done.superseded_by IS NULL THEN 'finished' ELSE 'superseded' END, done.attempts, done.staged_at,
            CASE WHEN done.superseded_by IS NULL OR done.attempts > 0 THEN done.claimed_at END, done.finished_at,
            done.last_error,
            CASE WHEN done.superseded_by IS NOT NULL
                THEN pg_catalog.concat('it gave way to job ', done.superseded_by) END, done.result, done.staged_by
        FROM finished_jobs AS done WHERE done.id = drain_job_state.job
        UNION ALL
        SELECT waits.id, waits.job_name, waits.queue,
            CASE WHEN waits.scheduled_at > pg_catalog.clock_timestamp() THEN 'scheduled' ELSE 'waiting' END, 0,
            waits.staged_at, NULL, NULL, NULL, NULL, NULL, waits.staged_by
        FROM staged_jobs AS waits WHERE waits.id = drain_job_state.job
        UNION ALL
        SELECT dead.id, dead.job_name, dead.queue,
            CASE WHEN dead.reason IN ('cancelled'::text, 'expired'::text) THEN dead.reason ELSE 'dead' END, dead.attempts,
            dead.staged_at, NULL, dead.died_at, dead.last_error, dead.explanation, NULL, dead.staged_by
        FROM dead_jobs AS dead WHERE dead.id = drain_job_state.job
        LIMIT 1
    )
    SELECT found.id, found.job_name, found.queue, found.state, found.attempts, found.staged_at, found.started_at,
        found.finished_at,
        pg_catalog.split_part(
            CASE WHEN found.state IN ('superseded'::text, 'cancelled'::text, 'expired'::text) OR found.last_error IS NULL
                THEN found.explanation
                ELSE pg_catalog.concat_ws(': ', found.last_error ->> 'type'::text,
                    nullif(found.last_error ->> 'message'::text, ''::text))
                END, E'\n', 1),
        found.result IS NOT NULL, found.result
    FROM found
    WHERE pg_catalog.has_table_privilege(drain_role()::name, 'finished_jobs'::regclass::oid, 'SELECT'::text)
        -- A role that has been dropped since has no members.
        OR EXISTS (
            SELECT FROM pg_catalog.pg_roles AS role WHERE role.rolname = found.staged_by::name
                AND pg_catalog.pg_has_role(drain_role()::name, role.oid, 'USAGE'::text));
END;

ALTER TABLE idempotency_keys DROP CONSTRAINT idempotency_key_must_have_1_to_255_characters,
    ADD CONSTRAINT idempotency_key_must_have_1_to_255_characters
    CHECK (char_length(idempotency_key) BETWEEN 1 AND 384) NOT VALID;

-- Digest of the name and the arguments of a job: the salt, and SHA-256 of both. Before version 6 the salt was empty.
CREATE OR REPLACE FUNCTION drain_digest(salt bytea, job_name text, args jsonb, kwargs jsonb) RETURNS bytea LANGUAGE sql STABLE
    RETURN salt || pg_catalog.sha256(salt || pg_catalog.convert_to(
        pg_catalog.concat_ws(' ', job_name, coalesce(args, '[]'::jsonb), coalesce(kwargs, '{}'::jsonb)), 'UTF8'::name));

-- Stages a job, unless the same role has staged one under this key that is still kept: the key is kept for `keep_seconds`
-- from now on. Returns the id of the job under the key, as a negative number if that job has another name or other
-- arguments. `job` has the columns that an application may give, and job_name at least:
--
--     SELECT drain_stage_once('webhook:9f', 86400, '{"job_name": "shop.jobs.send_receipt", "job_args": [42]}');
--
-- A second transaction with the same key waits until the first one has ended. At repeatable read it fails then with
-- serialization_failure, as any transaction that writes what another one has written.
--
-- Runs with the rights of the owner, since an application may read no key of others, and change none.
CREATE OR REPLACE FUNCTION drain_stage_once(key text, keep_seconds double precision, job jsonb) RETURNS bigint
    LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET quote_all_identifiers = off
BEGIN ATOMIC
    WITH given AS (
        SELECT new.*,
            -- The check of the table refuses the empty one.
            CASE WHEN pg_catalog.char_length(drain_stage_once.key) BETWEEN 1 AND 255
                THEN pg_catalog.concat(pg_catalog.quote_ident(drain_role()), ' ', drain_stage_once.key)
                ELSE '' END AS own_key
        FROM pg_catalog.jsonb_to_record(drain_stage_once.job) AS new (job_name text, job_args jsonb, job_kwargs jsonb,
            queue text, priority integer, scheduled_at timestamptz, expires_at timestamptz, tag text,
            max_attempts integer, timeout_seconds integer, context jsonb, key text, unique_key text, keep text,
            quiet_seconds double precision)
    ), reserved AS (
        INSERT INTO idempotency_keys AS kept (idempotency_key, job_id, job_name, digest, expires_at)
        SELECT given.own_key, pg_catalog.nextval('staged_jobs_id_seq'::regclass), given.job_name,
            drain_digest(pg_catalog.uuid_send(pg_catalog.gen_random_uuid()), given.job_name, given.job_args,
                given.job_kwargs),
            pg_catalog.clock_timestamp() + pg_catalog.make_interval(secs => keep_seconds)
        FROM given WHERE NOT EXISTS (
            SELECT FROM idempotency_keys AS known
            WHERE known.expires_at > pg_catalog.clock_timestamp() AND (known.idempotency_key = given.own_key
                OR (known.idempotency_key = drain_stage_once.key AND pg_catalog.octet_length(known.digest) = 32)))
        ON CONFLICT (idempotency_key) DO UPDATE SET job_id = excluded.job_id, job_name = excluded.job_name,
            digest = excluded.digest, staged_at = excluded.staged_at, expires_at = excluded.expires_at
            WHERE kept.expires_at <= pg_catalog.clock_timestamp()
        RETURNING kept.job_id
    )
    INSERT INTO staged_jobs (id, job_name, job_args, job_kwargs, queue, priority, scheduled_at, expires_at, tag,
        max_attempts, timeout_seconds, context, key, unique_key, keep, quiet_seconds)
    OVERRIDING SYSTEM VALUE
    SELECT reserved.job_id, given.job_name, coalesce(given.job_args, '[]'::jsonb),
        coalesce(given.job_kwargs, '{}'::jsonb), coalesce(given.queue, 'default'),
        coalesce(given.priority, 0), coalesce(given.scheduled_at, pg_catalog.now())
            + pg_catalog.make_interval(secs => coalesce(given.quiet_seconds, '0')),
        given.expires_at, given.tag, given.max_attempts, given.timeout_seconds, given.context, given.key,
        given.unique_key, given.keep, given.quiet_seconds
    FROM reserved, given;

    SELECT CASE WHEN kept.job_name = new.job_name AND kept.digest = drain_digest(
            pg_catalog.substring(kept.digest, 1, pg_catalog.octet_length(kept.digest) - 32), new.job_name, new.job_args,
            new.job_kwargs)
        THEN kept.job_id ELSE - kept.job_id END
    FROM idempotency_keys AS kept, pg_catalog.jsonb_to_record(drain_stage_once.job)
        AS new (job_name text, job_args jsonb, job_kwargs jsonb)
    WHERE kept.idempotency_key = pg_catalog.concat(pg_catalog.quote_ident(drain_role()), ' ', drain_stage_once.key)
        OR (kept.idempotency_key = drain_stage_once.key AND pg_catalog.octet_length(kept.digest) = 32)
    -- At repeatable read a row that was over, and has been deleted since the snapshot, is seen along with the new one.
    ORDER BY kept.expires_at DESC LIMIT 1;
END;

REVOKE ALL ON FUNCTION drain_finish(bigint, bigint, bigint, text, jsonb), drain_role(),
    drain_digest(bytea, text, jsonb, jsonb) FROM PUBLIC;

-- A role of a program may do what the new program does with it.
DO $$
DECLARE
    it record;
BEGIN
    FOR it IN
        SELECT DISTINCT may.rights, job.grantee::pg_catalog.regrole AS role
        FROM (VALUES
            -- The enqueuer.
            ('staged_jobs_ready', 'DELETE', 'UPDATE (error) ON queues'),
            ('staged_jobs_ready', 'DELETE', 'SELECT, DELETE ON cancelled_claims'),
            ('staged_jobs_ready', 'DELETE', 'UPDATE (expires_at, stands_for) ON staged_jobs, inflight_jobs'),
            -- Workers.
            ('stale_finishes', 'INSERT', 'SELECT (id, fencing_token, salt, claimed_by), DELETE ON cancelled_claims'),
            -- Operators.
            ('queues', 'DELETE', 'INSERT ON cancelled_claims'),
            ('queues', 'DELETE', 'INSERT (staged_by) ON staged_jobs'),
            -- Inspection.
            ('stale_finishes', 'SELECT', 'SELECT ON cancelled_claims')
        ) AS may (relation, privilege, rights)
            JOIN pg_catalog.pg_class AS home ON home.oid = may.relation::pg_catalog.regclass::pg_catalog.oid,
        LATERAL pg_catalog.aclexplode(home.relacl) AS job
        WHERE job.privilege_type = may.privilege AND job.grantee NOT IN (home.relowner, 0::pg_catalog.oid)
    LOOP
        EXECUTE pg_catalog.format('GRANT %s TO %s', it.rights, it.role);
    END LOOP;
    -- A role that may finish a job may do so under its fence, and compare fences.
    FOR it IN
        SELECT DISTINCT job.grantee::pg_catalog.regrole AS role
        FROM pg_catalog.pg_proc AS home, LATERAL pg_catalog.aclexplode(home.proacl) AS job
        WHERE home.oid = 'drain_finish(bigint, bigint)'::pg_catalog.regprocedure::pg_catalog.oid
            AND job.privilege_type = 'EXECUTE'::pg_catalog.text
            AND job.grantee NOT IN (home.proowner, 0::pg_catalog.oid)
    LOOP
        EXECUTE pg_catalog.format('GRANT EXECUTE ON FUNCTION drain_finish(bigint, bigint, bigint, text, jsonb) TO %s', it.role);
        EXECUTE pg_catalog.format('GRANT SELECT (finished_by) ON finished_jobs TO %s', it.role);
        EXECUTE pg_catalog.format('GRANT SELECT (salt) ON dead_jobs TO %s', it.role);
    END LOOP;
END
$$;

INSERT INTO drain_schema (version) VALUES (6);

-- After the commit:
ALTER TABLE idempotency_keys VALIDATE CONSTRAINT idempotency_key_must_have_1_to_255_characters;
