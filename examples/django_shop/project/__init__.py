"""Project of the shop: settings and addresses."""
