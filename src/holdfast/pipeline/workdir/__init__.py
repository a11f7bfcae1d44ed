"""The workdir, which holds Spark's checkpoint directory: its owner, its fence, its snapshots, its restore."""
