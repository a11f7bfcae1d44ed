"""`holdfast run`: run a pipeline's file, and watch it."""
