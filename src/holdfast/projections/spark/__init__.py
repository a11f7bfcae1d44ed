"""Projections on Spark: events as a data source, and a runner whose handlers run in parallel on the executors."""
