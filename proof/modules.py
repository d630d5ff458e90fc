"""All modules of the model."""

from proof.cancelling import CANCELLING
from proof.cron import CRON
from proof.delivery.scenarios import DELIVERY
from proof.dispatch.scenarios import DISPATCH
from proof.failover import FAILOVER
from proof.flows.scenarios import FLOWS
from proof.groups import GROUPS
from proof.idempotency import IDEMPOTENCY
from proof.limits.scenarios import LIMITS
from proof.partitions import PARTITIONS
from proof.steps import STEPPING
from proof.uniqueness.scenarios import UNIQUENESS
from proof.waits import WAITING

MODULES = (
    *(DELIVERY, FAILOVER, PARTITIONS, GROUPS, CANCELLING, LIMITS, UNIQUENESS, IDEMPOTENCY, CRON),
    *(FLOWS, STEPPING, WAITING, DISPATCH),
)
