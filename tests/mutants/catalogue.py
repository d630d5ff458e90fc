"""All mutants, by area."""

from __future__ import annotations

from collections.abc import Mapping

from tests.mutants import (
    admission,
    claims,
    database,
    leader,
    reading,
    redelivery,
    sharing,
    unblocker,
    waits,
    wire,
    workers,
)
from tests.mutants.mutant import Mutant

AREAS: Mapping[str, tuple[Mutant, ...]] = {
    "leader": leader.MUTANTS,
    "unblocker": unblocker.MUTANTS,
    "waits": waits.MUTANTS,
    "redelivery": redelivery.MUTANTS,
    "admission": admission.MUTANTS,
    "claims": claims.MUTANTS,
    "workers": workers.MUTANTS,
    "sharing": sharing.MUTANTS,
    "wire": wire.MUTANTS,
    "database": database.MUTANTS,
    "reading": reading.MUTANTS,
}
