"""All modules of the model."""

from proof.batches import BATCHING
from proof.delivery.scenarios import DELIVERY
from proof.dispatch import DISPATCH
from proof.flows import FLOWS
from proof.steps import STEPPING
from proof.waits import WAITING

MODULES = (DELIVERY, FLOWS, BATCHING, STEPPING, WAITING, DISPATCH)
