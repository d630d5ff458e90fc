-- From version 5 to 6: fences, rights, and the order of keys.
--
-- Programs of version 5 go on working afterwards: they name the columns that they read and write, and leave out the new
-- ones.

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
LOCK TABLE inflight_jobs IN ACCESS EXCLUSIVE MODE;
SET LOCAL statement_timeout TO DEFAULT;

-- Ordered queues: a job that waits for its next attempt holds its key. Few rows wait, and the others are in lists that
-- hold what workers take in a tenth of a second: the index is made in milliseconds.
CREATE INDEX IF NOT EXISTS inflight_jobs_holding ON inflight_jobs (queue, key, id)
    WHERE next_run_at IS NOT NULL AND key IS NOT NULL;

-- From version 5 to 6: rules that cannot be followed, and places of cancelled jobs.
--
-- Programs of version 5 go on working afterwards: they name the columns that they read and write, and leave out the new
-- ones. A leader of version 5 counts no cancelled job as running.

-- Rules that cannot be followed hold their queue, and the leader notes why; a job that is cancelled while a worker has it
-- keeps its place. The table is small, so its checks are validated at once: rows are brought within them first, which
-- changes nothing that a job could notice.
SET LOCAL statement_timeout = '900ms';
LOCK TABLE queues IN ACCESS EXCLUSIVE MODE;
SET LOCAL statement_timeout TO DEFAULT;
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
CREATE TABLE cancelled_claims (
    id               bigint      NOT NULL,
    -- The token of the claim; the dead job has a higher one.
    fencing_token    bigint      NOT NULL,
    queue            text        NOT NULL,
    key              text,
    claimed_at       timestamptz NOT NULL,
    claimed_by       text        NOT NULL,
    lease_expires_at timestamptz NOT NULL,
    PRIMARY KEY (id, fencing_token)
);
CREATE INDEX cancelled_claims_of_queues ON cancelled_claims (queue);

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
            ('staged_jobs_ready', 'DELETE', 'UPDATE (expires_at) ON staged_jobs, inflight_jobs'),
            -- Workers.
            ('stale_finishes', 'INSERT', 'SELECT (id, fencing_token), DELETE ON cancelled_claims'),
            -- Operators.
            ('queues', 'DELETE', 'INSERT ON cancelled_claims'),
            -- Inspection.
            ('stale_finishes', 'SELECT', 'SELECT ON cancelled_claims')
        ) AS may (relation, privilege, rights)
            JOIN pg_catalog.pg_class AS home ON home.oid = may.relation::pg_catalog.regclass::pg_catalog.oid,
        LATERAL pg_catalog.aclexplode(home.relacl) AS job
        WHERE job.privilege_type = may.privilege AND job.grantee NOT IN (home.relowner, 0::pg_catalog.oid)
    LOOP
        EXECUTE pg_catalog.format('GRANT %s TO %s', it.rights, it.role);
    END LOOP;
END
$$;

INSERT INTO drain_schema (version) VALUES (6);
