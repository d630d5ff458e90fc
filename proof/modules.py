"""All modules of the model."""

from proof.delivery.scenarios import DELIVERY
from proof.flows import FLOWS
from proof.steps import STEPPING

MODULES = (DELIVERY, FLOWS, STEPPING)
