"""Pipelines and projections on Spark: Spark plans and runs, Holdfast decides what is durable and committed."""

from holdfast.spark.continuous import ContinuousQuery
from holdfast.spark.events import read_events, register_events
from holdfast.spark.frame_projection import FrameProjection
from holdfast.spark.pipeline import Pipeline
from holdfast.spark.projections import ProjectionRunner
from holdfast.spark.reports import EpochReport, Notice, watch
from holdfast.spark.running import Run

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
