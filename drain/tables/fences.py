"""The fence of a claim: a row is changed only by the claim that it shows, in whatever history of the database.

Ids and tokens are small counters. After a failover that lost transactions, or in a restored copy, both are given out
again: to another row, which has another salt, or to another claim of the same row, which is another process'. A process
never claims a job that it still has, so no two claims that can meet have the same fence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from operator import itemgetter
from typing import Any, NamedTuple, Protocol

from drain.tables.columns import id_array, these_rows


class Fenced(Protocol):
    """A claim, or its fence."""

    @property
    def id(self) -> int:
        """Id of the job."""

    @property
    def fencing_token(self) -> int:
        """Token of the claim."""

    @property
    def salt(self) -> int | None:
        """Random value that the row was staged with; None for rows from before version 2 of the schema."""

    @property
    def worker(self) -> str:
        """Name of the process that claimed; the row has it as `claimed_by`."""


class Fence(NamedTuple):
    """The fence of a claim, without the rest of it."""

    id: int
    fencing_token: int
    salt: int | None
    worker: str


# Conditions for the row of one claim, and for those of the claims of one process; `drain_finish` has the first one too.
# A claim that was undone keeps its fence; its row shows it by `claimed_at`.
THIS_CLAIM = """id = %(id)s AND fencing_token = %(token)s
    AND salt IS NOT DISTINCT FROM %(salt)s::bigint AND claimed_by = %(worker)s"""
# Salts are not negative.
THESE_CLAIMS = (
    f"{these_rows(tokens='fencing_token', salts='coalesce(salt, -1)')} AND claimed_by = %(worker)s::text"
)
# The same in `finished_jobs`, which has no salt: the asking process still has the job, so it claims no other of its id.
FINISHED_BY_THIS_CLAIM = "id = %(id)s AND fencing_token = %(token)s AND finished_by = %(worker)s"
FINISHED_BY_THESE_CLAIMS = f"{these_rows(tokens='fencing_token')} AND finished_by = %(worker)s::text"


def of_one(claim: Fenced) -> dict[str, Any]:
    """Return the parameters of the conditions for one claim."""
    return {"id": claim.id, "token": claim.fencing_token, "salt": claim.salt, "worker": claim.worker}


def of_many(claims: Iterable[Fenced]) -> dict[str, str]:
    """Return the parameters of the conditions for many claims of one process.

    Raises:
        ValueError: The claims are of several processes.
    """
    # In the order of the ids everywhere, so that two statements which lock the same rows do not wait for each other.
    ids, tokens, salts = [], [], []
    workers = set()
    for claim in sorted(claims, key=_id_of):
        ids.append(claim.id)
        tokens.append(claim.fencing_token)
        salts.append(-1 if claim.salt is None else claim.salt)
        workers.add(claim.worker)
    if len(workers) > 1:
        raise ValueError(f"claims of one process were expected, not of {', '.join(sorted(workers))}")
    return {
        "ids": id_array(ids),
        "tokens": id_array(tokens),
        "salts": id_array(salts),
        "worker": "".join(workers),
    }


_id_of: Callable[[Any], int] = itemgetter(0)
