"""The directory Spark keeps its own progress in: fenced, captured with each epoch, restored."""
