-- job-drain's latest schema, and the only file that defines tables. `drain init` applies it in one transaction;
-- migrations/ upgrades older versions to the same result. ASCII only, for databases of any encoding.
--
-- The table that holds a row is the job's state:
--
--     staged_jobs --drain--> inflight_jobs --finish--> finished_jobs
--          |                      |
--          +------ give up -------+--> dead_jobs --retry--> staged_jobs
--
-- A job with predecessors is blocked: staged, and due in the year 9999 until the enqueuer has seen them finish.
--
-- The roles that call functions don't trust each other. So PUBLIC may call none (see the end), and no function uses a
-- name that another role could create: in pg_temp, searched first unless search_path names it last, or in a schema
-- where a better-matching function or operator would win over pg_catalog's. Callers cast arguments to the exact types.
--
-- The schema's name is unknown here, so tables are bound at creation, as constants in SQL functions. The functions that
-- these call have a closed search_path.


-- Reject other roles' functions: CREATE OR REPLACE would keep their owner.
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


-- staged_jobs: jobs that applications insert in their own transactions. Once committed, a job will run. Only job_name
-- is required:
--
--     INSERT INTO staged_jobs (job_name, job_args) VALUES ('shop.jobs.send_receipt', '[42]');
--
-- Checks reject jobs that no worker could run.
CREATE TABLE IF NOT EXISTS staged_jobs (
    -- ALWAYS: an id chosen by hand could repeat an earlier one.
    id              bigint      NOT NULL GENERATED ALWAYS AS IDENTITY,
    job_name        text        NOT NULL,
    job_args        jsonb       NOT NULL DEFAULT '[]',
    job_kwargs      jsonb       NOT NULL DEFAULT '{}',
    queue           text        NOT NULL DEFAULT 'default',
    -- Lower runs first.
    priority        integer     NOT NULL DEFAULT 0,
    -- Earliest start.
    scheduled_at    timestamptz NOT NULL DEFAULT now(),
    -- Dead if not claimed by then. NULL: never expires.
    expires_at      timestamptz,
    -- Where the application staged the job: 'storage.create_annotation'.
    tag             text,
    -- NULL: as registered by the worker. 0 attempts: unlimited.
    max_attempts    integer,
    timeout_seconds integer,
    -- Trace and log context of the staging code.
    context         jsonb,
    staged_at       timestamptz NOT NULL DEFAULT now(),

    -- Set by the enqueuer once due.
    matured_at      timestamptz,
    -- A retried dead job keeps its highest token, so that earlier claims cannot finish it, and the history of its
    -- deaths.
    fencing_token   bigint      NOT NULL DEFAULT 0,
    history         jsonb,
    -- Part of the external key, since ids repeat after a failover to an older replica or in a restored copy. NULL:
    -- staged before version 2. A uuid would double the cost of a row in a bulk insert.
    salt            bigint      DEFAULT (random() * 9007199254740992)::bigint,
    -- Customer, tenant or resource, for rules.
    key             text,
    -- Waiting jobs with the same name and unique_key are one: the enqueuer keeps the first or last, once none has been
    -- staged for quiet_seconds. NULL: first, at once.
    unique_key      text,
    keep            text,
    quiet_seconds   double precision,
    -- Role that may read state and result: of SET ROLE or the login, also within functions. Same as drain_role(),
    -- which applications may not call. NULL: staged before version 6.
    staged_by       text        DEFAULT coalesce(nullif(pg_catalog.current_setting('role'), 'none'), session_user::text),
    -- Latest job superseded by this one (id and staged values), staged again if this one is cancelled.
    stands_for      jsonb,
    -- Earliest start of a blocked job, whose scheduled_at is 9999-12-29 00:00 UTC. NULL: at once.
    starts_at       timestamptz,

    CONSTRAINT job_name_must_not_be_empty
        CHECK (job_name <> '' AND job_name = btrim(job_name)),
    CONSTRAINT job_name_must_not_exceed_255_characters
        CHECK (char_length(job_name) <= 255),
    CONSTRAINT job_args_must_be_a_json_array
        CHECK (jsonb_typeof(job_args) = 'array'),
    CONSTRAINT job_kwargs_must_be_a_json_object
        CHECK (jsonb_typeof(job_kwargs) = 'object'),
    CONSTRAINT job_arguments_must_not_exceed_1_mebibyte
        CHECK (octet_length(job_args::text) + octet_length(job_kwargs::text) <= 1048576),
    -- RQ uses the name in keys, command lines and comma-separated lists. With {0,99} the expression takes 1.4 us for
    -- 'bulk'; a separate length check takes a tenth.
    CONSTRAINT queue_must_be_a_name_that_rq_can_carry
        CHECK (queue ~ '^[A-Za-z0-9_][A-Za-z0-9_.:-]*$' AND char_length(queue) <= 100),
    -- Programs cannot represent other times, or count down to 'infinity'.
    CONSTRAINT times_must_lie_between_the_years_1_and_9999
        CHECK (least(scheduled_at, expires_at, staged_at) > '0001-01-02 00:00:00+00'
            AND greatest(scheduled_at, expires_at, staged_at) < '9999-12-30 00:00:00+00'),
    CONSTRAINT tag_must_not_exceed_255_characters
        CHECK (char_length(tag) <= 255),
    CONSTRAINT context_must_not_exceed_64_kibibytes
        CHECK (octet_length(context::text) <= 65536),
    CONSTRAINT max_attempts_must_not_be_negative
        CHECK (max_attempts >= 0),
    CONSTRAINT timeout_seconds_must_be_positive
        CHECK (timeout_seconds > 0),
    -- Bounds that leave room for any number of claims and deliveries.
    CONSTRAINT id_must_lie_between_1_and_10_to_the_power_of_18
        CHECK (id > 0 AND id < 1000000000000000000),
    CONSTRAINT fencing_token_must_lie_between_0_and_10_to_the_power_of_18
        CHECK (fencing_token >= 0 AND fencing_token <= 1000000000000000000),
    CONSTRAINT key_must_have_1_to_255_characters
        CHECK (char_length(key) BETWEEN 1 AND 255),
    CONSTRAINT unique_key_must_have_1_to_255_characters
        CHECK (char_length(unique_key) BETWEEN 1 AND 255),
    CONSTRAINT keep_must_be_first_or_last
        CHECK (keep IN ('first', 'last')),
    CONSTRAINT quiet_seconds_must_be_positive_and_at_most_a_year
        CHECK (quiet_seconds > '0' AND quiet_seconds <= '31536000'),
    CONSTRAINT keep_and_quiet_seconds_need_a_unique_key
        CHECK (unique_key IS NOT NULL OR (keep IS NULL AND quiet_seconds IS NULL)),
    CONSTRAINT starts_at_must_lie_between_the_years_1_and_9999
        CHECK (starts_at > '0001-01-02 00:00:00+00' AND starts_at < '9999-12-29 00:00:00+00')
) PARTITION BY LIST ((coalesce(scheduled_at > staged_at, false) AND matured_at IS NULL));

-- Scheduled rows. Marking a due row as matured moves it to the ready partitions, so a million jobs for tomorrow cost a
-- batch nothing. (A partition key cannot use now(), but can compare columns.)
--
-- A primary key of the whole table would have to include the partition key. The sequence keeps ids unique.
CREATE TABLE IF NOT EXISTS staged_jobs_scheduled PARTITION OF staged_jobs (PRIMARY KEY (id))
    FOR VALUES IN (true);
CREATE INDEX IF NOT EXISTS staged_jobs_coming_due ON staged_jobs_scheduled (scheduled_at);
-- For the numbers of unfinished and paused flows. The second condition holds for every row, but keeps other queries off the
-- index.
CREATE INDEX IF NOT EXISTS staged_jobs_marking_flows ON staged_jobs_scheduled (job_name, staged_at)
    WHERE job_name IN ('drain.jobs.markers.end_of_flow', 'drain.jobs.markers.pause_of_flow') AND staged_at > '-infinity';

-- Ready rows.
--
-- While any session holds an older snapshot, vacuum cannot remove drained rows, but TRUNCATE can. So three partitions
-- take turns of five seconds, by the start of the staging transaction, and an empty one is truncated unless its turn is
-- near. coalesce(): an invalid time must reach the check that rejects it.
CREATE TABLE IF NOT EXISTS staged_jobs_ready PARTITION OF staged_jobs
    FOR VALUES IN (false)
    PARTITION BY LIST ((coalesce(date_part('second', staged_at AT TIME ZONE 'UTC')::integer / 5 % 3, 0)));
CREATE TABLE IF NOT EXISTS staged_jobs_ready_0 PARTITION OF staged_jobs_ready (PRIMARY KEY (id))
    FOR VALUES IN (0);
CREATE TABLE IF NOT EXISTS staged_jobs_ready_1 PARTITION OF staged_jobs_ready (PRIMARY KEY (id))
    FOR VALUES IN (1);
CREATE TABLE IF NOT EXISTS staged_jobs_ready_2 PARTITION OF staged_jobs_ready (PRIMARY KEY (id))
    FOR VALUES IN (2);
-- The enqueuer's read order. A lane holds one kind of a queue's rows, so that full, paused or limited queues are
-- skipped unread. Kinds: 0 urgent (priority up to 0) without a key, 1 urgent with a key, 2 patient without, 3 patient
-- with a key. Names are ASCII, and bytes compare faster.
--
-- The condition holds for every row, but keeps lookups by id off this index: a plan made while the partition is empty
-- would prefer it to the primary key, and later read all of it.
CREATE INDEX IF NOT EXISTS staged_jobs_in_lanes
    ON staged_jobs_ready (((priority > 0)::integer * 2 + (key IS NOT NULL)::integer), queue COLLATE "C", priority, id)
    WHERE scheduled_at <= staged_at OR matured_at IS NOT NULL;
-- For rules per key.
CREATE INDEX IF NOT EXISTS staged_jobs_by_key ON staged_jobs_ready (queue, key, priority, id)
    WHERE (scheduled_at <= staged_at OR matured_at IS NOT NULL) AND key IS NOT NULL;
-- For rows that may supersede each other.
CREATE INDEX IF NOT EXISTS staged_jobs_unique ON staged_jobs (unique_key, id) WHERE unique_key IS NOT NULL;

-- Truncates an empty, unused partition; returns whether it did. Safe at any time: a transaction that has staged into it
-- holds a lock, so NOWAIT fails, and the query after the lock sees all rows committed before. Under repeatable read,
-- that query would use an older snapshot, and rows would be lost.
--
-- A single statement, since a client that stopped halfway would block staging.
--
-- A transaction whose snapshot predates the truncation, but that reads staged_jobs only afterward, finds its rows
-- neither there nor where they moved. To count across tables in one snapshot, first LOCK TABLE staged_jobs IN ACCESS
-- SHARE MODE.
CREATE OR REPLACE FUNCTION drain_truncate_if_empty(partition regclass) RETURNS boolean LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp
    -- The enqueuer prefers indexes, but dead rows are skipped faster in the table.
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


