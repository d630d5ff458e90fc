-- From version 8 to 9: batches and flows, waits and events. Programs of version 8 keep working.

SET LOCAL statement_timeout = '900ms';
LOCK TABLE job_edges IN ACCESS EXCLUSIVE MODE;
SET LOCAL statement_timeout TO DEFAULT;

-- Batches and flows.

ALTER TABLE job_edges
    ADD COLUMN node text,
    DROP CONSTRAINT a_job_waits_for_earlier_jobs,
    ADD CONSTRAINT a_job_waits_for_other_jobs CHECK (parent_id > 0 AND parent_id <> child_id) NOT VALID,
    DROP CONSTRAINT on_failure_must_be_cancel_run_or_hold,
    ADD CONSTRAINT on_failure_must_be_cancel_run_hold_or_only
        CHECK (on_failure IN ('cancel', 'run', 'hold', 'only')) NOT VALID,
    ADD CONSTRAINT node_must_have_1_to_255_characters CHECK (char_length(node) BETWEEN 1 AND 255) NOT VALID;

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
CREATE TABLE flows (
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

-- Waits and events.

-- job_waits: jobs that wait for an event, or sleep; one wait per job. The worker inserts the row when it gives up the
-- job's lease. Only the enqueuer ends the wait: it records the outcome as a step, {"event": payload} or
-- {"timeout": true}, deletes the row, and makes the job due. Until then, next_run_at is 9999-12-29 00:00 UTC.
CREATE TABLE job_waits (
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
CREATE INDEX job_waits_event ON job_waits (event) WHERE event IS NOT NULL;
CREATE INDEX job_waits_deadline ON job_waits (deadline) WHERE deadline IS NOT NULL;
CREATE INDEX job_waits_new ON job_waits (wait_xid);

-- job_events: events that jobs wait for. The enqueuer deletes old ones.
CREATE TABLE job_events (
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
CREATE INDEX job_events_by_name ON job_events (name, id);
CREATE INDEX job_events_new ON job_events (emitted_xid);
CREATE INDEX job_events_old ON job_events (emitted_at);

-- Emits an event for jobs that wait for it now or later, once the transaction commits; returns its id. The first event
-- ends a wait. Runs with the owner's rights, since applications may not read others' events.
CREATE FUNCTION drain_emit(event text, payload jsonb DEFAULT 'null') RETURNS bigint LANGUAGE sql
    SECURITY DEFINER SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    INSERT INTO job_events (name, payload, emitted_by)
    VALUES (drain_emit.event, coalesce(drain_emit.payload, 'null'::jsonb), drain_role())
    RETURNING id;
END;

CREATE TRIGGER job_waits_wake_enqueuer AFTER INSERT ON job_waits
    FOR EACH STATEMENT
    WHEN (current_setting('drain.notify', true) IS DISTINCT FROM 'off')
    EXECUTE FUNCTION drain_wake_enqueuer();
CREATE TRIGGER job_events_wake_enqueuer AFTER INSERT ON job_events
    FOR EACH STATEMENT
    WHEN (current_setting('drain.notify', true) IS DISTINCT FROM 'off')
    EXECUTE FUNCTION drain_wake_enqueuer();

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

ALTER TABLE bulk_runs ADD COLUMN flow bigint;

-- Sagas.
ALTER TABLE job_steps ADD COLUMN undo jsonb, ADD COLUMN undone_by bigint;

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

-- Retention.

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

-- Rights.
REVOKE ALL ON FUNCTION
    drain_flow(jsonb), drain_join(bigint, bigint[], text[]), drain_callback(bigint, bigint, text),
    drain_flow_progress(bigint), drain_node(bigint, text), drain_emit(text, jsonb),
    drain_record_undoable_step(bigint, bigint, bigint, text, text, json, double precision, jsonb),
    drain_record_undo(bigint, bigint, bigint, text, text, json, double precision, bigint, text)
    FROM PUBLIC;

-- Roles get the rights that the programs of version 9 need with their role.
DO $$
DECLARE
    it record;
BEGIN
    FOR it IN
        SELECT DISTINCT may.rights, job.grantee::pg_catalog.regrole AS role
        FROM (VALUES
            -- The enqueuer.
            ('staged_jobs_ready', 'DELETE', 'DELETE, SELECT (id, name, staged_at, undone_by) ON flows'),
            ('staged_jobs_ready', 'DELETE',
                'INSERT (job_id, name, result, seconds, fencing_token), SELECT (job_id, name, undone_by) ON job_steps'),
            ('staged_jobs_ready', 'DELETE', 'SELECT, DELETE ON job_waits, job_events'),
            -- Workers.
            ('stale_finishes', 'INSERT', 'SELECT (recorded_at, undo, undone_by) ON job_steps'),
            ('stale_finishes', 'INSERT', 'EXECUTE ON FUNCTION '
                'drain_record_undoable_step(bigint, bigint, bigint, text, text, json, double precision, jsonb)'),
            ('stale_finishes', 'INSERT', 'EXECUTE ON FUNCTION '
                'drain_record_undo(bigint, bigint, bigint, text, text, json, double precision, bigint, text)'),
            ('stale_finishes', 'INSERT', 'SELECT, INSERT (job_id, name, event, deadline, staged_by, fencing_token), '
                'UPDATE (name, event, deadline, staged_by, fencing_token, began_at, wait_xid) ON job_waits'),
            -- Inspection.
            ('stale_finishes', 'SELECT', 'SELECT ON flows, job_waits, job_events'),
            ('stale_finishes', 'SELECT', 'EXECUTE ON FUNCTION drain_flow_progress(bigint)')
        ) AS may (relation, privilege, rights)
            JOIN pg_catalog.pg_class AS home ON home.oid = may.relation::pg_catalog.regclass::pg_catalog.oid,
        LATERAL pg_catalog.aclexplode(home.relacl) AS job
        WHERE job.privilege_type = may.privilege AND job.grantee NOT IN (home.relowner, 0::pg_catalog.oid)
        UNION
        SELECT may.rights, job.grantee::pg_catalog.regrole
        FROM (VALUES
            -- Applications.
            ('EXECUTE ON FUNCTION drain_flow(jsonb)'),
            ('EXECUTE ON FUNCTION drain_join(bigint, bigint[], text[])'),
            ('EXECUTE ON FUNCTION drain_callback(bigint, bigint, text)'),
            ('EXECUTE ON FUNCTION drain_flow_progress(bigint)'),
            ('EXECUTE ON FUNCTION drain_node(bigint, text)'),
            ('EXECUTE ON FUNCTION drain_emit(text, jsonb)')
        ) AS may (rights)
            JOIN pg_catalog.pg_attribute AS part
                ON part.attrelid = 'staged_jobs'::pg_catalog.regclass::pg_catalog.oid AND part.attname = 'starts_at'
            JOIN pg_catalog.pg_class AS home ON home.oid = part.attrelid,
        LATERAL pg_catalog.aclexplode(part.attacl) AS job
        WHERE job.privilege_type = 'INSERT' AND job.grantee NOT IN (home.relowner, 0::pg_catalog.oid)
        UNION
        SELECT may.rights, job.grantee::pg_catalog.regrole
        FROM (VALUES
            -- Workers.
            ('SELECT (on_failure, node) ON job_edges'),
            ('SELECT (id, on_success, on_complete, on_dead, undone_by) ON flows')
        ) AS may (rights)
            JOIN pg_catalog.pg_attribute AS part
                ON part.attrelid = 'job_edges'::pg_catalog.regclass::pg_catalog.oid AND part.attname = 'awaited_id'
            JOIN pg_catalog.pg_class AS home ON home.oid = part.attrelid,
        LATERAL pg_catalog.aclexplode(part.attacl) AS job
        WHERE job.privilege_type = 'SELECT' AND job.grantee NOT IN (home.relowner, 0::pg_catalog.oid)
    LOOP
        EXECUTE pg_catalog.format('GRANT %s TO %s', it.rights, it.role);
    END LOOP;
END
$$;

INSERT INTO drain_schema (version) VALUES (9);

-- After the commit:
CREATE INDEX IF NOT EXISTS staged_jobs_marking_flows ON staged_jobs_scheduled (job_name, staged_at)
    WHERE job_name IN ('drain.jobs.markers.end_of_flow', 'drain.jobs.markers.pause_of_flow') AND staged_at > '-infinity';
CREATE UNIQUE INDEX IF NOT EXISTS job_steps_undone ON job_steps (job_id) WHERE undone_by IS NOT NULL;
CREATE INDEX IF NOT EXISTS job_steps_undoable ON job_steps (job_id, recorded_at) WHERE undo IS NOT NULL;
CREATE UNIQUE INDEX IF NOT EXISTS job_edges_nodes ON job_edges (child_id, node) WHERE node IS NOT NULL;
ALTER TABLE job_edges VALIDATE CONSTRAINT a_job_waits_for_other_jobs;
ALTER TABLE job_edges VALIDATE CONSTRAINT on_failure_must_be_cancel_run_hold_or_only;
ALTER TABLE job_edges VALIDATE CONSTRAINT node_must_have_1_to_255_characters;
