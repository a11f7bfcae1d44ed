"""The test kit, shipped so that users test their own media, stores and pipelines with it.

`conformance` suites that every store and every medium passes · `servers` real servers on loopback · `faults` lost
replies and full disks · `powerloss` a disk that forgets what was never synced · `crash` processes killed at a step.

Nothing is imported here: each module needs only what it uses, and pytest rewrites the assertions of `conformance`
only if they are registered before the first import: `pytest.register_assert_rewrite("holdfast.testing")`.
"""
