"""Where an epoch's rows go: stage, then commit. One file per sink."""

from holdfast.sinks.sink import Delivery, Descriptor, RowsRefused, Sink, StagedOutputGone, Standing

__all__ = ["Delivery", "Descriptor", "RowsRefused", "Sink", "StagedOutputGone", "Standing"]
