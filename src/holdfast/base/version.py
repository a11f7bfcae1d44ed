"""The version of Holdfast, for the package and for what it writes."""

VERSION = "0.1.0"
