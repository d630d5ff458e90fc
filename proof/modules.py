"""All modules of the model."""

from proof.batches import BATCHING
from proof.delivery.scenarios import DELIVERY
from proof.dispatch.scenarios import DISPATCH
from proof.failover import FAILOVER
from proof.flows.scenarios import FLOWS
from proof.steps import STEPPING
from proof.waits import WAITING

MODULES = (DELIVERY, FAILOVER, FLOWS, BATCHING, STEPPING, WAITING, DISPATCH)
