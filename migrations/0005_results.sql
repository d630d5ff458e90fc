-- From version 4 to 5: results of jobs, the state of one job for applications, and staging from any language.
--
-- Programs of version 4 go on working afterwards: they name the columns that they read and write, and leave out the new
-- one. A worker of version 4 keeps no result.

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
LOCK TABLE finished_jobs IN ACCESS EXCLUSIVE MODE;
SET LOCAL statement_timeout TO DEFAULT;

ALTER TABLE finished_jobs ADD COLUMN result jsonb;

-- The texts are those of schema.sql.
-- As drain_finish, of a job whose result is kept. Two functions: a job without a result pays for none.
CREATE OR REPLACE FUNCTION drain_finish_with_result(job bigint, token bigint, kept jsonb) RETURNS boolean
    LANGUAGE plpgsql SET enable_seqscan = off AS $$
BEGIN
    WITH done AS (DELETE FROM inflight_jobs WHERE id = job AND fencing_token = token RETURNING *)
    INSERT INTO finished_jobs (id, job_name, job_args, job_kwargs, queue, priority, scheduled_at, tag, context,
        staged_at, moved_at, claimed_at, finished_at, finished_by, attempts, fencing_token, last_error, history, key,
        result)
    SELECT id, job_name, job_args, job_kwargs, queue, priority, scheduled_at, tag, context,
        staged_at, moved_at, claimed_at, pg_catalog.clock_timestamp(), claimed_by, attempts + batched::integer,
        fencing_token, last_error, history, key, kept
    FROM done;
    RETURN FOUND;
END
$$;

-- State of one job, for the applications that have staged it: no argument, no traceback and no context of it. No row: no
-- table has the job. States: waiting, scheduled, running, retrying, finished, superseded, dead, cancelled, expired.
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
            NULL::timestamptz AS finished_at, held.last_error, NULL::text AS explanation, NULL::jsonb AS result
        FROM inflight_jobs AS held WHERE held.id = drain_job_state.job
        UNION ALL
        SELECT done.id, done.job_name, done.queue,
            CASE WHEN done.superseded_by IS NULL THEN 'finished' ELSE 'superseded' END, done.attempts, done.staged_at,
            CASE WHEN done.superseded_by IS NULL OR done.attempts > 0 THEN done.claimed_at END, done.finished_at,
            done.last_error,
            CASE WHEN done.superseded_by IS NOT NULL
                THEN pg_catalog.concat('it gave way to job ', done.superseded_by) END, done.result
        FROM finished_jobs AS done WHERE done.id = drain_job_state.job
        UNION ALL
        SELECT waits.id, waits.job_name, waits.queue,
            CASE WHEN waits.scheduled_at > pg_catalog.clock_timestamp() THEN 'scheduled' ELSE 'waiting' END, 0,
            waits.staged_at, NULL, NULL, NULL, NULL, NULL
        FROM staged_jobs AS waits WHERE waits.id = drain_job_state.job
        UNION ALL
        SELECT dead.id, dead.job_name, dead.queue,
            CASE WHEN dead.reason IN ('cancelled'::text, 'expired'::text) THEN dead.reason ELSE 'dead' END, dead.attempts,
            dead.staged_at, NULL, dead.died_at, dead.last_error, dead.explanation, NULL
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
    FROM found;
END;

