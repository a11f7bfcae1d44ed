"""What every backend of the key-value layer has to do, as pytest classes to inherit.

    class TestMyStore(KeyValueConformance):
        abilities = KeyValueAbilities(persistent=True, writers="exclusive")

        @pytest.fixture(autouse=True)
        def place(self, tmp_path): self.path = tmp_path / "store"

        def open_store(self, schema): return MyStore(self.path, schema)

        def open_reader(self, schema): return MyReader(self.path, schema)

The keyspaces are those of an index; with `kind = "store"` they are those of a store of events.
"""

from __future__ import annotations

from holdfast.testing.conformance.kv.openings import OpeningConformance
from holdfast.testing.conformance.kv.read import KeyValueReadingConformance
from holdfast.testing.conformance.kv.subject import KeyValueAbilities, KeyValueUnderTest
from holdfast.testing.conformance.kv.transactions import TransactionConformance

__all__ = ["KeyValueAbilities", "KeyValueConformance", "KeyValueUnderTest"]


class KeyValueConformance(KeyValueReadingConformance, TransactionConformance, OpeningConformance):
    """Every key-value store."""
