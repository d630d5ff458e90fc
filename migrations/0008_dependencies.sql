-- From version 7 to 8: jobs that wait for others. Programs of version 7 go on working; a leader of version 7 lets blocked
-- jobs wait until a newer one takes over.

SET LOCAL statement_timeout = '900ms';
LOCK TABLE staged_jobs, dead_jobs IN ACCESS EXCLUSIVE MODE;
SET LOCAL statement_timeout TO DEFAULT;

ALTER TABLE staged_jobs
    ADD COLUMN starts_at timestamptz,
    ADD CONSTRAINT starts_at_must_lie_between_the_years_1_and_9999
        CHECK (starts_at > '0001-01-02 00:00:00+00' AND starts_at < '9999-12-29 00:00:00+00') NOT VALID;
-- In two steps, or the table would be rewritten.
ALTER TABLE dead_jobs ADD COLUMN died_xid xid8;
ALTER TABLE dead_jobs ALTER COLUMN died_xid SET DEFAULT pg_current_xact_id();

-- job_edges: which jobs a job waits for. A child is blocked while any of its edges waits. Its transaction inserts them, and
-- the enqueuer changes them. Only a retry of a dead child makes them wait again, and a discard of a parent marks them as
-- changed. The enqueuer deletes those of children that no table has any more.
CREATE TABLE job_edges (
    child_id    bigint NOT NULL,
    parent_id   bigint NOT NULL,
    -- Whose end counts: the parent, or the job that superseded it.
    awaited_id  bigint NOT NULL,
    -- If the parent dies: cancel the child, run it, or hold it until the parent is retried.
    on_failure  text   NOT NULL DEFAULT 'cancel',
    -- 'waiting', 'met', or 'idle': the child was cancelled.
    state       text   NOT NULL DEFAULT 'waiting',
    -- Latest change, for the enqueuer, as finished_xid.
    changed_xid xid8   NOT NULL DEFAULT pg_current_xact_id(),
    PRIMARY KEY (child_id, parent_id),
    -- So no jobs can wait for each other.
    CONSTRAINT a_job_waits_for_earlier_jobs CHECK (parent_id > 0 AND parent_id < child_id),
    CONSTRAINT on_failure_must_be_cancel_run_or_hold CHECK (on_failure IN ('cancel', 'run', 'hold')),
    CONSTRAINT state_must_be_waiting_met_or_idle CHECK (state IN ('waiting', 'met', 'idle'))
);
-- For ended jobs, for a job's last predecessor of many, and for new edges. The second conditions hold for every row, but
-- keep each kind of query off the other indexes: they look alike while the table is believed empty.
CREATE INDEX job_edges_awaited ON job_edges (awaited_id, child_id, parent_id)
    WHERE state = 'waiting' AND awaited_id IS NOT NULL;
CREATE INDEX job_edges_waiting ON job_edges (child_id, parent_id) WHERE state = 'waiting' AND child_id > 0;
CREATE INDEX job_edges_changed ON job_edges (changed_xid) WHERE state = 'waiting' AND changed_xid IS NOT NULL;

-- Lets jobs wait for others: children[i] for parents[i]. The children must be blocked jobs that this role has staged in
-- this transaction. drain_stage() calls it for the option "after".
--
-- Runs with the owner's rights, since applications may not read others' jobs. Scalar subqueries, IS TRUE and the generic
-- plan leave only primary keys to look in: blocked jobs share one scheduled_at, and a table may be believed empty.
DO $do$ BEGIN EXECUTE pg_catalog.format($text$
CREATE OR REPLACE FUNCTION drain_after(children bigint[], parents bigint[], on_failure text[]) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    SET plan_cache_mode = force_generic_plan SET enable_seqscan = off
AS $$
DECLARE
    unfit bigint;
BEGIN
    SELECT given.id INTO unfit FROM unnest(children) AS given (id)
    WHERE (
        SELECT true FROM %1$s.staged_jobs_scheduled AS job WHERE job.id = given.id
            AND (job.scheduled_at = '9999-12-29 00:00:00+00' AND job.staged_at = now()
                AND job.staged_by = %1$s.drain_role()) IS TRUE) IS NULL
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
    INSERT INTO %1$s.job_edges (child_id, parent_id, awaited_id, on_failure)
    SELECT given.child, given.parent, given.parent, coalesce(given.choice, 'cancel')
    FROM unnest(children, parents, on_failure) AS given (child, parent, choice)
    ON CONFLICT DO NOTHING;
END
$$
$text$, (SELECT relnamespace::pg_catalog.regnamespace FROM pg_catalog.pg_class
    WHERE oid = 'staged_jobs'::pg_catalog.regclass::pg_catalog.oid)); END $do$;

-- A job's state, for the role that staged it, its members, and roles that may read finished_jobs: no arguments,
-- traceback or context. No row: unknown, or another role's. States: blocked, waiting, scheduled, running, retrying,
-- finished, superseded, dead, cancelled, expired. Runs with the owner's rights, since applications may not read others' jobs.
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


