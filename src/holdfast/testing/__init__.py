"""The test kit, shipped so that users test their own stores, backends, sinks and pipelines with it.

`conformance`: suites that every object store, checkpoint store, key-value store, index, projection store and sink
passes. `faults`: an HTTP proxy that loses replies, a disk that runs full, a disk that loses unsynced writes, and
processes killed at a named step.

This package imports nothing, for two reasons: a module should need only its own dependencies, and pytest rewrites the
assertions of the suites only if they are registered before the first import:
`pytest.register_assert_rewrite("holdfast.testing")`.
"""
