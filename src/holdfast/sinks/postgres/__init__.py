"""A PostgreSQL table as a sink: executors copy rows into a staging table, one transaction merges and records them."""
