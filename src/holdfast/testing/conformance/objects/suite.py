"""What every object store must do: keys to bytes, each write durable when it returns, one winner among many.

`holdfast.testing.conformance.checkpoints.suite` shows how such a suite is inherited.
"""

from __future__ import annotations

from holdfast.testing.conformance.objects.keys import ObjectKeysConformance
from holdfast.testing.conformance.objects.listing import ObjectListingConformance
from holdfast.testing.conformance.objects.read import ObjectReadingConformance
from holdfast.testing.conformance.objects.subject import MediumUnderTest
from holdfast.testing.conformance.objects.write import ObjectWritingConformance

__all__ = ["MediumUnderTest", "ObjectsConformance"]


class ObjectsConformance(
    ObjectWritingConformance, ObjectKeysConformance, ObjectReadingConformance, ObjectListingConformance
):
    """Every `ObjectStore`."""
