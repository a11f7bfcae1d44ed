"""Spark's checkpoint directory as Holdfast's: its owner and fence, a snapshot with each epoch, restore."""
