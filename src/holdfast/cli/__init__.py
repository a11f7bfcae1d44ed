"""The command line: inspect a store, verify it, repair it, clean it up. One file per verb, two outputs."""

from holdfast.cli.app import main

__all__ = ["main"]
