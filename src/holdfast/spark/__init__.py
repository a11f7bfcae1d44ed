"""Pipelines and projections on Spark: Spark plans and runs, Holdfast decides what is durable and committed."""

from holdfast.pipeline.continuous import ContinuousQuery
from holdfast.pipeline.pipeline import Pipeline
from holdfast.pipeline.reports import EpochReport, Notice, watch
from holdfast.pipeline.supervisor import Run
from holdfast.projections.spark.aggregate import FrameProjection
from holdfast.projections.spark.events import read_events, register_events
from holdfast.projections.spark.runner import ProjectionRunner

__all__ = [
    "ContinuousQuery",
    "EpochReport",
    "FrameProjection",
    "Notice",
    "Pipeline",
    "ProjectionRunner",
    "Run",
    "read_events",
    "register_events",
    "watch",
]


def __dir__() -> list[str]:
    """The public names alone: what a shell offers for completion."""
    return __all__
