"""Pipelines on Spark: Spark plans and runs, Holdfast decides what is durable and committed."""

from holdfast.spark.pipeline import Pipeline
from holdfast.spark.reports import EpochReport, Notice, watch
from holdfast.spark.running import Run

__all__ = ["EpochReport", "Notice", "Pipeline", "Run", "watch"]