-- inflight_jobs: drained, unfinished jobs. All Redis keys can be rebuilt from it. Each state has its index:
--
--     delivered   waits in a Redis list          lease_expires_at and next_run_at are null
--     claimed     leased to a worker             lease_expires_at is set
--     waiting     failed, to be retried          next_run_at is set
CREATE TABLE IF NOT EXISTS inflight_jobs (
    id               bigint      PRIMARY KEY,
    job_name         text        NOT NULL,
    job_args         jsonb       NOT NULL,
    job_kwargs       jsonb       NOT NULL,
    queue            text        NOT NULL,
    priority         integer     NOT NULL,
    scheduled_at     timestamptz NOT NULL,
    expires_at       timestamptz,
    tag              text,
    max_attempts     integer,
    timeout_seconds  integer,
    context          jsonb,
    staged_at        timestamptz NOT NULL,
    history          jsonb,

    moved_at         timestamptz NOT NULL DEFAULT now(),
    -- Number of the latest push. The leader assigns numbers in commit order, so a delivered row below the head of its
    -- Redis list has left that list.
    delivery         bigint      NOT NULL,
    -- Claims that count as attempts, and the token of the latest, the only one that can finish. With id, salt and
    -- claimed_by it is the fence, since tokens repeat after a failover that lost claims.
    attempts         integer     NOT NULL DEFAULT 0,
    fencing_token    bigint      NOT NULL DEFAULT 0,
    claimed_at       timestamptz,
    claimed_by       text,
    -- Claimed with others that the worker runs in turn: the attempt counts when it ends, since only the worker knows
    -- which job has started. If the worker dies, the job is next claimed alone.
    batched          boolean     NOT NULL DEFAULT false,
    lease_expires_at timestamptz,
    next_run_at      timestamptz,
    -- Latest failure, {"type": ..., "message": ..., "traceback": ..., "at": ...}, and its time.
    last_error       jsonb,
    failed_at        timestamptz,
    salt             bigint,
    -- Attempts not counted because their worker stopped. Above a limit they count, or a job longer than the grace
    -- period would run forever.
    interruptions    integer     NOT NULL DEFAULT 0,
    key              text,
    unique_key       text,
    keep             text,
    quiet_seconds    double precision,
    staged_by        text,
    stands_for       jsonb
);

CREATE INDEX IF NOT EXISTS inflight_jobs_delivered ON inflight_jobs (queue, delivery)
    WHERE lease_expires_at IS NULL AND next_run_at IS NULL;
CREATE INDEX IF NOT EXISTS inflight_jobs_claimed ON inflight_jobs (lease_expires_at)
    WHERE lease_expires_at IS NOT NULL;
CREATE INDEX IF NOT EXISTS inflight_jobs_waiting ON inflight_jobs (queue, next_run_at)
    WHERE next_run_at IS NOT NULL;
-- For ordered queues: a retrying job holds its key.
CREATE INDEX IF NOT EXISTS inflight_jobs_holding ON inflight_jobs (queue, key, id)
    WHERE next_run_at IS NOT NULL AND key IS NOT NULL;
-- For queues with several failures since the last finish.
CREATE INDEX IF NOT EXISTS inflight_jobs_failed ON inflight_jobs (queue, failed_at)
    WHERE failed_at IS NOT NULL;
-- For unclaimed jobs that may be superseded.
CREATE INDEX IF NOT EXISTS inflight_jobs_unique ON inflight_jobs (unique_key)
    WHERE unique_key IS NOT NULL AND lease_expires_at IS NULL;


-- job_steps: results of the finished steps of jobs, which later attempts reuse. The enqueuer deletes those of jobs that
-- no table has any more.
CREATE TABLE IF NOT EXISTS job_steps (
    job_id        bigint           NOT NULL,
    name          text             NOT NULL,
    -- Not jsonb, which would change numbers and the order of keys.
    result        json             NOT NULL,
    seconds       double precision NOT NULL,
    -- Token of the claim that recorded it.
    fencing_token bigint           NOT NULL,
    recorded_at   timestamptz      NOT NULL DEFAULT clock_timestamp(),
    -- How to undo it if the job dies: the function, "call", and the kind of step, "as". NULL: nothing to undo.
    undo          jsonb,
    -- In one step of each job with undoable ones, the first: the job that undoes them.
    undone_by     bigint,
    PRIMARY KEY (job_id, name),
    CONSTRAINT name_must_have_1_to_255_characters CHECK (char_length(name) BETWEEN 1 AND 255)
);
-- Unique: two steps of a job may commit at the same time, at repeatable read.
CREATE UNIQUE INDEX IF NOT EXISTS job_steps_undone ON job_steps (job_id) WHERE undone_by IS NOT NULL;
CREATE INDEX IF NOT EXISTS job_steps_undoable ON job_steps (job_id, recorded_at) WHERE undo IS NOT NULL;

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


-- finished_jobs: one row per job, partitioned by UTC day; days are archived and dropped whole. Append-only, except for
-- a result returned after the job's own transaction. A partition's primary key is the last guard against finishing
-- twice; no key can span all partitions.
CREATE TABLE IF NOT EXISTS finished_jobs (
    id            bigint      NOT NULL,
    job_name      text        NOT NULL,
    job_args      jsonb       NOT NULL,
    job_kwargs    jsonb       NOT NULL,
    queue         text        NOT NULL,
    priority      integer     NOT NULL,
    scheduled_at  timestamptz NOT NULL,
    tag           text,
    context       jsonb,
    staged_at     timestamptz NOT NULL,
    moved_at      timestamptz NOT NULL,
    claimed_at    timestamptz NOT NULL,
    finished_at   timestamptz NOT NULL,
    finished_by   text,
    attempts      integer     NOT NULL,
    fencing_token bigint      NOT NULL,
    last_error    jsonb,
    history       jsonb,
    -- Readers of new rows ask for later transactions, up to the oldest still open. No row can appear there later,
    -- unlike behind a time or an id.
    finished_xid  xid8        NOT NULL DEFAULT pg_current_xact_id(),
    key           text,
    -- Job that superseded this one while it waited: not finished, and run only if attempts is above 0; otherwise
    -- claimed_at is when it was superseded. NULL: the job ran.
    superseded_by bigint,
    -- Return value of jobs with result="keep"; JSON null for None. NULL: not kept.
    result        jsonb,
    staged_by     text
) PARTITION BY RANGE (finished_at);

-- For a queue's latest finish.
CREATE INDEX IF NOT EXISTS finished_jobs_latest ON finished_jobs (queue, finished_at);
CREATE INDEX IF NOT EXISTS finished_jobs_in_order ON finished_jobs (finished_xid);

-- Days without a partition: the enqueuer, which creates them ahead, was down for days, or an older transaction
-- committed after the day was archived.
CREATE TABLE IF NOT EXISTS finished_jobs_other PARTITION OF finished_jobs (PRIMARY KEY (id)) DEFAULT;

-- Finishes a job if this is still its claim; returns whether it was. `kept` is the result or NULL. Jobs call it too,
-- with the application's settings. enable_seqscan = off: a plan made while inflight_jobs was empty would be kept, and
-- read the whole table for each job.
--
-- Tables are qualified, since the search_path may be the job's. Setting one would affect the application's triggers and
-- costs 12 us of 70 per call (PostgreSQL 15); a body parsed at creation costs 170 us, for its plan.
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

-- For workers of version 5. Cannot distinguish the claim from one in another history of the database.
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

-- Creates partitions for today and the next days, moves in their rows from finished_jobs_other, and returns their
-- number. Finishing jobs wait only briefly: if a lock is taken, nothing happens, and the caller tries again. A day with
-- too many rows stays in finished_jobs_other and is archived from there. So does a day if another object has its
-- partition's name: that object is neither attached nor read, and the server logs a warning.
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

-- Runs with the owner's rights, since the leader owns no table. The caller chooses at most 30 days.
CREATE OR REPLACE FUNCTION drain_make_days(ahead integer) RETURNS integer LANGUAGE sql
    SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    RETURN drain_make_days_of('finished_jobs', ahead);
DO $$ BEGIN PERFORM drain_make_days(3); END $$;

-- Row count and checksum, in any row order.
CREATE OR REPLACE FUNCTION drain_checksum_of(
    partition regclass, OUT counted bigint, OUT checksum numeric
) LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET timezone = 'UTC' SET datestyle = 'ISO'
AS $$
BEGIN
    EXECUTE format('SELECT count(*), coalesce(sum(hashtextextended(job::text, 0)), 0) FROM ONLY %s AS job', partition)
        INTO counted, checksum;
END
$$;

-- Drops a day's partition if its drain_checksum_of still matches; returns whether it did. No row can be added between
-- count and drop; readers continue. If in use, fails after 100 ms with lock_not_available; also while waiting jobs have
-- not been unblocked.
CREATE OR REPLACE FUNCTION drain_drop_day(partition regclass, expected_rows bigint, expected_checksum numeric)
    RETURNS boolean LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lock_timeout = '100ms'
    SET timezone = 'UTC' SET datestyle = 'ISO'
AS $$
DECLARE
    counted    bigint;
    checksum   numeric;
    is_awaited boolean;
BEGIN
    -- A snapshot older than the lock would miss rows.
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
    -- The enqueuer would take them for discarded, and cancel the jobs that wait for them.
    EXECUTE format('SELECT true FROM %1$s.job_edges AS edge WHERE edge.state = ''waiting'' '
        'AND edge.awaited_id IS NOT NULL AND edge.awaited_id <= (SELECT max(id) FROM ONLY %2$s) '
        'AND (SELECT true FROM ONLY %2$s AS job WHERE job.id = edge.awaited_id) ORDER BY edge.awaited_id LIMIT 1',
        (SELECT relnamespace::regnamespace FROM pg_class WHERE oid = partition), partition) INTO is_awaited;
    IF is_awaited THEN
        RAISE EXCEPTION USING ERRCODE = 'lock_not_available', MESSAGE = format('jobs still wait for jobs of %s', partition),
            HINT = 'The enqueuer has yet to see that these have finished.';
    END IF;
    EXECUTE format('DROP TABLE %s', partition);
    RETURN true;
EXCEPTION WHEN undefined_table THEN
    RETURN false;
END
$$;

-- The same for a day in finished_jobs_other.
CREATE OR REPLACE FUNCTION drain_checksum_of_late(day date, OUT counted bigint, OUT checksum numeric)
    LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp SET timezone = 'UTC' SET datestyle = 'ISO'
BEGIN ATOMIC
    SELECT pg_catalog.count(*), coalesce(pg_catalog.sum(pg_catalog.hashtextextended(job::text, 0)), 0)
    FROM finished_jobs_other AS job WHERE finished_at >= day AND finished_at < day + 1;
END;


-- stale_finishes: refused outcomes, as evidence of the fence. The worker reported after another one had claimed the
-- job, or after a failover to a database without its claim.
CREATE TABLE IF NOT EXISTS stale_finishes (
    number        bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id            bigint      NOT NULL,
    fencing_token bigint      NOT NULL,
    claimed_by    text        NOT NULL,
    -- 'finished', 'retrying', 'deferred', 'dead'; 'nothing' if the worker itself noticed the lost lease.
    outcome       text        NOT NULL,
    refused_at    timestamptz NOT NULL DEFAULT clock_timestamp()
);


-- dead_jobs: kept until retried or discarded.
CREATE TABLE IF NOT EXISTS dead_jobs (
    id              bigint      PRIMARY KEY,
    job_name        text        NOT NULL,
    job_args        jsonb       NOT NULL,
    job_kwargs      jsonb       NOT NULL,
    queue           text        NOT NULL,
    priority        integer     NOT NULL,
    scheduled_at    timestamptz NOT NULL,
    expires_at      timestamptz,
    tag             text,
    max_attempts    integer,
    timeout_seconds integer,
    context         jsonb,
    staged_at       timestamptz NOT NULL,
    history         jsonb,
    attempts        integer     NOT NULL DEFAULT 0,
    fencing_token   bigint      NOT NULL DEFAULT 0,
    last_error      jsonb,
    died_at         timestamptz NOT NULL DEFAULT now(),
    -- 'failed', 'gave up', 'expired', 'unreadable', 'lease', 'cancelled'; then a sentence.
    reason          text        NOT NULL,
    explanation     text        NOT NULL,
    salt            bigint,
    key             text,
    unique_key      text,
    keep            text,
    quiet_seconds   double precision,
    staged_by       text,
    stands_for      jsonb,
    -- As finished_xid. NULL: died before version 8.
    died_xid        xid8                 DEFAULT pg_current_xact_id()
);
CREATE INDEX IF NOT EXISTS dead_jobs_in_order ON dead_jobs (died_xid);
-- For queues that hold a key after a dead job.
CREATE INDEX IF NOT EXISTS dead_jobs_by_key ON dead_jobs (queue, key) WHERE key IS NOT NULL;


