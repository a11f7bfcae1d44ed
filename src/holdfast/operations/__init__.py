"""Maintenance of pipelines, indexes and projections: each operation is a plan first, then `apply()`."""
