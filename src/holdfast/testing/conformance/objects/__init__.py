"""The contract of an object store; `suite` puts the parts together."""

from holdfast.testing.conformance.objects.suite import MediumUnderTest, ObjectsConformance

__all__ = ["MediumUnderTest", "ObjectsConformance"]
