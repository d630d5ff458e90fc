-- From version 1 to 2: a random value in each job, and bounds for ids and fencing tokens.
--
-- Programs of version 1 go on working afterwards: they name the columns that they write, and leave out the new ones.

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
