"""Fault injection: lost replies, full disks, power cuts, processes killed at a step."""
