"""A server on which roles differ, and what a role without any right puts in the way of the others.

The hostile role may connect, make temporary objects and, as everybody up to PostgreSQL 14, create in `public`. What it
makes there fits the types better than PostgreSQL's own functions and operators do, wherever a call does not fit them
exactly.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg

from drain.database import postgres, roles, schema
from drain.database.grants import DEFAULT_NAMES
from drain.embedded import EmbeddedPostgres
from tests.databases import new_template
from tests.helpers import ROOT, query

OWNER = "drain_owner"
MALLORY = "test_mallory"
NAMES = {**DEFAULT_NAMES, "owner": OWNER}

_LOGIN = """
DO $$ BEGIN
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = '{login}') THEN CREATE ROLE {login} LOGIN; END IF;
END $$
"""
# What is hostile counts its runs in a sequence, which no rollback takes back. In a transaction that may not write it
# fails, which is seen as well.
_EVIL = f"""
CREATE SEQUENCE public.runs MINVALUE 0 START 0;
GRANT ALL ON SEQUENCE public.runs TO PUBLIC;
CREATE FUNCTION public.evil() RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    IF current_user <> '{MALLORY}' THEN
        PERFORM pg_catalog.nextval('public.runs'::pg_catalog.regclass);
        RAISE EXCEPTION 'a hostile function has been run';
    END IF;
    RETURN true;
END $$;
"""
_ARGUMENTS = """
CREATE FUNCTION public.variants(given regtype) RETURNS SETOF regtype LANGUAGE sql AS $$
    SELECT given UNION SELECT unnest(family) FROM (VALUES
        (ARRAY['int2', 'int4', 'int8', 'numeric', 'float8']::regtype[]),
        (ARRAY['text', 'varchar', 'name', 'regclass']::regtype[]),
        (ARRAY['date', 'timestamp', 'timestamptz']::regtype[]),
        (ARRAY['int8', 'timestamptz', 'text', 'jsonb', 'regclass', 'date', 'anyelement']::regtype[]),
        (ARRAY['int8[]', 'text[]', 'anyarray']::regtype[]),
        (ARRAY['int8', 'text', 'jsonb', 'anynonarray']::regtype[])) AS families (family)
    WHERE given = ANY (family)
$$;
CREATE PROCEDURE public.define(name text, arguments regtype[], result regtype) LANGUAGE plpgsql AS $$
BEGIN
    EXECUTE format('CREATE FUNCTION public.%I(%s) RETURNS %s LANGUAGE plpgsql AS '
        '''BEGIN PERFORM public.evil(); RETURN NULL; END''', name, array_to_string(arguments, ', '), result);
EXCEPTION WHEN duplicate_function OR invalid_function_definition OR datatype_mismatch THEN
    NULL;
END $$;
"""
# Every function that we call, of one to three arguments, in all types that convert into those that PostgreSQL's own
# takes; those that take anything, in the types that we give them.
_FUNCTIONS = """
DO $$
DECLARE
    it record;
BEGIN
    FOR it IN
        SELECT DISTINCT proname::text AS name, arguments, CASE
            WHEN prorettype::regtype::text ~ '^(any|trigger|record|internal|void)' THEN 'text'::regtype
            ELSE prorettype::regtype END AS result
        FROM (SELECT oid, proname, prorettype, proargtypes::oid[] AS types, pronargs FROM pg_proc
            WHERE (pronamespace = 'pg_catalog'::regnamespace AND proname::text = ANY (NAMES)
                    OR proname::text ~ '^drain_')
                AND provariadic = 0 AND prokind IN ('f', 'a') AND pronargs BETWEEN 1 AND 3) AS own,
        LATERAL (
            SELECT ARRAY[a] AS arguments FROM public.variants(types[0]) AS a WHERE pronargs = 1
            UNION ALL SELECT ARRAY[a, b] FROM public.variants(types[0]) AS a, public.variants(types[1]) AS b
                WHERE pronargs = 2
            UNION ALL SELECT ARRAY[a, b, c] FROM public.variants(types[0]) AS a, public.variants(types[1]) AS b,
                public.variants(types[2]) AS c WHERE pronargs = 3) AS signatures
        WHERE arguments::text !~ 'any|internal|cstring'
            AND NOT EXISTS (SELECT FROM pg_proc AS same
                WHERE same.proname = own.proname AND same.proargtypes::oid[] = arguments::oid[])
        UNION ALL
        SELECT proname::text, ARRAY['text', a]::regtype[], prorettype FROM pg_proc, public.variants('anyelement') AS a
        WHERE provariadic <> 0 AND pronamespace = 'pg_catalog'::regnamespace AND proname::text = ANY (NAMES)
            AND a <> 'anyelement'::regtype
    LOOP
        CALL public.define(it.name, it.arguments, it.result);
    END LOOP;