-- Stages a job, unless the same role has one under this key, which expires after `keep_seconds`. Returns the id of the
-- job under the key, negated if its name or arguments differ. `job` holds columns that applications may write, and in
-- `after` the [id, on_failure] of jobs to wait for:
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
            quiet_seconds double precision, after jsonb)
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
        CASE WHEN given.after <> '[]'::jsonb THEN '9999-12-29 00:00:00+00'::timestamptz ELSE due.at END,
        given.expires_at, given.tag, given.max_attempts, given.timeout_seconds, given.context, given.key,
        given.unique_key, given.keep, given.quiet_seconds, CASE WHEN given.after <> '[]'::jsonb THEN due.at END
    FROM reserved, given, LATERAL (
        SELECT coalesce(given.scheduled_at, pg_catalog.now())
            + pg_catalog.make_interval(secs => coalesce(given.quiet_seconds, '0'))) AS due (at);

    -- Of a job staged before, the edges stay as they are.
    SELECT drain_after(pg_catalog.array_agg(job.id), pg_catalog.array_agg((edge.pair ->> 0)::bigint),
        pg_catalog.array_agg(edge.pair ->> 1))
    FROM idempotency_keys AS kept JOIN staged_jobs_scheduled AS job ON job.id = kept.job_id,
        pg_catalog.jsonb_array_elements(drain_stage_once.job -> 'after'::text) AS edge (pair)
    WHERE kept.idempotency_key = pg_catalog.concat(pg_catalog.quote_ident(drain_role()), ' ', drain_stage_once.key)
        AND (job.scheduled_at = '9999-12-29 00:00:00+00'::timestamptz AND job.staged_at = pg_catalog.now()) IS TRUE
        AND NOT EXISTS (SELECT FROM job_edges AS known WHERE known.child_id = job.id);

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
        "after": "a list of jobs", "on_failure": "a choice"}';
    examples constant jsonb := '{"version": "leave it out, or give 1", "a text": "give a JSON string",
        "a whole number": "give a JSON number from -2147483648 to 2147483647",
        "a time": "give a string with a time zone, such as \"2030-01-31T08:30:00Z\"",
        "a number of seconds": "give a JSON number above 0 and up to ten years, such as 60", "an object": "give a JSON object",
        "a text or a whole number": "give a JSON string or a whole JSON number",
        "a list of jobs": "give an array of ids, such as [41, 42], or of pairs, such as [[41, \"run\"]]",
        "a choice": "give \"cancel\", \"run\" or \"hold\""}';
    columns constant text := 'job_name, job_args, job_kwargs, queue, priority, scheduled_at, expires_at, tag, '
        'max_attempts, timeout_seconds, context, key, unique_key, keep, quiet_seconds, starts_at';
    choices constant jsonb := '["cancel", "run", "hold"]';
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
        'keep', named -> 'keep', 'quiet_seconds', named -> 'quiet', 'after', after));
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
        INTO job_id USING new, CASE WHEN after IS NOT NULL THEN blocked END;
    IF after IS NOT NULL THEN
        EXECUTE format('SELECT %s.drain_after(array_agg($1), array_agg((pair ->> 0)::bigint), array_agg(pair ->> 1)) '
            'FROM jsonb_array_elements($2) AS edge (pair)', home) USING job_id, after;
    END IF;
    RETURN job_id;
END
$$;

REVOKE ALL ON FUNCTION drain_after(bigint[], bigint[], text[]) FROM PUBLIC;

-- Roles get the rights that the programs of version 8 need with their role.
DO $$
DECLARE
    it record;
BEGIN
    FOR it IN
        SELECT DISTINCT may.rights, job.grantee::pg_catalog.regrole AS role
        FROM (VALUES
            -- The enqueuer.
            ('staged_jobs_ready', 'DELETE', 'SELECT, DELETE, UPDATE (on_failure, state, awaited_id, changed_xid) ON job_edges'),
            ('staged_jobs_ready', 'DELETE', 'SELECT (died_xid) ON dead_jobs'),
            ('staged_jobs_ready', 'DELETE', 'INSERT (staged_by) ON staged_jobs'),
            ('staged_jobs_ready', 'DELETE', 'SELECT (finished_xid) ON finished_jobs'),
            -- Workers.
            ('stale_finishes', 'INSERT', 'SELECT (child_id, parent_id, awaited_id, state) ON job_edges'),
            ('stale_finishes', 'INSERT', 'SELECT (result) ON finished_jobs'),
            -- Inspection.
            ('stale_finishes', 'SELECT', 'SELECT ON job_edges')
        ) AS may (relation, privilege, rights)
            JOIN pg_catalog.pg_class AS home ON home.oid = may.relation::pg_catalog.regclass::pg_catalog.oid,
        LATERAL pg_catalog.aclexplode(home.relacl) AS job
        WHERE job.privilege_type = may.privilege AND job.grantee NOT IN (home.relowner, 0::pg_catalog.oid)
        UNION
        SELECT may.rights, job.grantee::pg_catalog.regrole
        FROM (VALUES
            -- Applications.
            ('quiet_seconds', 'INSERT', 'INSERT (starts_at) ON staged_jobs'),
            ('quiet_seconds', 'INSERT', 'EXECUTE ON FUNCTION drain_after(bigint[], bigint[], text[])'),
            -- Operators.
            ('scheduled_at', 'UPDATE', 'UPDATE (starts_at) ON staged_jobs')
        ) AS may (name, privilege, rights)
            JOIN pg_catalog.pg_attribute AS part
                ON part.attrelid = 'staged_jobs'::pg_catalog.regclass::pg_catalog.oid AND part.attname = may.name
            JOIN pg_catalog.pg_class AS home ON home.oid = part.attrelid,
        LATERAL pg_catalog.aclexplode(part.attacl) AS job
        WHERE job.privilege_type = may.privilege AND job.grantee NOT IN (home.relowner, 0::pg_catalog.oid)
    LOOP
        EXECUTE pg_catalog.format('GRANT %s TO %s', it.rights, it.role);
    END LOOP;
END
$$;

INSERT INTO drain_schema (version) VALUES (8);

-- After the commit:
CREATE INDEX IF NOT EXISTS dead_jobs_in_order ON dead_jobs (died_xid);
ALTER TABLE staged_jobs VALIDATE CONSTRAINT starts_at_must_lie_between_the_years_1_and_9999;
