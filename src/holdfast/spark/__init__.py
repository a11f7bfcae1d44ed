"""Pipelines on Spark: Spark plans and runs, Holdfast decides what is durable and committed."""

from holdfast.spark.continuous import ContinuousQuery
from holdfast.spark.pipeline import Pipeline
from holdfast.spark.reports import EpochReport, Notice, watch
from holdfast.spark.running import Run

__all__ = ["ContinuousQuery", "EpochReport", "Notice", "Pipeline", "Run", "watch"]
