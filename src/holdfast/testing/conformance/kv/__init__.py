"""The contract of a key-value store; `suite` puts the parts together."""

from holdfast.testing.conformance.kv.suite import KeyValueAbilities, KeyValueConformance

__all__ = ["KeyValueAbilities", "KeyValueConformance"]
