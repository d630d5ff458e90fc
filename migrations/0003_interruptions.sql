-- From version 2 to 3: how often an attempt of a job did not count, because its worker was told to stop.
--
-- Programs of version 2 go on working afterwards: they name the columns that they write, and leave out the new one. An
-- attempt that one of them interrupts counts, as before.

-- All locks at once or none. Everybody who drains, claims or finishes waits behind this statement, so it ends before the
-- second (deadlock_timeout) after which PostgreSQL would look for a deadlock, and end the transaction of somebody else.
SET LOCAL statement_timeout = '900ms';
LOCK TABLE inflight_jobs IN ACCESS EXCLUSIVE MODE;
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

INSERT INTO drain_schema (version) VALUES (3);
