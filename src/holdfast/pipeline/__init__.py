"""Pipelines: the two-phase commit of an epoch, and recovery after a failure. Decisions are apart from effects."""
