"""Projections on Spark: events as a data source, and runners that work in parallel."""
