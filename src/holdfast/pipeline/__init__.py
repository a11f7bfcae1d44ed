"""The protocol of an epoch and the way back after a failure: decisions apart from effects."""
