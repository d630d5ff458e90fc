"""Unique keys: of the waiting jobs under one key, one stands, and the others give way to it."""
