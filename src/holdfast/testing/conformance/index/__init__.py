"""Part of the test kit: see holdfast.testing."""
