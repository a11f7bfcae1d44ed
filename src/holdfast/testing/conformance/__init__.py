"""The contracts of stores and sinks as pytest classes to inherit; one suite per protocol."""
