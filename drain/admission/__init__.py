"""Admission: which of the due rows may leave `staged_jobs` now, as the rules of their queues say."""
