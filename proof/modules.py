"""All modules of the model."""

from proof.delivery.scenarios import DELIVERY

MODULES = (DELIVERY,)
