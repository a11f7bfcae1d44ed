"""Spark's checkpoint directory, read only: no Spark, no effects, nothing of Holdfast's."""
