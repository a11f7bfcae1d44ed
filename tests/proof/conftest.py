from __future__ import annotations

import pytest
from proof_works import small_states


@pytest.fixture(autouse=True)
def _small_states(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(*small_states())