END $$
"""
_OPERATORS = """
DO $$
DECLARE
    types constant regtype[] := ARRAY['int2', 'int4', 'int8', 'numeric', 'float4', 'float8', 'text', 'varchar', 'name',
        'date', 'timestamp', 'timestamptz', 'interval', 'bool', 'oid', 'regclass', 'jsonb'];
    it record;
BEGIN
    FOR it IN
        SELECT operator, a, b, row_number() OVER () AS number FROM
            unnest(ARRAY['=', '<>', '<', '>', '<=', '>=', '+', '-', '/', '%', '||', '~', '->', '->>']) AS operator,
            unnest(types) AS a, unnest(types) AS b
        WHERE NOT EXISTS (SELECT FROM pg_operator WHERE oprnamespace = 'pg_catalog'::regnamespace
            AND oprname = operator AND oprleft = a AND oprright = b)
    LOOP
        CALL public.define('evil_' || it.number, ARRAY[it.a, it.b], CASE
            WHEN it.operator ~ '[=<>~]' AND it.operator !~ '-' THEN 'bool'::regtype
            WHEN it.operator IN ('||', '->', '->>') THEN 'text' ELSE it.a END);
        EXECUTE format('CREATE OPERATOR public.%s (FUNCTION = public.%I, LEFTARG = %s, RIGHTARG = %s)',
            it.operator, 'evil_' || it.number, it.a, it.b);
    END LOOP;
END $$
"""


@dataclass(frozen=True)
class Place:
    """A database with our tables, owned by `OWNER`, and a role to log in as for each of ours, and the hostile one."""

    url: str

    def url_of(self, role: str) -> str:
        """The URL for one that has been granted this role of ours, and nothing else."""
        return self.url.replace("postgres@", f"test_{role}@", 1)

    @contextmanager
    def connected(self, role: str) -> Iterator[postgres.Connection]:
        with psycopg.connect(self.url_of(role), autocommit=True) as connection:
            yield connection

    def refuses(self, role: str, statement: str, *parameters: object) -> bool:
        """Whether the role has no right to do this; any other error is raised."""
        with self.connected(role) as connection, connection.transaction(force_rollback=True):
            try:
                connection.execute(statement.encode(), parameters or None)
            except psycopg.errors.InsufficientPrivilege:
                return True
        return False


def prepare(server: EmbeddedPostgres, name: str) -> Place:
    """Make a database that others are copies of."""
    place = Place(new_template(server, name))
    schema.install(place.url)
    with postgres.connect(place.url, "tests") as connection:
        installation = roles.installation_of(connection)
        roles.apply(connection, roles.statements(installation, DEFAULT_NAMES, OWNER))
    for role, group in NAMES.items():
        query(place.url, _LOGIN.format(login=f"test_{role}"))
        query(place.url, f"GRANT {group} TO test_{role}")
    query(place.url, _LOGIN.format(login=MALLORY))
    return place


def arm(place: Place) -> None:
    """Let the hostile role create in `public`, and count what it gets others to run."""
    query(place.url, "GRANT CREATE ON SCHEMA public TO PUBLIC")
    with place.connected("mallory") as mallory:
        mallory.execute(_EVIL.encode())


def overload(place: Place) -> None:
    """Let the hostile role overload in `public` whatever we call."""
    with place.connected("mallory") as mallory:
        # What is made here is not to be called here.
        mallory.execute("SET search_path = pg_catalog")
        mallory.execute(_ARGUMENTS.encode())
        mallory.execute(_FUNCTIONS.replace("NAMES", _literal(called())).encode())
        mallory.execute(_OPERATORS.encode())


def called() -> list[str]:
    """Every word in our sources that may be the name of a function."""
    sources = [ROOT / "schema.sql", *(path for name in ("drain", "workers") for path in _modules(name))]
    return sorted({word for path in sources for word in re.findall(r"\b([a-z_0-9]+)\(", path.read_text())})


def runs(place: Place) -> int:
    """How often something of the hostile role's has run as another role."""
    ((count,),) = query(
        place.url, "SELECT CASE WHEN is_called THEN last_value + 1 ELSE 0 END FROM public.runs"
    )
    return int(count)


def _modules(package: str) -> Sequence[Path]:
    return sorted((ROOT / package).rglob("*.py"))


def _literal(words: Sequence[str]) -> str:
    return f"ARRAY[{', '.join(map(repr, words))}]"
