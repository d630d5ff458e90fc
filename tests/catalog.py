"""What PostgreSQL's catalogs say of a database: two that were made in different ways are compared by it."""

import re
from collections.abc import Mapping, Set
from typing import Any

import psycopg

# Of everything in the schema `public`: a name, and all that is known of it.
_ASKS = {
    # A column that was dropped leaves a gap in attnum, and none in the order.
    "columns": """
        SELECT attrelid::regclass::text || ' ' || row_number() OVER (PARTITION BY attrelid ORDER BY attnum),
            attname, format_type(atttypid, atttypmod), attnotnull, attidentity, attgenerated, attstorage,
            attcompression, attcollation::regcollation, pg_get_expr(adbin, adrelid), attislocal, attinhcount,
            attacl::text, col_description(attrelid, attnum)
        FROM pg_attribute LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum
        WHERE attnum > 0 AND NOT attisdropped
            AND attrelid IN (
                SELECT oid FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'p'))
    """,
    "relations": """
        SELECT oid::regclass, relkind, relpersistence, relispartition, relrowsecurity, relforcerowsecurity,
            relreplident, reloptions::text, pg_get_userbyid(relowner), pg_get_partkeydef(oid),
            pg_get_expr(relpartbound, oid), obj_description(oid, 'pg_class'),
            (SELECT string_agg(inhparent::regclass::text, ' ') FROM pg_inherits WHERE inhrelid = pg_class.oid)
        FROM pg_class WHERE relnamespace = 'public'::regnamespace
    """,
    "constraints": """
        SELECT conrelid::regclass || ' ' || conname, contype, convalidated, condeferrable, condeferred, conislocal,
            coninhcount, connoinherit, pg_get_constraintdef(oid), obj_description(oid, 'pg_constraint')
        FROM pg_constraint WHERE connamespace = 'public'::regnamespace
    """,
    "indexes": """
        SELECT indexrelid::regclass, indrelid::regclass, indisprimary, indisunique, indisvalid,
            pg_get_indexdef(indexrelid)
        FROM pg_index JOIN pg_class ON pg_class.oid = indexrelid WHERE relnamespace = 'public'::regnamespace
    """,
    "functions": """
        SELECT pg_proc.oid::regprocedure, pg_get_userbyid(proowner), lanname, prosecdef, proleakproof, provolatile,
            proparallel, proisstrict, procost, prorows, proconfig::text,
            pg_get_functiondef(pg_proc.oid), obj_description(pg_proc.oid, 'pg_proc')
        FROM pg_proc JOIN pg_language ON pg_language.oid = prolang WHERE pronamespace = 'public'::regnamespace
    """,
    "triggers": """
        SELECT tgrelid::regclass || ' ' || tgname, tgenabled, pg_get_triggerdef(oid), obj_description(oid, 'pg_trigger')
        FROM pg_trigger WHERE NOT tgisinternal
    """,
    "sequences": """
        SELECT seqrelid::regclass, format_type(seqtypid, NULL), seqstart, seqincrement, seqmin, seqmax, seqcache,
            seqcycle
        FROM pg_sequence
    """,
    "rights": """
        SELECT thing, pg_get_userbyid(grantor), CASE grantee WHEN 0 THEN 'PUBLIC' ELSE pg_get_userbyid(grantee) END,
            privilege_type, is_grantable
        FROM (
            SELECT oid::regclass::text, coalesce(relacl, acldefault(
                CASE relkind WHEN 'S' THEN 's' ELSE 'r' END::"char", relowner))
            FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'p', 'v', 'S')
            UNION ALL SELECT oid::regprocedure::text, coalesce(proacl, acldefault('f', proowner))
            FROM pg_proc WHERE pronamespace = 'public'::regnamespace
        ) AS granted (thing, acl), aclexplode(acl)
    """,
    "types": """
        SELECT oid::regtype, typtype, format_type(typbasetype, typtypmod), typdefault
        FROM pg_type WHERE typnamespace = 'public'::regnamespace AND typtype <> 'b' AND typrelid = 0
    """,
    "policies": "SELECT polrelid::regclass || ' ' || polname, pg_get_expr(polqual, polrelid) FROM pg_policy",
    "rules": "SELECT ev_class::regclass || ' ' || rulename, pg_get_ruledef(oid) FROM pg_rewrite WHERE oid > 16383",
    "statistics": "SELECT stxname, pg_get_statisticsobjdef(oid) FROM pg_statistic_ext",
    "settings": "SELECT setrole::regrole, setconfig::text FROM pg_db_role_setting JOIN pg_database ON setdatabase = "
    "pg_database.oid WHERE datname = current_database()",
    # Only the rows that a new installation begins with.
    "rows": "SELECT 'drain_state', only_row, leader FROM drain_state",
}


def catalog(database_url: str) -> dict[str, Set[str]]:
    """Lines about each kind of thing; partitions of days are all the same day."""
    with psycopg.connect(database_url) as connection:
        return seen_by(connection)


def seen_by(connection: psycopg.Connection[Any]) -> dict[str, Set[str]]:
    """The same within the transaction that a connection has open."""
    return {
        kind: {_without_days(" | ".join(map(str, row))) for row in connection.execute(statement.encode())}
        for kind, statement in _ASKS.items()
    }


def differences(one: Mapping[str, Set[str]], other: Mapping[str, Set[str]]) -> list[str]:
    """Lines that only one of two catalogs has, each with its kind and with a sign that says which."""
    return sorted(
        f"{kind} {sign} {line}"
        for kind in one
        for sign, lines in (("-", one[kind] - other[kind]), ("+", other[kind] - one[kind]))
        for line in lines
    )


def _without_days(line: str) -> str:
    line = re.sub(r"\bfinished_jobs_\d{8}", "finished_jobs_DAY", line)
    return re.sub(r"'\d{4}-\d\d-\d\d 00:00:00\+00'", "'DAY'", line)
