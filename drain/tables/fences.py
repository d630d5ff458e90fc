"""Fence of a claim, unique across histories of the database.

After a lossy failover or in a restored copy, ids and tokens repeat, but with another salt or process. A process never
claims a job it holds.
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
        """Job id."""

    @property
    def fencing_token(self) -> int:
        """Token of the claim."""

    @property
    def salt(self) -> int | None:
        """Random value from staging; None before schema version 2."""

    @property
    def worker(self) -> str:
        """Claiming process, `claimed_by` in the row."""


class Fence(NamedTuple):
    """Fence without its claim."""

    id: int
    fencing_token: int
    salt: int | None
    worker: str


# As in `drain_finish`. Undone claims keep their fence; `claimed_at` shows them.
THIS_CLAIM = """id = %(id)s AND fencing_token = %(token)s
    AND salt IS NOT DISTINCT FROM %(salt)s::bigint AND claimed_by = %(worker)s"""
THESE_CLAIMS = (
    f"{these_rows(tokens='fencing_token', salts='coalesce(salt, -1)')} AND claimed_by = %(worker)s::text"
)
# `finished_jobs` has no salt; the process holds the job, so it claims no other with this id.
FINISHED_BY_THIS_CLAIM = "id = %(id)s AND fencing_token = %(token)s AND finished_by = %(worker)s"
FINISHED_BY_THESE_CLAIMS = f"{these_rows(tokens='fencing_token')} AND finished_by = %(worker)s::text"


def of_one(claim: Fenced) -> dict[str, Any]:
    """Return parameters for one claim."""
    return {"id": claim.id, "token": claim.fencing_token, "salt": claim.salt, "worker": claim.worker}


def of_many(claims: Iterable[Fenced]) -> dict[str, str]:
    """Return parameters for claims of one process, or raise a ValueError."""
    # In id order, to prevent deadlocks.
    ids, tokens, salts = [], [], []
    workers = set()
    for claim in sorted(claims, key=_id_of):
        ids.append(claim.id)
        tokens.append(claim.fencing_token)
        salts.append(-1 if claim.salt is None else claim.salt)
        workers.add(claim.worker)
    if len(workers) > 1:
        raise ValueError(f"expected claims of one process, not of {', '.join(sorted(workers))}")
    return {
        "ids": id_array(ids),
        "tokens": id_array(tokens),
        "salts": id_array(salts),
        "worker": "".join(workers),
    }


_id_of: Callable[[Any], int] = itemgetter(0)