-- cancelled_claims: claims of jobs cancelled while a worker had them. They count toward concurrency limits until the
-- worker confirms the end or the lease expires.
CREATE TABLE IF NOT EXISTS cancelled_claims (
    id               bigint      NOT NULL,
    -- Token of the claim; the dead job has a higher one.
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


-- Role of SET ROLE or the login. In a function with the owner's rights, current_user is the owner.
CREATE OR REPLACE FUNCTION drain_role() RETURNS text LANGUAGE sql STABLE
    RETURN coalesce(nullif(pg_catalog.current_setting('role'), 'none'::text), session_user::text);

-- job_edges: which jobs a job waits for. A child is blocked while any of its edges waits. Its transaction inserts them, and
-- the enqueuer changes them. Only a retry of a dead child makes them wait again, and a discard of a parent marks them as
-- changed. The enqueuer deletes those of children that no table has any more.
CREATE TABLE IF NOT EXISTS job_edges (
    child_id    bigint NOT NULL,
    parent_id   bigint NOT NULL,
    -- Whose end counts: the parent, or the job that superseded it.
    awaited_id  bigint NOT NULL,
    -- If the parent dies: cancel the child, run it, or hold it until the parent is retried. 'only': run it, but if the
    -- parent finishes, it is superseded.
    on_failure  text   NOT NULL DEFAULT 'cancel',
    -- 'waiting', 'met', or 'idle': the child is not blocked.
    state       text   NOT NULL DEFAULT 'waiting',
    -- Latest change, for the enqueuer, as finished_xid.
    changed_xid xid8   NOT NULL DEFAULT pg_current_xact_id(),
    -- The parent's name in the flow that the child ends.
    node        text,
    PRIMARY KEY (child_id, parent_id),
    -- The functions that insert edges see to it that no jobs can wait for each other.
    CONSTRAINT a_job_waits_for_other_jobs CHECK (parent_id > 0 AND parent_id <> child_id),
    CONSTRAINT on_failure_must_be_cancel_run_hold_or_only CHECK (on_failure IN ('cancel', 'run', 'hold', 'only')),
    CONSTRAINT node_must_have_1_to_255_characters CHECK (char_length(node) BETWEEN 1 AND 255),
    CONSTRAINT state_must_be_waiting_met_or_idle CHECK (state IN ('waiting', 'met', 'idle'))
);
-- For ended jobs, for a job's last predecessor of many, and for new edges. The second conditions hold for every row, but
-- keep each kind of query off the other indexes: they look alike while the table is believed empty.
CREATE INDEX IF NOT EXISTS job_edges_awaited ON job_edges (awaited_id, child_id, parent_id)
    WHERE state = 'waiting' AND awaited_id IS NOT NULL;
CREATE INDEX IF NOT EXISTS job_edges_waiting ON job_edges (child_id, parent_id) WHERE state = 'waiting' AND child_id > 0;
CREATE INDEX IF NOT EXISTS job_edges_changed ON job_edges (changed_xid) WHERE state = 'waiting' AND changed_xid IS NOT NULL;
CREATE UNIQUE INDEX IF NOT EXISTS job_edges_nodes ON job_edges (child_id, node) WHERE node IS NOT NULL;

-- Lets jobs wait for others: children[i] for parents[i]. The children must be blocked jobs that this role has staged in
-- this transaction. drain_stage() calls it for the option "after".
--
-- Jobs wait for jobs staged earlier, and a flow for its members. To exclude cycles, members may wait only for members of
-- their flow and for jobs staged before it.
--
-- Runs with the owner's rights, since applications may not read others' jobs. Scalar subqueries, IS TRUE and the generic
-- plan leave only primary keys to look in: blocked jobs share one scheduled_at, and a table may be believed empty.
DO $do$ BEGIN EXECUTE pg_catalog.format($text$
CREATE OR REPLACE FUNCTION drain_after(children bigint[], parents bigint[], on_failure text[]) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    SET plan_cache_mode = force_generic_plan SET enable_seqscan = off
AS $$
DECLARE
    unfit   bigint;
    awaited bigint;
    joined  bigint;
BEGIN
    SELECT given.id INTO unfit FROM unnest(children) AS given (id)
    WHERE (
        SELECT true FROM %1$s.staged_jobs_scheduled AS job WHERE job.id = given.id
            AND (job.scheduled_at = '9999-12-29 00:00:00+00' AND job.staged_at = now()
                AND job.staged_by = %1$s.drain_role()
                -- The end of a flow, and the job that undoes it, wait for members only.
                AND CASE job.job_name WHEN 'drain.undo' THEN false WHEN 'drain.jobs.markers.end_of_flow'
                    THEN (SELECT true FROM %1$s.flows AS own WHERE own.id = job.id) IS NULL ELSE true END) IS TRUE) IS NULL
    LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION USING ERRCODE = 'invalid_parameter_value',
            MESSAGE = format('job %%s is not a blocked job of this role and transaction', coalesce(unfit::text, 'NULL')),
            HINT = 'Only the transaction that stages a job can let it wait: use the option "after" of drain_stage().';
    END IF;
    SELECT given.id INTO unfit FROM unnest(parents) AS given (id)
    WHERE (SELECT true FROM %1$s.staged_jobs AS job WHERE job.id = given.id LIMIT 1) IS NULL
        AND (SELECT true FROM %1$s.inflight_jobs AS job WHERE job.id = given.id LIMIT 1) IS NULL
        AND (SELECT true FROM %1$s.finished_jobs AS job WHERE job.id = given.id LIMIT 1) IS NULL
        AND (SELECT true FROM %1$s.dead_jobs AS job WHERE job.id = given.id LIMIT 1) IS NULL
    LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION USING ERRCODE = 'foreign_key_violation',
            MESSAGE = format('job %%s, which a job should wait for, is unknown', coalesce(unfit::text, 'NULL')),
            HINT = 'Stage it first, in this transaction or one that has committed. Old finished jobs are deleted.';
    END IF;
    SELECT given.child, given.parent INTO unfit, awaited FROM unnest(children, parents) AS given (child, parent)
    WHERE given.parent >= given.child LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION USING ERRCODE = 'check_violation',
            MESSAGE = format('job %%s cannot wait for job %%s, which was staged later', unfit, awaited),
            HINT = 'Stage jobs in the order in which they run.';
    END IF;
    SELECT given.child, given.parent, member.flow INTO unfit, awaited, joined
    FROM unnest(children, parents) AS given (child, parent), LATERAL (
        SELECT edge.child_id AS flow FROM %1$s.job_edges AS edge
        WHERE edge.awaited_id = given.child AND edge.child_id < given.child AND edge.state = 'waiting'
            AND edge.awaited_id IS NOT NULL AND edge.on_failure = 'hold' AND given.parent >= edge.child_id
            AND (SELECT true FROM %1$s.job_edges AS mate WHERE mate.child_id = edge.child_id
                AND mate.parent_id = given.parent AND mate.on_failure = 'hold') IS NULL
        OFFSET 0) AS member
    LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION USING ERRCODE = 'invalid_parameter_value',
            MESSAGE = format('job %%s of flow %%s cannot wait for job %%s, which is not in the flow', unfit, joined, awaited),
            HINT = 'Members of a flow wait for its members, and for jobs staged before the flow.';
    END IF;
    SELECT given.child, member.flow INTO unfit, joined
    FROM unnest(children, parents, on_failure) AS given (child, parent, choice), LATERAL (
        SELECT edge.child_id AS flow FROM %1$s.job_edges AS edge
        WHERE edge.awaited_id = given.child AND edge.child_id < given.parent AND edge.state = 'waiting'
            AND edge.awaited_id IS NOT NULL AND edge.on_failure = 'hold'
            AND (SELECT own.undone_by FROM %1$s.flows AS own WHERE own.id = edge.child_id) IS NOT NULL
        OFFSET 0) AS member
    WHERE given.choice = 'hold' LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION USING ERRCODE = 'invalid_parameter_value',
            MESSAGE = format('job %%s of flow %%s cannot wait with "hold" for another member: the flow is undone instead',
                unfit, joined),
            HINT = 'Use "cancel", "run" or "only".';
    END IF;
    INSERT INTO %1$s.job_edges (child_id, parent_id, awaited_id, on_failure)
    SELECT given.child, given.parent, given.parent, coalesce(given.choice, 'cancel')
    FROM unnest(children, parents, on_failure) AS given (child, parent, choice)
    ON CONFLICT DO NOTHING;
END
$$
$text$, (SELECT relnamespace::pg_catalog.regnamespace FROM pg_catalog.pg_class
    WHERE oid = 'staged_jobs'::pg_catalog.regclass::pg_catalog.oid)); END $do$;

-- flows: sets of jobs with callbacks. A flow's id is that of its end: a blocked marker that waits for each member, and that
-- the enqueuer itself finishes. The enqueuer deletes a flow once its end has left all tables.
--
-- Only edges of members go up: their parent is staged after their child. The end also waits for the opening, an id
-- without a job, so that a flow without members ends at once.
CREATE TABLE IF NOT EXISTS flows (
    id          bigint      PRIMARY KEY,
    name        text,
    description text,
    -- Callbacks: all members finished; all members ended; a member is dead.
    on_success  bigint,
    on_complete bigint,
    on_dead     bigint,
    -- Job that undoes the steps of all members if one dies. NULL: nothing is undone.
    undone_by   bigint,
    -- As of its members.
    expires_at  timestamptz,
    staged_at   timestamptz NOT NULL DEFAULT now(),
    staged_by   text        NOT NULL,

    CONSTRAINT name_must_have_1_to_255_characters CHECK (char_length(name) BETWEEN 1 AND 255),
    CONSTRAINT description_must_not_exceed_4096_characters CHECK (char_length(description) <= 4096)
);

-- Adds jobs to a flow that has not ended: jobs[i] as the node nodes[i], or without names. The jobs must be staged by this
-- role in this transaction, after the flow. drain_stage() calls it for the option "flow".
--
-- Transactions share the lock on the end, so they can join concurrently; the enqueuer skips the flow until they have
-- committed. Rights and plans are as in drain_after().
DO $do$ BEGIN EXECUTE pg_catalog.format($text$
CREATE OR REPLACE FUNCTION drain_join(flow bigint, jobs bigint[], nodes text[]) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    SET plan_cache_mode = force_generic_plan SET enable_seqscan = off
AS $$
DECLARE
    complete bigint;
    undoing  bigint;
    waiting  bigint;
    unfit    bigint;
    awaited  bigint;
    joined   bigint;
    paused   boolean;
    gate     bigint;
BEGIN
    SELECT own.on_complete, own.undone_by INTO complete, undoing FROM %1$s.flows AS own WHERE own.id = flow
        AND EXISTS (SELECT FROM pg_roles AS role WHERE role.rolname = own.staged_by::name
            AND pg_has_role(%1$s.drain_role()::name, role.oid, 'USAGE'));
    IF NOT FOUND THEN
        RAISE EXCEPTION USING ERRCODE = 'foreign_key_violation',
            MESSAGE = format('flow %%s is unknown or belongs to another role', coalesce(flow::text, 'NULL')),
            HINT = 'Give the id that drain_flow() returned.';
    END IF;
    SELECT job.context IS NOT NULL INTO paused FROM %1$s.staged_jobs_scheduled AS job
    WHERE job.id = flow AND (job.scheduled_at = '9999-12-29 00:00:00+00') IS TRUE FOR SHARE;
    IF NOT FOUND THEN
        RAISE EXCEPTION USING ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = CASE WHEN (SELECT true FROM %1$s.dead_jobs AS job WHERE job.id = flow)
                THEN format('flow %%s is cancelled: retry its end, or start a new one', flow)
                ELSE format('flow %%s has ended: start a new one', flow) END,
            HINT = 'A flow can grow while one of its members is unfinished.';
    END IF;
    SELECT given.id INTO unfit FROM unnest(jobs) AS given (id)
    WHERE (
        SELECT true FROM %1$s.staged_jobs AS job WHERE job.id = given.id
            AND (job.id > flow AND job.staged_at = now() AND job.staged_by = %1$s.drain_role()) IS TRUE LIMIT 1) IS NULL
        OR (SELECT true FROM %1$s.flows AS other WHERE other.id = given.id)
    LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION USING ERRCODE = 'invalid_parameter_value',
            MESSAGE = format('job %%s is not a job that this role has staged in this transaction, after flow %%s',
                coalesce(unfit::text, 'NULL'), flow),
            HINT = 'Only the transaction that stages a job can add it to a flow. An idempotency key stands for the first job.';
    END IF;
    INSERT INTO %1$s.job_edges (child_id, parent_id, awaited_id, on_failure, node)
    SELECT flow, given.id, given.id, 'hold', given.node FROM unnest(jobs, nodes) AS given (id, node)
    WHERE given.id IS NOT NULL
    ON CONFLICT DO NOTHING;
    GET DIAGNOSTICS joined = ROW_COUNT;
    IF joined < cardinality(jobs) OR cardinality(nodes) > cardinality(jobs) THEN
        RAISE EXCEPTION USING ERRCODE = 'unique_violation',
            MESSAGE = format('flow %%s already has one of the jobs %%s or of the nodes %%s', flow, left(jobs::text, 100),
                left(nodes::text, 100)),
            HINT = 'Each member joins once, under a name of its own.';
    END IF;
    -- Members that waited for others before they joined.
    SELECT edge.child_id, edge.parent_id INTO unfit, awaited FROM unnest(jobs) AS given (id), LATERAL (
        SELECT own.child_id, own.parent_id FROM %1$s.job_edges AS own WHERE own.child_id = given.id AND own.parent_id >= flow
            AND (SELECT true FROM %1$s.job_edges AS mate WHERE mate.child_id = flow AND mate.parent_id = own.parent_id
                AND mate.on_failure = 'hold') IS NULL
        OFFSET 0) AS edge
    LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION USING ERRCODE = 'invalid_parameter_value',
            MESSAGE = format('job %%s of flow %%s cannot wait for job %%s, which is not in the flow', unfit, flow, awaited),
            HINT = 'Members of a flow wait for its members, and for jobs staged before the flow.';
    END IF;
    SELECT given.id INTO unfit FROM unnest(jobs) AS given (id)
    WHERE undoing IS NOT NULL AND (
        (SELECT true FROM %1$s.job_edges AS own
            WHERE own.child_id = given.id AND own.parent_id > flow AND own.on_failure = 'hold' LIMIT 1)
        OR (SELECT true FROM %1$s.job_edges AS other
            WHERE other.awaited_id = given.id AND other.state = 'waiting' AND other.awaited_id IS NOT NULL
                AND other.child_id <> flow AND other.on_failure = 'hold'
                AND (SELECT own.undone_by FROM %1$s.flows AS own WHERE own.id = other.child_id) IS NOT NULL
            LIMIT 1))
    LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION USING ERRCODE = 'invalid_parameter_value',
            MESSAGE = format('job %%s cannot join flow %%s, which can be undone: it waits with "hold" for a member, or is '
                'in another such flow', unfit, flow),
            HINT = 'Use "cancel", "run" or "only", and one flow with "undo".';
    END IF;
    -- It has been paused: if it still is, its gate is staged.
    IF paused THEN
        gate := (SELECT job.id FROM %1$s.staged_jobs_scheduled AS job WHERE job.id = (
            SELECT edge.parent_id FROM (
                SELECT first.parent_id, first.on_failure FROM %1$s.job_edges AS first WHERE first.child_id = flow
                ORDER BY first.parent_id LIMIT 100) AS edge
            WHERE edge.on_failure = 'run' LIMIT 1));
        UPDATE %1$s.staged_jobs AS job SET scheduled_at = '9999-12-29 00:00:00+00', matured_at = NULL,
            starts_at = CASE WHEN job.scheduled_at = '9999-12-29 00:00:00+00' THEN job.starts_at ELSE job.scheduled_at END
        WHERE job.id = ANY (jobs) AND gate IS NOT NULL;
        INSERT INTO %1$s.job_edges (child_id, parent_id, awaited_id, on_failure)
        SELECT given.id, gate, gate, 'run' FROM unnest(jobs) AS given (id) WHERE gate IS NOT NULL
        ON CONFLICT DO NOTHING;
    END IF;
    FOREACH waiting IN ARRAY array_remove(ARRAY[complete, undoing], NULL) LOOP
        -- A cancelled callback can be retried, and then waits for these too; but not an undo that has begun.
        PERFORM FROM %1$s.dead_jobs AS job WHERE job.id = waiting AND (waiting = complete OR (
            SELECT edge.state FROM %1$s.job_edges AS edge
            WHERE edge.child_id = undoing AND edge.parent_id = flow) <> 'met') IS TRUE FOR SHARE;
        IF NOT FOUND THEN
            PERFORM FROM %1$s.staged_jobs_scheduled AS job
            WHERE job.id = waiting AND (job.scheduled_at = '9999-12-29 00:00:00+00') IS TRUE FOR SHARE SKIP LOCKED;
        END IF;
        IF NOT FOUND THEN
            BEGIN
                PERFORM FROM %1$s.staged_jobs_scheduled AS job
                WHERE job.id = waiting AND (job.scheduled_at = '9999-12-29 00:00:00+00') IS TRUE FOR SHARE;
            EXCEPTION WHEN serialization_failure THEN
                -- Above READ COMMITTED it fails again; else the callback has come free, and is in another partition.
                PERFORM FROM %1$s.staged_jobs_scheduled AS job
                WHERE job.id = waiting AND (job.scheduled_at = '9999-12-29 00:00:00+00') IS TRUE FOR SHARE;
            END;
        END IF;
        IF FOUND THEN
            INSERT INTO %1$s.job_edges (child_id, parent_id, awaited_id, on_failure)
            SELECT waiting, given.id, given.id, 'run' FROM unnest(jobs) AS given (id);
        ELSIF waiting = undoing AND (SELECT edge.state FROM %1$s.job_edges AS edge
            WHERE edge.child_id = undoing AND edge.parent_id = flow) = 'met' THEN
            RAISE EXCEPTION USING ERRCODE = 'object_not_in_prerequisite_state',
                MESSAGE = format('flow %%s has failed, and job %%s undoes it: start a new one', flow, undoing),
                HINT = 'A flow can grow while one of its members is unfinished.';
        END IF;
    END LOOP;
END
$$
$text$, (SELECT relnamespace::pg_catalog.regnamespace FROM pg_catalog.pg_class
    WHERE oid = 'staged_jobs'::pg_catalog.regclass::pg_catalog.oid)); END $do$;

-- Makes a job a callback of a flow, for "success", "complete" or "dead". The transaction that makes the flow stages the
-- job, blocked, and calls this; drain_stage() does so for the option "on".
DO $do$ BEGIN EXECUTE pg_catalog.format($text$
CREATE OR REPLACE FUNCTION drain_callback(flow bigint, job bigint, event text) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    SET plan_cache_mode = force_generic_plan SET enable_seqscan = off
AS $$
BEGIN
    IF (event IN ('success', 'complete', 'dead')) IS NOT TRUE THEN
        RAISE EXCEPTION USING ERRCODE = 'invalid_parameter_value',
            MESSAGE = format('%%s is not an event of a flow', coalesce(quote_literal(left(event, 100)), 'NULL')),
            HINT = 'Give "success", "complete" or "dead".';
    END IF;
    IF (SELECT true FROM %1$s.staged_jobs_scheduled AS own WHERE own.id = job AND own.id > flow
            AND (own.scheduled_at = '9999-12-29 00:00:00+00' AND own.staged_at = now()
                AND own.staged_by = %1$s.drain_role()) IS TRUE) IS NULL
        OR (SELECT true FROM %1$s.flows AS other WHERE other.id = job)
        OR (SELECT true FROM %1$s.job_edges AS edge WHERE edge.awaited_id = job AND edge.child_id < job
            AND edge.state = 'waiting' AND edge.awaited_id IS NOT NULL LIMIT 1)
    THEN
        RAISE EXCEPTION USING ERRCODE = 'invalid_parameter_value',
            MESSAGE = format('job %%s is not a blocked job of this role and transaction, after flow %%s and in no flow',
                coalesce(job::text, 'NULL'), coalesce(flow::text, 'NULL')),
            HINT = 'Use the option "on" of drain_stage().';
    END IF;
    UPDATE %1$s.flows AS own SET
        on_success = CASE event WHEN 'success' THEN job ELSE own.on_success END,
        on_complete = CASE event WHEN 'complete' THEN job ELSE own.on_complete END,
        on_dead = CASE event WHEN 'dead' THEN job ELSE own.on_dead END
    WHERE own.id = flow AND own.staged_at = now() AND own.staged_by = %1$s.drain_role()
        AND CASE event WHEN 'success' THEN own.on_success WHEN 'complete' THEN own.on_complete ELSE own.on_dead END IS NULL;
    IF NOT FOUND THEN
        RAISE EXCEPTION USING ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = format('flow %%s is not of this role and transaction, or already has a callback for %%s', flow, event),
            HINT = 'The transaction that makes a flow stages its callbacks, one for each event.';
    END IF;
    IF event = 'complete' THEN
        INSERT INTO %1$s.job_edges (child_id, parent_id, awaited_id, on_failure)
        SELECT job, edge.parent_id, edge.parent_id, 'run' FROM %1$s.job_edges AS edge WHERE edge.child_id = flow;
    ELSE
        INSERT INTO %1$s.job_edges (child_id, parent_id, awaited_id, on_failure)
        VALUES (job, flow, flow, CASE event WHEN 'success' THEN 'hold' ELSE 'only' END);
    END IF;
END
$$
$text$, (SELECT relnamespace::pg_catalog.regnamespace FROM pg_catalog.pg_class
    WHERE oid = 'staged_jobs'::pg_catalog.regclass::pg_catalog.oid)); END $do$;

-- Makes a flow, without members yet. Options: name, description, expires_at (that of its members), queue and tag of its
-- end, undo, and an idempotency_key with idempotency_period and digest. Under a known key it returns the earlier flow, if
-- its digest was the same:
--
--     SELECT id, is_new FROM drain_flow('{"name": "import", "idempotency_key": "import:9f", "digest": "v1"}');
--
-- "undo": true, or the queue of the job drain.undo, which undoes the recorded steps of all members once they have ended
-- and one is dead.
--
-- Runs with the owner's rights, as drain_stage_once() does.
DO $do$ BEGIN EXECUTE pg_catalog.format($text$
CREATE OR REPLACE FUNCTION drain_flow(options jsonb DEFAULT '{}', OUT id bigint, OUT is_new boolean)
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    known   constant text[] := ARRAY['name', 'description', 'expires_at', 'queue', 'tag', 'idempotency_key',
        'idempotency_period', 'digest', 'undo'];
    given   record;
    unfit   text;
    opening bigint;
    undoing bigint;
BEGIN
    IF jsonb_typeof(options) IS DISTINCT FROM 'object' THEN
        RAISE EXCEPTION USING ERRCODE = 'invalid_parameter_value', MESSAGE = 'the options of a flow are a JSON object',
            HINT = 'Such as {"name": "import"}.';
    END IF;
    SELECT item.option INTO unfit FROM jsonb_object_keys(options) AS item (option) WHERE item.option <> ALL (known) LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION USING ERRCODE = 'invalid_parameter_value',
            MESSAGE = format('drain_flow() has no option %%s', quote_literal(left(unfit, 100))),
            HINT = format('There are: %%s.', array_to_string(known, ', '));
    END IF;
    SELECT * INTO given FROM jsonb_to_record(options) AS new (name text, description text, expires_at timestamptz,
        queue text, tag text, idempotency_key text, idempotency_period double precision, digest text, undo jsonb);
    IF jsonb_typeof(given.undo) NOT IN ('boolean', 'string') THEN
        RAISE EXCEPTION USING ERRCODE = 'invalid_parameter_value', MESSAGE = 'the option "undo" is true or the name of a queue',
            HINT = 'Such as {"undo": "orders"}.';
    END IF;
    IF given.idempotency_key IS NULL THEN
        INSERT INTO %1$s.staged_jobs AS job (job_name, queue, tag, scheduled_at)
        VALUES ('drain.jobs.markers.end_of_flow', coalesce(given.queue, 'default'), given.tag, '9999-12-29 00:00:00+00')
        RETURNING job.id INTO id;
    ELSE
        id := %1$s.drain_stage_once(given.idempotency_key, coalesce(given.idempotency_period, 604800),
            jsonb_build_object('job_name', 'drain.jobs.markers.end_of_flow', 'job_args', jsonb_build_array(given.digest),
                'queue', given.queue, 'tag', given.tag, 'scheduled_at', '9999-12-29 00:00:00+00'));
        IF id < 0 THEN
            RAISE EXCEPTION USING ERRCODE = 'unique_violation',
                MESSAGE = format('the idempotency key %%s is that of flow %%s, which has another digest',
                    quote_literal(left(given.idempotency_key, 100)), - id),
                HINT = 'Give each flow an idempotency key of its own.';
        END IF;
    END IF;
    is_new := NOT EXISTS (SELECT FROM %1$s.flows AS own WHERE own.id = drain_flow.id) AND EXISTS (
        SELECT FROM %1$s.staged_jobs_scheduled AS job WHERE job.id = drain_flow.id AND (job.staged_at = now()) IS TRUE);
    IF NOT is_new THEN
        RETURN;
    END IF;
    IF given.undo <> 'false' THEN
        INSERT INTO %1$s.staged_jobs AS job (job_name, job_args, queue, tag, scheduled_at)
        VALUES ('drain.undo', jsonb_build_array(id), CASE given.undo WHEN 'true' THEN coalesce(given.queue, 'default')
            ELSE given.undo #>> '{}' END, given.tag, '9999-12-29 00:00:00+00')
        RETURNING job.id INTO undoing;
        INSERT INTO %1$s.job_edges (child_id, parent_id, awaited_id, on_failure) VALUES (undoing, id, id, 'only');
    END IF;
    INSERT INTO %1$s.flows (id, name, description, undone_by, expires_at, staged_by)
    VALUES (id, given.name, given.description, undoing, given.expires_at, %1$s.drain_role());
    opening := nextval((%1$L || '.staged_jobs_id_seq')::regclass);
    INSERT INTO %1$s.job_edges (child_id, parent_id, awaited_id, on_failure) VALUES (id, opening, opening, 'run');
END
$$
$text$, (SELECT relnamespace::pg_catalog.regnamespace FROM pg_catalog.pg_class
    WHERE oid = 'staged_jobs'::pg_catalog.regclass::pg_catalog.oid)); END $do$;

-- Returns the id of a flow's node, or fails, for roles that may add jobs to the flow. Plans are as in drain_after().
DO $do$ BEGIN EXECUTE pg_catalog.format($text$
CREATE OR REPLACE FUNCTION drain_node(flow bigint, node text) RETURNS bigint
    LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    SET plan_cache_mode = force_generic_plan SET enable_seqscan = off
AS $$
DECLARE
    job bigint;
BEGIN
    SELECT edge.parent_id INTO job FROM %1$s.flows AS own, LATERAL (
        SELECT member.parent_id FROM %1$s.job_edges AS member
        WHERE member.child_id = own.id AND member.node = drain_node.node OFFSET 0) AS edge
    WHERE own.id = drain_node.flow AND EXISTS (
        SELECT FROM pg_roles AS role WHERE role.rolname = own.staged_by::name
            AND pg_has_role(%1$s.drain_role()::name, role.oid, 'USAGE'));
    IF NOT FOUND THEN
        RAISE EXCEPTION USING ERRCODE = 'foreign_key_violation',
            MESSAGE = format('flow %%s of this role has no node %%s', coalesce(flow::text, 'NULL'),
                coalesce(quote_literal(left(node, 100)), 'NULL')),
            HINT = 'Give the id of the flow, and the name of an existing node.';
    END IF;
    RETURN job;
END
$$
$text$, (SELECT relnamespace::pg_catalog.regnamespace FROM pg_catalog.pg_class
    WHERE oid = 'staged_jobs'::pg_catalog.regclass::pg_catalog.oid)); END $do$;

-- Counts a flow's members, for the roles that drain_job_state() answers. Discarded members count as dead. Returns no row
-- for unknown flows and those of other roles. States: running, paused, finished, cancelled.
CREATE OR REPLACE FUNCTION drain_flow_progress(
    flow bigint, OUT total bigint, OUT finished bigint, OUT dead bigint, OUT unfinished bigint, OUT state text
) RETURNS SETOF record LANGUAGE sql STABLE SECURITY DEFINER ROWS 1 SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT members.total, members.finished, members.total - members.finished - members.unfinished, members.unfinished,
        found.state
    FROM flows AS own, LATERAL (
        SELECT coalesce(
            (SELECT 'paused' FROM staged_jobs_scheduled AS gate WHERE gate.id = (
                SELECT edge.parent_id FROM (
                    SELECT first.parent_id, first.on_failure FROM job_edges AS first WHERE first.child_id = own.id
                    ORDER BY first.parent_id LIMIT 100) AS edge
                WHERE edge.on_failure = 'run' LIMIT 1)),
            (SELECT 'running' FROM staged_jobs AS job WHERE job.id = own.id LIMIT 1),
            (SELECT 'finished' FROM finished_jobs AS job WHERE job.id = own.id LIMIT 1),
            (SELECT 'cancelled' FROM dead_jobs AS job WHERE job.id = own.id)) AS state) AS found,
    LATERAL (
        SELECT pg_catalog.count(*) AS total, pg_catalog.count(*) FILTER (WHERE member.state = 'finished') AS finished,
            pg_catalog.count(*) FILTER (WHERE member.state = 'unfinished') AS unfinished
        FROM job_edges AS edge, LATERAL (
            SELECT CASE WHEN edge.state = 'met' THEN 'finished'
                WHEN (SELECT true FROM staged_jobs AS job WHERE job.id = edge.awaited_id LIMIT 1)
                    OR (SELECT true FROM inflight_jobs AS job WHERE job.id = edge.awaited_id) THEN 'unfinished'
                WHEN (SELECT true FROM finished_jobs AS job WHERE job.id = edge.awaited_id LIMIT 1) THEN 'finished'
                ELSE 'dead' END AS state) AS member
        WHERE edge.child_id = own.id AND edge.parent_id > edge.child_id AND edge.on_failure <> 'run'
    ) AS members
    WHERE own.id = drain_flow_progress.flow AND found.state IS NOT NULL
        AND (pg_catalog.has_table_privilege(drain_role()::name, 'finished_jobs'::regclass::oid, 'SELECT'::text)
            OR EXISTS (SELECT FROM pg_catalog.pg_roles AS role WHERE role.rolname = own.staged_by::name
                AND pg_catalog.pg_has_role(drain_role()::name, role.oid, 'USAGE'::text)));
END;

-- As drain_record_step, for a step with an undo. A job's first such step also names the job that undoes them all: that
-- of its flow, which waits for this job, or else a new one, blocked until this job dies.
--
-- Runs with the owner's rights, since workers may not stage jobs.
DO $do$ BEGIN EXECUTE pg_catalog.format($text$
CREATE OR REPLACE FUNCTION drain_record_undoable_step(
    job bigint, token bigint, job_salt bigint, worker text, step text, kept json, took double precision, how jsonb
) RETURNS boolean LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
DECLARE
    undoing  bigint;
    is_first boolean := false;
BEGIN
    IF NOT %1$s.drain_record_step(job, token, job_salt, worker, step, kept, took) THEN
        RETURN false;
    END IF;
    undoing := (SELECT undone_by FROM %1$s.job_steps WHERE job_id = job AND undone_by IS NOT NULL);
    IF (SELECT true FROM %1$s.staged_jobs WHERE id = undoing LIMIT 1) IS NULL THEN
        undoing := (SELECT edge.child_id FROM %1$s.job_edges AS edge
            WHERE edge.awaited_id = job AND edge.parent_id = job AND edge.state = 'waiting'
                AND edge.awaited_id IS NOT NULL AND edge.on_failure = 'run'
                AND (SELECT own.undone_by FROM %1$s.flows AS own WHERE own.id = (
                    SELECT first.parent_id FROM %1$s.job_edges AS first
                    WHERE first.child_id = edge.child_id ORDER BY first.parent_id LIMIT 1)) = edge.child_id
                AND (SELECT true FROM %1$s.staged_jobs AS undo WHERE undo.id = edge.child_id LIMIT 1)
            LIMIT 1);
        IF undoing IS NULL THEN
            INSERT INTO %1$s.staged_jobs (job_name, job_args, queue, priority, scheduled_at, tag, staged_by)
            SELECT 'drain.undo', jsonb_build_array(id), queue, priority, '9999-12-29 00:00:00+00', tag, staged_by
            FROM %1$s.inflight_jobs WHERE id = job
            RETURNING id INTO undoing;
            INSERT INTO %1$s.job_edges (child_id, parent_id, awaited_id, on_failure) VALUES (undoing, job, job, 'only');
        END IF;
        -- The earlier one was cancelled.
        UPDATE %1$s.job_steps SET undone_by = undoing WHERE job_id = job AND undone_by IS NOT NULL;
        is_first := NOT FOUND;
    END IF;
    -- Later than the earlier ones, if the clock has been set back.
    UPDATE %1$s.job_steps SET undo = how, undone_by = CASE WHEN is_first THEN undoing END,
        recorded_at = greatest(recorded_at, interval '1 us' + (SELECT own.recorded_at FROM %1$s.job_steps AS own
            WHERE own.job_id = job AND own.undo IS NOT NULL ORDER BY own.recorded_at DESC LIMIT 1))
    WHERE job_id = job AND name = step;
    RETURN true;
END
$$
$text$, (SELECT relnamespace::pg_catalog.regnamespace FROM pg_catalog.pg_class
    WHERE oid = 'inflight_jobs'::pg_catalog.regclass::pg_catalog.oid)); END $do$;

-- As drain_record_step, for a step of drain.undo: also deletes the step that it undoes, `undone_step` of the job `undone`.
-- A job's last undo deletes all its other steps and its wait, and notes this in its explanation.
--
-- Runs with the owner's rights, since workers may not delete steps.
DO $do$ BEGIN EXECUTE pg_catalog.format($text$
CREATE OR REPLACE FUNCTION drain_record_undo(
    job bigint, token bigint, job_salt bigint, worker text, step text, kept json, took double precision, undone bigint,
    undone_step text
) RETURNS boolean LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
DECLARE
    was_last boolean;
BEGIN
    IF NOT %1$s.drain_record_step(job, token, job_salt, worker, step, kept, took) THEN
        RETURN false;
    END IF;
    -- Applications may stage jobs of this name, too.
    IF (SELECT undone_by FROM %1$s.job_steps WHERE job_id = undone AND undone_by IS NOT NULL) = job THEN
        DELETE FROM %1$s.job_steps WHERE job_id = undone AND name = undone_step
        RETURNING undone_by IS NOT NULL INTO was_last;
        IF was_last THEN
            DELETE FROM %1$s.job_steps WHERE job_id = undone;
            DELETE FROM %1$s.job_waits WHERE job_id = undone;
            UPDATE %1$s.dead_jobs SET explanation = format('%%s; undone by job %%s', explanation, job) WHERE id = undone;
        END IF;
    END IF;
    RETURN true;
END
$$
$text$, (SELECT relnamespace::pg_catalog.regnamespace FROM pg_catalog.pg_class
    WHERE oid = 'inflight_jobs'::pg_catalog.regclass::pg_catalog.oid)); END $do$;


-- job_waits: jobs that wait for an event, or sleep; one wait per job. The worker inserts the row when it gives up the
-- job's lease. Only the enqueuer ends the wait: it records the outcome as a step, {"event": payload} or
-- {"timeout": true}, deletes the row, and makes the job due. Until then, next_run_at is 9999-12-29 00:00 UTC.
CREATE TABLE IF NOT EXISTS job_waits (
    job_id        bigint      PRIMARY KEY,
    -- Of the step.
    name          text        NOT NULL,
    -- NULL: the job sleeps.
    event         text,
    -- NULL: no timeout.
    deadline      timestamptz,
    -- As in the job's row; decides which roles' events count.
    staged_by     text,
    -- Token of the claim that waits.
    fencing_token bigint      NOT NULL,
    began_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- For the enqueuer, as finished_xid.
    wait_xid      xid8        NOT NULL DEFAULT pg_current_xact_id(),
    CONSTRAINT a_wait_must_be_able_to_end CHECK (num_nonnulls(event, deadline) > 0)
);
CREATE INDEX IF NOT EXISTS job_waits_event ON job_waits (event) WHERE event IS NOT NULL;
CREATE INDEX IF NOT EXISTS job_waits_deadline ON job_waits (deadline) WHERE deadline IS NOT NULL;
CREATE INDEX IF NOT EXISTS job_waits_new ON job_waits (wait_xid);

-- job_events: events that jobs wait for. The enqueuer deletes old ones.
CREATE TABLE IF NOT EXISTS job_events (
    id          bigint      PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    name        text        NOT NULL,
    payload     jsonb       NOT NULL,
    -- The event reaches jobs staged by this role or by roles that it is a member of; the owner's events reach all.
    emitted_by  text        NOT NULL,
    emitted_at  timestamptz NOT NULL DEFAULT now(),
    -- For the enqueuer, as finished_xid.
    emitted_xid xid8        NOT NULL DEFAULT pg_current_xact_id(),
    CONSTRAINT name_must_be_a_word_of_up_to_255_characters CHECK (name ~ '^[^[:cntrl:]]{1,255}$'),
    CONSTRAINT payload_must_not_exceed_64_kibibytes CHECK (octet_length(payload::text) <= 65536),
    -- Python could not read it.
    CONSTRAINT payload_must_not_be_nested_500_deep CHECK (NOT jsonb_path_exists(payload, 'strict $.**{500}'))
);
CREATE INDEX IF NOT EXISTS job_events_by_name ON job_events (name, id);
CREATE INDEX IF NOT EXISTS job_events_new ON job_events (emitted_xid);
CREATE INDEX IF NOT EXISTS job_events_old ON job_events (emitted_at);

-- Emits an event for jobs that wait for it now or later, once the transaction commits; returns its id. The first event
-- ends a wait. Runs with the owner's rights, since applications may not read others' events.
CREATE OR REPLACE FUNCTION drain_emit(event text, payload jsonb DEFAULT 'null') RETURNS bigint LANGUAGE sql
    SECURITY DEFINER SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    INSERT INTO job_events (name, payload, emitted_by)
    VALUES (drain_emit.event, coalesce(drain_emit.payload, 'null'::jsonb), drain_role())
    RETURNING id;
END;



-- A job's state, for the role that staged it, its members, and roles that may read finished_jobs: no arguments,
-- traceback or context. No row: unknown, or another role's. States: blocked, waiting, scheduled, running, retrying,
-- parked, finished, superseded, dead, cancelled, expired. Runs with the owner's rights, since applications may not read
-- others' jobs.
CREATE OR REPLACE FUNCTION drain_job_state(
    job bigint, OUT id bigint, OUT job_name text, OUT queue text, OUT state text, OUT attempts integer,
    OUT staged_at timestamptz, OUT started_at timestamptz, OUT finished_at timestamptz, OUT error text,
    OUT has_result boolean, OUT result jsonb
) RETURNS SETOF record LANGUAGE sql STABLE SECURITY DEFINER ROWS 1 SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    WITH found AS (
        SELECT held.id, held.job_name, held.queue,
            CASE WHEN held.lease_expires_at IS NOT NULL THEN 'running' WHEN held.next_run_at IS NULL THEN 'waiting'
                WHEN held.next_run_at = '9999-12-29 00:00:00+00'::timestamptz THEN 'parked'
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
            CASE WHEN waits.scheduled_at = '9999-12-29 00:00:00+00'::timestamptz THEN 'blocked'
                WHEN waits.scheduled_at > pg_catalog.clock_timestamp() THEN 'scheduled' ELSE 'waiting' END, 0,
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


-- queues: rules, which the enqueuer follows within a second of a change. No row: no rules.
CREATE TABLE IF NOT EXISTS queues (
    queue           text        PRIMARY KEY,
    -- Most jobs delivered or claimed at a time, per queue and per key.
    running         integer,
    running_per_key integer,
    -- Most starts per time ('100/s', '10/min', '5/h', '1/d'), and starts at once after a pause.
    rate            text,
    rate_per_key    text,
    burst           integer,
    -- Keys take turns in proportion to {"key": weight}; the default is 1.
    fair            boolean     NOT NULL DEFAULT false,
    weights         jsonb       NOT NULL DEFAULT '{}',
    -- Jobs of a key run one at a time, by id. on_dead: whether a dead job holds the others.
    ordered         boolean     NOT NULL DEFAULT false,
    on_dead         text        NOT NULL DEFAULT 'hold',
    -- Waiting time that counts as one priority step.
    aging_seconds   double precision,
    changed_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- Why the leader cannot apply these rules; it holds the queue until they change. A new leader tries again.
    error           text,

    -- Same rules as drain/admission/rules.py.
    CONSTRAINT queue_must_be_a_name_that_rq_can_carry
        CHECK (queue ~ '^[A-Za-z0-9_][A-Za-z0-9_.:-]*$' AND char_length(queue) <= 100),
    CONSTRAINT running_must_be_positive CHECK (running > 0 AND running_per_key > 0),
    CONSTRAINT rate_must_be_a_number_a_time
        CHECK (rate ~ '^[1-9][0-9]{0,8}/(s|min|h|d)$' AND rate_per_key ~ '^[1-9][0-9]{0,8}/(s|min|h|d)$'),
    CONSTRAINT burst_must_be_positive CHECK (burst > 0),
    CONSTRAINT weights_must_be_an_object CHECK (jsonb_typeof(weights) = 'object'),
    -- Strict: otherwise a list counts as its elements, and an empty one passes.
    CONSTRAINT weights_must_be_numbers_from_one_thousandth_to_1000
        CHECK (NOT jsonb_path_exists(weights, 'strict $.* ? (@.type() != "number" || @ < 0.001 || @ > 1000)', '{}', true)),
    CONSTRAINT keys_of_weights_must_have_1_to_255_characters
        CHECK (NOT jsonb_path_exists(
            weights, 'strict $.keyvalue() ? (!(@.key like_regex "^.{1,255}$" flag "s"))', '{}', true)),
    CONSTRAINT on_dead_must_be_hold_or_skip CHECK (on_dead IN ('hold', 'skip')),
    CONSTRAINT aging_seconds_must_be_positive_and_at_most_a_year
        CHECK (aging_seconds > '0' AND aging_seconds <= '31536000'),
    -- Contradictions.
    CONSTRAINT running_per_key_must_not_exceed_running CHECK (running_per_key <= running),
    CONSTRAINT ordered_needs_running_per_key_of_one CHECK (NOT ordered OR coalesce(running_per_key, 1) = 1),
    CONSTRAINT weights_need_fair CHECK (fair OR weights = '{}'),
    -- A new leader reads the starts of a year at most.
    CONSTRAINT burst_must_fill_within_a_year
        CHECK (CASE WHEN rate ~ '^[1-9][0-9]{0,8}/(s|min|h|d)$' THEN
            burst::bigint * CASE split_part(rate, '/', 2) WHEN 's' THEN 1 WHEN 'min' THEN 60 WHEN 'h' THEN 3600 ELSE 86400 END
                <= split_part(rate, '/', 1)::bigint * 31536000
            ELSE true END),
    CONSTRAINT burst_must_fill_within_a_year_for_each_key
        CHECK (CASE WHEN rate_per_key ~ '^[1-9][0-9]{0,8}/(s|min|h|d)$' THEN
            burst::bigint * CASE split_part(rate_per_key, '/', 2) WHEN 's' THEN 1 WHEN 'min' THEN 60 WHEN 'h' THEN 3600 ELSE 86400 END
                <= split_part(rate_per_key, '/', 1)::bigint * 31536000
            ELSE true END),
    CONSTRAINT burst_needs_a_rate CHECK (burst IS NULL OR coalesce(rate, rate_per_key) IS NOT NULL),
    CONSTRAINT on_dead_needs_ordered CHECK (ordered OR on_dead = 'hold'),
    CONSTRAINT aging_needs_a_queue_without_rules_for_keys
        CHECK (aging_seconds IS NULL OR NOT (fair OR ordered OR coalesce(running_per_key::text, rate_per_key) IS NOT NULL))
);

-- queue_pauses: a job that matches every non-NULL column does not start. `until` NULL: until resumed.
CREATE TABLE IF NOT EXISTS queue_pauses (
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
    -- A time that programs cannot read would stop the leader.
    CONSTRAINT times_must_lie_between_the_years_1_and_9999
        CHECK (least(until, paused_at) > '0001-01-02 00:00:00+00'
            AND greatest(until, paused_at) < '9999-12-30 00:00:00+00')
);
CREATE UNIQUE INDEX IF NOT EXISTS queue_pauses_once
    ON queue_pauses (coalesce(queue, ''), coalesce(job_name, ''), coalesce(key, ''), (until IS NULL));


-- crons: schedules. Each tick stages the job and advances the schedule in one transaction. Plain SQL works too; after
-- changing cron or timezone, set next_tick_at to NULL:
--
--     INSERT INTO crons (name, job_name, cron) VALUES ('nightly report', 'shop.jobs.report', '0 3 * * *');
CREATE TABLE IF NOT EXISTS crons (
    name         text        PRIMARY KEY,
    job_name     text        NOT NULL,
    -- Five crontab(5) fields, or six starting with seconds, in this time zone.
    cron         text        NOT NULL,
    timezone     text        NOT NULL DEFAULT 'UTC',
    -- Which ticks to catch up on after a time without a leader: 'last', 'all', 'none'.
    missed       text        NOT NULL DEFAULT 'last',
    job_args     jsonb       NOT NULL DEFAULT '[]',
    job_kwargs   jsonb       NOT NULL DEFAULT '{}',
    -- Other columns of the staged rows.
    options      jsonb       NOT NULL DEFAULT '{}',
    -- Declared by @job(cron=...) and kept in sync by `drain work`, rather than the application's own.
    declared     boolean     NOT NULL DEFAULT false,
    paused       boolean     NOT NULL DEFAULT false,
    -- Why the leader cannot stage the job. A new leader tries again.
    error        text,
    -- NULL: the leader computes the first tick after changed_at.
    next_tick_at timestamptz,
    last_tick_at timestamptz,
    last_job_id  bigint,
    changed_at   timestamptz NOT NULL DEFAULT clock_timestamp(),

    -- Jobs are tagged 'cron:' and the name.
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
CREATE INDEX IF NOT EXISTS crons_next_tick ON crons (next_tick_at NULLS FIRST) WHERE NOT paused AND error IS NULL;


-- idempotency_keys: staging again under a key returns the same job.
CREATE TABLE IF NOT EXISTS idempotency_keys (
    -- Role as quote_ident() writes it, a space, and its key. Before version 6, the key only.
    idempotency_key text        PRIMARY KEY,
    job_id          bigint,
    job_name        text        NOT NULL,
    -- From drain_digest().
    digest          bytea       NOT NULL,
    staged_at       timestamptz NOT NULL DEFAULT now(),
    expires_at      timestamptz NOT NULL,

    CONSTRAINT idempotency_key_must_have_1_to_255_characters
        CHECK (char_length(idempotency_key) BETWEEN 1 AND 384)
);
CREATE INDEX IF NOT EXISTS idempotency_keys_expired ON idempotency_keys (expires_at);

-- Salt, then SHA-256 of salt, name and arguments. Before version 6 the salt was empty.
CREATE OR REPLACE FUNCTION drain_digest(salt bytea, job_name text, args jsonb, kwargs jsonb) RETURNS bytea LANGUAGE sql STABLE
    RETURN salt || pg_catalog.sha256(salt || pg_catalog.convert_to(
        pg_catalog.concat_ws(' ', job_name, coalesce(args, '[]'::jsonb), coalesce(kwargs, '{}'::jsonb)), 'UTF8'::name));

-- Stages a job, unless the same role has one under this key, which expires after `keep_seconds`. Returns the id of the
-- job under the key, negated if its name or arguments differ. `job` holds columns that applications may write, in
-- `after` the [id, on_failure] of jobs to wait for, and the `flow` that it joins as `node`, or calls back at `event`:
--
--     SELECT drain_stage_once('webhook:9f', 86400, '{"job_name": "shop.jobs.send_receipt", "job_args": [42]}');
--
-- A second transaction with the key waits for the first. At repeatable read it then fails with serialization_failure.
--
-- Runs with the owner's rights, since applications may neither read nor change others' keys.
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
            quiet_seconds double precision, after jsonb, event text)
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
        max_attempts, timeout_seconds, context, key, unique_key, keep, quiet_seconds, starts_at)
    OVERRIDING SYSTEM VALUE
    SELECT reserved.job_id, given.job_name, coalesce(given.job_args, '[]'::jsonb),
        coalesce(given.job_kwargs, '{}'::jsonb), coalesce(given.queue, 'default'),
        coalesce(given.priority, 0),
        CASE WHEN given.after <> '[]'::jsonb OR given.event IS NOT NULL THEN '9999-12-29 00:00:00+00'::timestamptz
            ELSE due.at END,
        given.expires_at, given.tag, given.max_attempts, given.timeout_seconds, given.context, given.key,
        given.unique_key, given.keep, given.quiet_seconds,
        CASE WHEN given.after <> '[]'::jsonb OR given.event IS NOT NULL THEN due.at END
    FROM reserved, given, LATERAL (
        SELECT coalesce(given.scheduled_at, pg_catalog.now())
            + pg_catalog.make_interval(secs => coalesce(given.quiet_seconds, '0'))) AS due (at);

    -- Of a job staged before, the edges stay as they are. Scalar subqueries, as in drain_after().
    SELECT drain_after(pg_catalog.array_agg(kept.job_id), pg_catalog.array_agg((edge.pair ->> 0)::bigint),
        pg_catalog.array_agg(edge.pair ->> 1))
    FROM idempotency_keys AS kept, pg_catalog.jsonb_array_elements(drain_stage_once.job -> 'after'::text) AS edge (pair)
    WHERE kept.idempotency_key = pg_catalog.concat(pg_catalog.quote_ident(drain_role()), ' ', drain_stage_once.key)
        AND (SELECT true FROM staged_jobs_scheduled AS job WHERE job.id = kept.job_id
            AND (job.scheduled_at = '9999-12-29 00:00:00+00'::timestamptz AND job.staged_at = pg_catalog.now()) IS TRUE)
        AND (SELECT true FROM job_edges AS known WHERE known.child_id = kept.job_id LIMIT 1) IS NULL;

    -- Unless it is in the flow already; fails for a job staged earlier.
    SELECT CASE WHEN new.event IS NULL THEN drain_join(new.flow, ARRAY[kept.job_id], ARRAY[new.node])
        ELSE drain_callback(new.flow, kept.job_id, new.event) END
    FROM idempotency_keys AS kept,
        pg_catalog.jsonb_to_record(drain_stage_once.job)
            AS new (flow bigint, node text, event text, job_name text, job_args jsonb, job_kwargs jsonb)
    WHERE kept.idempotency_key = pg_catalog.concat(pg_catalog.quote_ident(drain_role()), ' ', drain_stage_once.key)
        AND new.flow IS NOT NULL AND kept.job_name = new.job_name AND kept.digest = drain_digest(
            pg_catalog.substring(kept.digest, 1, pg_catalog.octet_length(kept.digest) - 32), new.job_name, new.job_args,
            new.job_kwargs)
        AND (SELECT true FROM job_edges AS known WHERE known.child_id = new.flow AND known.parent_id = kept.job_id) IS NULL
        AND (SELECT true FROM flows AS own WHERE own.id = new.flow
            AND kept.job_id IN (own.on_success, own.on_complete, own.on_dead)) IS NULL;

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


-- Stages a job from any language; version 1 of the contract in docs/howto/staging-from-sql.md. `args` is an array of
-- positional or an object of keyword arguments. Options are those of `drain.stage`; times are texts with a time zone,
-- durations seconds:
--
--     SELECT drain_stage('shop.jobs.send_receipt', '[42]', '{"queue": "mail", "run_in": 60}');
--
-- Runs with the caller's rights.
CREATE OR REPLACE FUNCTION drain_stage_of(staged regclass, job_name text, args jsonb, options jsonb) RETURNS bigint
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    kinds constant jsonb := '{"version": "1", "queue": "a text", "priority": "a whole number", "run_at": "a time",
        "run_in": "a number of seconds", "expires_at": "a time", "tag": "a text", "max_attempts": "a whole number",
        "timeout_seconds": "a whole number", "context": "an object", "key": "a text or a whole number",
        "unique_key": "a text or a whole number", "keep": "a text", "quiet": "a number of seconds",
        "idempotency_key": "a text", "idempotency_period": "a number of seconds",
        "after": "a list of jobs", "on_failure": "a choice", "flow": "the id of a flow", "node": "a text", "on": "an event"}';
    examples constant jsonb := '{"version": "leave it out, or give 1", "a text": "give a JSON string",
        "a whole number": "give a JSON number from -2147483648 to 2147483647",
        "a time": "give a string with a time zone, such as \"2030-01-31T08:30:00Z\"",
        "a number of seconds": "give a JSON number above 0 and up to ten years, such as 60", "an object": "give a JSON object",
        "a text or a whole number": "give a JSON string or a whole JSON number",
        "a list of jobs": "give an array of ids, such as [41, 42], or of pairs, such as [[41, \"run\"]]",
        "a choice": "give \"cancel\", \"run\", \"hold\" or \"only\"",
        "the id of a flow": "give the id that drain_flow() returned",
        "an event": "give \"success\", \"complete\" or \"dead\""}';
    columns constant text := 'job_name, job_args, job_kwargs, queue, priority, scheduled_at, expires_at, tag, '
        'max_attempts, timeout_seconds, context, key, unique_key, keep, quiet_seconds, starts_at';
    choices constant jsonb := '["cancel", "run", "hold", "only"]';
    events  constant jsonb := '["success", "complete", "dead"]';
    blocked constant timestamptz := '9999-12-29 00:00:00+00';
    home   constant regnamespace := (SELECT relnamespace FROM pg_class WHERE oid = staged);
    form constant text := '^\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d+)?)? ?(Z|[+-]\d\d(:?\d\d)?)$';
    named  jsonb := coalesce(nullif(options, 'null'), '{}');
    called constant jsonb := coalesce(nullif(args, 'null'), '[]');
    new    jsonb;
    name   text;
    value  jsonb;
    kind   text;
    typ    text;
    number numeric;
    fits   boolean;
    after  jsonb;
    job_id bigint;
