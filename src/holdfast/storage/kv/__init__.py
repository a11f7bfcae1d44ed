"""Ordered maps of bytes under one atomic, durable commit: what an index and a store of events stand on."""
