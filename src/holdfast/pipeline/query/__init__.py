"""A streaming query as the manifest describes it: read from Spark's plans, compared with the one before."""
