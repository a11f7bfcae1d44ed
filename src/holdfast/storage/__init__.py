"""Bytes at rest, on disks and on object storage."""
