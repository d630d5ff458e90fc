"""workers/plain."""
