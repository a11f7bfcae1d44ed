"""`holdfast run`: a pipeline's file, run and watched."""
