"""workers/handover."""
