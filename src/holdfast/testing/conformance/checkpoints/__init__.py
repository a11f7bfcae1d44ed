"""The contract of a checkpoint store; `suite` puts the parts together."""
