"""Which epoch a source's sequence stands for: a later lineage is above every epoch of those before it. Pure."""

from __future__ import annotations

from holdfast.errors import Invalid

_EPOCH_BITS = 40
_LINEAGES = 1 << (64 - _EPOCH_BITS)


def sequence_of(lineage: int, epoch: int) -> int:
    """In the first lineage the epoch itself."""
    if not 0 <= epoch < 1 << _EPOCH_BITS or not 0 <= lineage < _LINEAGES:
        raise Invalid(
            f"Epoch {epoch} of lineage {lineage} has no sequence.", code="sink.sequence", unchanged="everything"
        )
    return (lineage << _EPOCH_BITS) | epoch


def epoch_of(sequence: int) -> tuple[int, int]:
    """Lineage and epoch."""
    return sequence >> _EPOCH_BITS, sequence & ((1 << _EPOCH_BITS) - 1)
