"""workers/supervisor."""