BEGIN
    IF jsonb_typeof(called) NOT IN ('array', 'object') THEN
        RAISE EXCEPTION USING ERRCODE = 'invalid_parameter_value',
            MESSAGE = format('the arguments of a job are a JSON array or object, not of the type %s', jsonb_typeof(called)),
            HINT = 'Positional arguments are an array, such as [42], keyword arguments an object, such as {"order": 42}.';
    END IF;
    IF jsonb_typeof(named) <> 'object' THEN
        RAISE EXCEPTION USING ERRCODE = 'invalid_parameter_value',
            MESSAGE = format('the options of a job are a JSON object, not of the type %s', jsonb_typeof(named)),
            HINT = 'Such as {"queue": "mail", "run_in": 60}.';
    END IF;
    FOR name, value IN SELECT * FROM jsonb_each(jsonb_strip_nulls(named)) LOOP
        kind := kinds ->> name;
        IF kind IS NULL THEN
            RAISE EXCEPTION USING ERRCODE = 'invalid_parameter_value',
                MESSAGE = format('drain_stage() has no option %s', quote_literal(left(name, 100))),
                HINT = format('There are: %s.', (SELECT string_agg(key, ', ' ORDER BY key) FROM jsonb_each(kinds)));
        END IF;
        typ := jsonb_typeof(value);
        number := CASE WHEN typ = 'number' THEN value::numeric END;
        fits := CASE kind
            WHEN '1' THEN number = 1
            WHEN 'a text' THEN typ = 'string'
            WHEN 'an object' THEN typ = 'object'
            WHEN 'a whole number' THEN number = trunc(number) AND number BETWEEN -2147483648 AND 2147483647
            WHEN 'a text or a whole number' THEN typ = 'string' OR number = trunc(number)
            WHEN 'a number of seconds' THEN number > 0 AND number <= 315360000
            WHEN 'a choice' THEN choices @> value
            WHEN 'an event' THEN events @> value
            WHEN 'the id of a flow' THEN number = trunc(number) AND number BETWEEN 1 AND 999999999999999999
            WHEN 'a list of jobs' THEN typ = 'array' AND NOT EXISTS (
                SELECT FROM jsonb_array_elements(CASE typ WHEN 'array' THEN value ELSE '[]' END) AS given (item),
                    LATERAL (SELECT CASE jsonb_typeof(item) WHEN 'array' THEN item ELSE jsonb_build_array(item, 'run') END)
                        AS edge (pair)
                WHERE (jsonb_typeof(pair -> 0) = 'number' AND pair ->> 0 ~ '^[1-9]\d{0,17}$'
                    AND jsonb_array_length(pair) = 2 AND choices @> (pair -> 1)
                    AND jsonb_typeof(pair -> 1) = 'string') IS NOT TRUE)
            ELSE typ = 'string' AND value #>> '{}' ~ form END;
        IF fits AND kind = 'a time' THEN
            BEGIN
                fits := (value #>> '{}')::timestamptz < blocked OR name <> 'run_at';
            EXCEPTION WHEN data_exception THEN
                fits := false;
            END;
        ELSIF fits AND number IS NOT NULL THEN
            -- 5.0 is 5, also as a key.
            named := jsonb_set(named, ARRAY[name], to_jsonb(trim_scale(number)));
        END IF;
        IF fits IS NOT TRUE THEN
            RAISE EXCEPTION USING ERRCODE = 'invalid_parameter_value',
                MESSAGE = format('the option %s of drain_stage() is %s, not %s', name,
                    CASE kind WHEN '1' THEN 'the version of its contract, 1' ELSE kind END, left(value::text, 100)),
                HINT = format('%s.', coalesce(examples ->> name, examples ->> kind));
        END IF;
    END LOOP;
    IF named ->> 'run_at' IS NOT NULL AND named ->> 'run_in' IS NOT NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'invalid_parameter_value', MESSAGE = 'run_at and run_in exclude each other',
            HINT = 'Give one of them.';
    END IF;
    IF named ->> 'on_failure' IS NOT NULL AND named ->> 'after' IS NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'invalid_parameter_value',
            MESSAGE = 'the option on_failure needs jobs to wait for', HINT = 'Give them as "after", or leave both out.';
    END IF;
    IF (named ->> 'node' IS NOT NULL OR named ->> 'on' IS NOT NULL) AND named ->> 'flow' IS NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'invalid_parameter_value', MESSAGE = 'the options node and on need a flow',
            HINT = 'Give its id as "flow", or leave them out.';
    END IF;
    IF named ->> 'node' IS NOT NULL AND named ->> 'on' IS NOT NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'invalid_parameter_value', MESSAGE = 'node and on exclude each other',
            HINT = 'A callback of a flow is not a member of it.';
    END IF;
    after := (SELECT jsonb_agg(CASE jsonb_typeof(item) WHEN 'array' THEN item
        ELSE jsonb_build_array(item, coalesce(named ->> 'on_failure', 'cancel')) END)
        FROM jsonb_array_elements(nullif(named -> 'after', 'null')) AS given (item));
    IF named ->> 'idempotency_period' IS NOT NULL AND named ->> 'idempotency_key' IS NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'invalid_parameter_value',
            MESSAGE = 'the option idempotency_period needs an idempotency_key',
            HINT = 'Give both, or none.';
    END IF;
    new := jsonb_strip_nulls(jsonb_build_object('job_name', job_name,
        'queue', named -> 'queue', 'priority', named -> 'priority', 'tag', named -> 'tag',
        'scheduled_at', coalesce((named ->> 'run_at')::timestamptz,
            now() + make_interval(secs => (named ->> 'run_in')::double precision)),
        'expires_at', (named ->> 'expires_at')::timestamptz, 'max_attempts', named -> 'max_attempts',
        'timeout_seconds', named -> 'timeout_seconds', 'key', named ->> 'key', 'unique_key', named ->> 'unique_key',
        'keep', named -> 'keep', 'quiet_seconds', named -> 'quiet', 'after', after,
        'flow', named -> 'flow', 'node', named -> 'node', 'event', named -> 'on'));
    -- Not stripped of the nulls within them.
    new := new || jsonb_build_object('context', named -> 'context',
        CASE jsonb_typeof(called) WHEN 'array' THEN 'job_args' ELSE 'job_kwargs' END, called);
    IF named ->> 'idempotency_key' IS NOT NULL THEN
        EXECUTE format('SELECT %s.drain_stage_once($1, $2, $3)', home) INTO job_id
            USING named ->> 'idempotency_key', coalesce((named ->> 'idempotency_period')::double precision, 604800), new;
        IF job_id < 0 THEN
            RAISE EXCEPTION USING ERRCODE = 'unique_violation',
                MESSAGE = format('the idempotency key %s is that of job %s, which has another name or other arguments',
                    quote_literal(left(named ->> 'idempotency_key', 100)), - job_id),
                HINT = 'Give each job an idempotency key of its own.';
        END IF;
        RETURN job_id;
    END IF;
    EXECUTE format('INSERT INTO %s (%s) SELECT new.job_name, coalesce(new.job_args, ''[]''), '
        'coalesce(new.job_kwargs, ''{}''), coalesce(new.queue, ''default''), coalesce(new.priority, 0), '
        'coalesce($2, due.at), new.expires_at, new.tag, new.max_attempts, new.timeout_seconds, '
        'nullif(new.context, ''null''), new.key, new.unique_key, new.keep, new.quiet_seconds, '
        'CASE WHEN $2 IS NOT NULL THEN due.at END FROM jsonb_to_record($1) AS new (job_name text, job_args jsonb, '
        'job_kwargs jsonb, queue text, priority integer, scheduled_at timestamptz, expires_at timestamptz, tag text, '
        'max_attempts integer, timeout_seconds integer, context jsonb, key text, unique_key text, keep text, '
        'quiet_seconds double precision), LATERAL (SELECT coalesce(new.scheduled_at, now()) '
        '+ make_interval(secs => coalesce(new.quiet_seconds, 0))) AS due (at) RETURNING id', staged, columns)
        INTO job_id USING new, CASE WHEN after IS NOT NULL OR named ->> 'on' IS NOT NULL THEN blocked END;
    IF named ->> 'on' IS NOT NULL THEN
        EXECUTE format('SELECT %s.drain_callback($1, $2, $3)', home)
            USING (named ->> 'flow')::bigint, job_id, named ->> 'on';
    ELSIF named ->> 'flow' IS NOT NULL THEN
        EXECUTE format('SELECT %s.drain_join($1, ARRAY[$2], ARRAY[$3])', home)
            USING (named ->> 'flow')::bigint, job_id, named ->> 'node';
    END IF;
    IF after IS NOT NULL THEN
        EXECUTE format('SELECT %s.drain_after(array_agg($1), array_agg((pair ->> 0)::bigint), array_agg(pair ->> 1)) '
            'FROM jsonb_array_elements($2) AS edge (pair)', home) USING job_id, after;
    END IF;
    RETURN job_id;
END
$$;

CREATE OR REPLACE FUNCTION drain_stage(job_name text, args jsonb DEFAULT '[]', options jsonb DEFAULT '{}')
    RETURNS bigint LANGUAGE sql
    RETURN drain_stage_of('staged_jobs', job_name, args, options);


-- bulk_runs: a repeated bulk run finds its row and stages nothing more, unless it had staged no jobs.
CREATE TABLE IF NOT EXISTS bulk_runs (
    run_id       text        PRIMARY KEY,
    rows         bigint      NOT NULL,
    -- Last commit; NULL before the first.
    committed_at timestamptz          DEFAULT now(),
    -- What the run stages; another plan under its id is refused. NULL before version 6, and for reconcile and replay.
    plan         text,
    begun_at     timestamptz          DEFAULT now(),
    -- Where a run with several commits resumes.
    position     text,
    -- Flow of its jobs, if any.
    flow         bigint,
    CONSTRAINT run_id_must_be_a_word_of_up_to_255_characters CHECK (run_id ~ '^[^[:cntrl:]]{1,255}$')
);


-- drain_state: one row, written by the leader on the connection that holds its lock.
CREATE TABLE IF NOT EXISTS drain_state (
    only_row      boolean     PRIMARY KEY DEFAULT true CHECK (only_row),
    leader        text,
    leader_since  timestamptz,
    -- Distinguishes databases; part of jobs' external keys.
    installation  uuid        NOT NULL DEFAULT gen_random_uuid(),
    -- Retention has dropped days before this one unarchived, with ids up to this one.
    dropped_before date,
    dropped_up_to  bigint
);
INSERT INTO drain_state DEFAULT VALUES ON CONFLICT DO NOTHING;

-- Drops the oldest closed UTC day of finished_jobs, but never the last `keep`. Returns the day and its number of jobs,
-- estimated if large; no row if there is none, or while `drain archive` runs. Of a day without a partition, deletes up
-- to 10,000 rows. Fails with lock_not_available as drain_drop_day(). Never drops other tables attached to
-- finished_jobs.
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
    is_awaited boolean;
BEGIN
    -- A snapshot older than the lock would miss rows.
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
        -- The enqueuer would take them for discarded, and cancel the jobs that wait for them.
        EXECUTE format('SELECT true FROM %1$s.job_edges AS edge WHERE edge.state = ''waiting'' '
            'AND edge.awaited_id IS NOT NULL AND edge.awaited_id <= (SELECT max(id) FROM ONLY %2$s) '
            'AND (SELECT true FROM ONLY %2$s AS job WHERE job.id = edge.awaited_id) ORDER BY edge.awaited_id LIMIT 1',
            (SELECT relnamespace::regnamespace FROM pg_class WHERE oid = partition), partition) INTO is_awaited;
        IF is_awaited THEN
            RAISE EXCEPTION USING ERRCODE = 'lock_not_available', MESSAGE = format('jobs still wait for jobs of %s', partition),
                HINT = 'The enqueuer has yet to see that these have finished.';
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

-- Runs with the owner's rights, since the leader owns no table (`drain run --keep-days`). The caller chooses only the
-- days to keep; today and yesterday are always kept.
CREATE OR REPLACE FUNCTION drain_drop_old_day(keep integer, OUT day date, OUT jobs bigint) LANGUAGE sql
    SECURITY DEFINER SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT dropped.day, dropped.jobs FROM drain_drop_old_day_of('finished_jobs', 'drain_state', keep) AS dropped;
END;

-- Delivery numbers: the last one assigned, and the watermark of those pushed. Every batch sets both, and while a
-- session holds a snapshot, a row slows with each version (measured: 0.05 ms at first, 0.28 ms after 30,000); a
-- sequence has no versions. A rolled back batch leaves a harmless gap.
CREATE SEQUENCE IF NOT EXISTS drain_last_delivery MINVALUE 0 START 0;
CREATE SEQUENCE IF NOT EXISTS drain_pushed_up_to MINVALUE 0 START 0;


-- Wakes a sleeping enqueuer, and costs applications nothing while it is awake.
--
-- The enqueuer sleeps only while it holds advisory lock (1785684580, 2) exclusively. Each staging transaction tries a
-- share, held until it ends; if refused, it notifies. So the enqueuer cannot fall asleep during a transaction that did
-- not notify, and NOTIFY, whose lock serializes commits, is used only when needed. Applications never wait, since both
-- sides only try the lock.
--
-- SET drain.notify = 'off', for a database, role or session, leaves new rows to polling. PREPARE TRANSACTION needs it,
-- since it does not permit NOTIFY.
--
-- Qualified names, since a search_path would cost time at each statement.
CREATE OR REPLACE FUNCTION drain_wake_enqueuer() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NOT pg_catalog.pg_try_advisory_xact_lock_shared(1785684580, 2) THEN
        PERFORM pg_catalog.pg_notify('staged_jobs', '');
    END IF;
    RETURN NULL;
END
$$;

CREATE OR REPLACE TRIGGER staged_jobs_wake_enqueuer AFTER INSERT ON staged_jobs
    FOR EACH STATEMENT
    WHEN (current_setting('drain.notify', true) IS DISTINCT FROM 'off')
    EXECUTE FUNCTION drain_wake_enqueuer();
CREATE OR REPLACE TRIGGER job_waits_wake_enqueuer AFTER INSERT ON job_waits
    FOR EACH STATEMENT
    WHEN (current_setting('drain.notify', true) IS DISTINCT FROM 'off')
    EXECUTE FUNCTION drain_wake_enqueuer();
CREATE OR REPLACE TRIGGER job_events_wake_enqueuer AFTER INSERT ON job_events
    FOR EACH STATEMENT
    WHEN (current_setting('drain.notify', true) IS DISTINCT FROM 'off')
    EXECUTE FUNCTION drain_wake_enqueuer();


-- `drain roles` prints the grants. A trigger needs none.
REVOKE ALL ON FUNCTION
    drain_truncate_if_empty(regclass), drain_finish(bigint, bigint), drain_make_days(integer),
    drain_finish(bigint, bigint, bigint, text, jsonb),
    drain_make_days_of(regclass, integer), drain_checksum_of(regclass), drain_checksum_of_late(date),
    drain_drop_day(regclass, bigint, numeric), drain_wake_enqueuer(),
    drain_drop_old_day(integer), drain_drop_old_day_of(regclass, regclass, integer),
    drain_stage_once(text, double precision, jsonb), drain_finish_with_result(bigint, bigint, jsonb),
    drain_job_state(bigint), drain_stage(text, jsonb, jsonb), drain_stage_of(regclass, text, jsonb, jsonb), drain_role(),
    drain_digest(bytea, text, jsonb, jsonb),
    drain_record_step(bigint, bigint, bigint, text, text, json, double precision),
    drain_record_undoable_step(bigint, bigint, bigint, text, text, json, double precision, jsonb),
    drain_record_undo(bigint, bigint, bigint, text, text, json, double precision, bigint, text),
    drain_after(bigint[], bigint[], text[]), drain_flow(jsonb), drain_join(bigint, bigint[], text[]),
    drain_callback(bigint, bigint, text), drain_flow_progress(bigint), drain_node(bigint, text), drain_emit(text, jsonb)
    FROM PUBLIC;


-- Schema version. Older programs refuse to run.
CREATE TABLE IF NOT EXISTS drain_schema (
    version    integer     PRIMARY KEY,
    applied_at timestamptz NOT NULL DEFAULT now()
);
INSERT INTO drain_schema (version) VALUES (9) ON CONFLICT DO NOTHING;
