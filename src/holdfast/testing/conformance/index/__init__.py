"""The contract of an index; `suite` puts the parts together."""
