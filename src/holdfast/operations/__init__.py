"""What can be done to a pipeline, an index or a projection from outside: a plan first, then `apply()`."""
