"""Epochs in a Delta table: Spark writes the files, the `deltalake` package commits them."""