-- Stages a job, for programs in any language; version 1 of its contract (docs/howto/staging-from-sql.md). `args` is an array
-- of positional arguments, or an object of keyword arguments. The options have the names of those of `drain.stage`; times
-- are texts with a time zone, and lengths of time are seconds:
--
--     SELECT drain_stage('shop.jobs.send_receipt', '[42]', '{"queue": "mail", "run_in": 60}');
--
-- Runs with the rights of the caller, in its transaction.
CREATE OR REPLACE FUNCTION drain_stage_of(staged regclass, job_name text, args jsonb, options jsonb) RETURNS bigint
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    kinds constant jsonb := '{"version": "1", "queue": "a text", "priority": "a whole number", "run_at": "a time",
        "run_in": "a number of seconds", "expires_at": "a time", "tag": "a text", "max_attempts": "a whole number",
        "timeout_seconds": "a whole number", "context": "an object", "key": "a text or a whole number",
        "unique_key": "a text or a whole number", "keep": "a text", "quiet": "a number of seconds",
        "idempotency_key": "a text", "idempotency_period": "a number of seconds"}';
    examples constant jsonb := '{"version": "leave it out, or give 1", "a text": "give a JSON string",
        "a whole number": "give a JSON number from -2147483648 to 2147483647",
        "a time": "give a string with a time zone, such as \"2030-01-31T08:30:00Z\"",
        "a number of seconds": "give a JSON number above 0 and up to ten years, such as 60", "an object": "give a JSON object",
        "a text or a whole number": "give a JSON string or a whole JSON number"}';
    columns constant text := 'job_name, job_args, job_kwargs, queue, priority, scheduled_at, expires_at, tag, '
        'max_attempts, timeout_seconds, context, key, unique_key, keep, quiet_seconds';
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
            ELSE typ = 'string' AND value #>> '{}' ~ form END;
        IF fits AND kind = 'a time' THEN
            BEGIN
                PERFORM (value #>> '{}')::timestamptz;
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
        'keep', named -> 'keep', 'quiet_seconds', named -> 'quiet'));
    -- Not stripped of the nulls within them.
    new := new || jsonb_build_object('context', named -> 'context',
        CASE jsonb_typeof(called) WHEN 'array' THEN 'job_args' ELSE 'job_kwargs' END, called);
    IF named ->> 'idempotency_key' IS NOT NULL THEN
        EXECUTE format('SELECT %s.drain_stage_once($1, $2, $3)',
                (SELECT relnamespace::regnamespace FROM pg_class WHERE oid = staged))
            INTO job_id
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
        'coalesce(new.scheduled_at, now()) + make_interval(secs => coalesce(new.quiet_seconds, 0)), new.expires_at, '
        'new.tag, new.max_attempts, new.timeout_seconds, nullif(new.context, ''null''), new.key, new.unique_key, '
        'new.keep, new.quiet_seconds FROM jsonb_to_record($1) AS new (job_name text, job_args jsonb, job_kwargs jsonb, '
        'queue text, priority integer, scheduled_at timestamptz, expires_at timestamptz, tag text, '
        'max_attempts integer, timeout_seconds integer, context jsonb, key text, unique_key text, keep text, '
        'quiet_seconds double precision) RETURNING id', staged, columns) INTO job_id USING new;
    RETURN job_id;
END
$$;

CREATE OR REPLACE FUNCTION drain_stage(job_name text, args jsonb DEFAULT '[]', options jsonb DEFAULT '{}')
    RETURNS bigint LANGUAGE sql
    RETURN drain_stage_of('staged_jobs', job_name, args, options);

REVOKE ALL ON FUNCTION drain_finish_with_result(bigint, bigint, jsonb), drain_job_state(bigint),
    drain_stage(text, jsonb, jsonb), drain_stage_of(regclass, text, jsonb, jsonb) FROM PUBLIC;

-- Roles get the rights that the programs of version 5 need with their role: a role that may stage once may stage by SQL
-- and ask for the state of a job, one that may finish a job may finish it with its result, and inspection, which reads
-- all, may ask too.
DO $$
DECLARE
    it record;
BEGIN
    FOR it IN
        SELECT DISTINCT may.rights, job.grantee::pg_catalog.regrole AS role
        FROM (VALUES
            ('drain_stage_once', 'drain_stage(text, jsonb, jsonb), drain_stage_of(regclass, text, jsonb, jsonb), '
                'drain_job_state(bigint)'),
            ('drain_finish', 'drain_finish_with_result(bigint, bigint, jsonb)')
        ) AS may (function, rights)
            JOIN pg_catalog.pg_proc AS home ON home.proname = may.function::pg_catalog.name
                AND home.pronamespace = pg_catalog.current_schema()::pg_catalog.regnamespace::pg_catalog.oid,
        LATERAL pg_catalog.aclexplode(home.proacl) AS job
        WHERE job.privilege_type = 'EXECUTE'::pg_catalog.text
            AND job.grantee NOT IN (home.proowner, 0::pg_catalog.oid)
    LOOP
        EXECUTE pg_catalog.format('GRANT EXECUTE ON FUNCTION %s TO %s', it.rights, it.role);
    END LOOP;
    FOR it IN
        SELECT DISTINCT job.grantee::pg_catalog.regrole AS role
        FROM pg_catalog.pg_class AS home, LATERAL pg_catalog.aclexplode(home.relacl) AS job
        WHERE home.oid = 'stale_finishes'::pg_catalog.regclass::pg_catalog.oid
            AND job.privilege_type = 'SELECT'::pg_catalog.text AND job.grantee NOT IN (home.relowner, 0::pg_catalog.oid)
    LOOP
        EXECUTE pg_catalog.format('GRANT EXECUTE ON FUNCTION drain_job_state(bigint) TO %s', it.role);
    END LOOP;
END
$$;

INSERT INTO drain_schema (version) VALUES (5);
