"""The contract of projections and their event store; `suite` puts the parts together."""
