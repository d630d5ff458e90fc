"""All modules of the model."""

from proof.delivery.scenarios import DELIVERY
from proof.flows import FLOWS

MODULES = (DELIVERY, FLOWS)
