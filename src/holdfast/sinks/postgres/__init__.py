"""Epochs in PostgreSQL: executors copy into a staging table, one transaction merges it and says that it did."""
