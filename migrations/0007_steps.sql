-- From version 6 to 7: results of jobs' steps. Programs of version 6 go on working.

-- job_steps: results of the finished steps of jobs, which later attempts reuse. The enqueuer deletes those of jobs that
-- no table has any more.
CREATE TABLE job_steps (
    job_id        bigint           NOT NULL,
    name          text             NOT NULL,
    -- Not jsonb, which would change numbers and the order of keys.
    result        json             NOT NULL,
    seconds       double precision NOT NULL,
    -- Token of the claim that recorded it.
    fencing_token bigint           NOT NULL,
    recorded_at   timestamptz      NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (job_id, name),
    CONSTRAINT name_must_have_1_to_255_characters CHECK (char_length(name) BETWEEN 1 AND 255)
);

-- Records a step's result if this is still the job's claim; returns whether it was. Last in the step's transaction, since
-- its lock stops heartbeats. The lock waits for a claim or cancellation under way; see drain_finish for the rest.
DO $do$ BEGIN EXECUTE pg_catalog.format($text$
CREATE OR REPLACE FUNCTION drain_record_step(
    job bigint, token bigint, job_salt bigint, worker text, step text, kept json, took double precision
) RETURNS boolean LANGUAGE plpgsql SET enable_seqscan = off AS $$
BEGIN
    WITH held AS (
        SELECT id FROM %1$s.inflight_jobs
        WHERE (id, fencing_token, claimed_by) = (job, token, worker) AND salt IS NOT DISTINCT FROM job_salt
        FOR UPDATE
    )
    INSERT INTO %1$s.job_steps (job_id, name, result, seconds, fencing_token)
    SELECT id, step, kept, took, token FROM held;
    RETURN FOUND;
END
$$
$text$, (SELECT relnamespace::pg_catalog.regnamespace FROM pg_catalog.pg_class
    WHERE oid = 'inflight_jobs'::pg_catalog.regclass::pg_catalog.oid)); END $do$;

REVOKE ALL ON FUNCTION drain_record_step(bigint, bigint, bigint, text, text, json, double precision) FROM PUBLIC;

-- Roles get the rights that the programs of version 7 need with their role.
DO $$
DECLARE
    it record;
BEGIN
    FOR it IN
        SELECT DISTINCT may.rights, job.grantee::pg_catalog.regrole AS role
        FROM (VALUES
            -- The enqueuer.
            ('staged_jobs_ready', 'DELETE', 'SELECT (job_id), DELETE ON job_steps'),
            -- Workers.
            ('stale_finishes', 'INSERT', 'INSERT (job_id, name, result, seconds, fencing_token) ON job_steps'),
            ('stale_finishes', 'INSERT', 'SELECT (job_id, name, result) ON job_steps'),
            ('stale_finishes', 'INSERT', 'EXECUTE ON FUNCTION '
                'drain_record_step(bigint, bigint, bigint, text, text, json, double precision)'),
            -- Inspection.
            ('stale_finishes', 'SELECT', 'SELECT ON job_steps')
        ) AS may (relation, privilege, rights)
            JOIN pg_catalog.pg_class AS home ON home.oid = may.relation::pg_catalog.regclass::pg_catalog.oid,
        LATERAL pg_catalog.aclexplode(home.relacl) AS job
        WHERE job.privilege_type = may.privilege AND job.grantee NOT IN (home.relowner, 0::pg_catalog.oid)
    LOOP
        EXECUTE pg_catalog.format('GRANT %s TO %s', it.rights, it.role);
    END LOOP;
END
$$;

INSERT INTO drain_schema (version) VALUES (7);
