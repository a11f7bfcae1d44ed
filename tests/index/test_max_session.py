"""How large a session may be: known by the address alone, before anything is opened."""

from __future__ import annotations

import pytest

from holdfast.index import open_index
from holdfast.storage.kv.open import max_transaction_of
from index_places import PLACES


@pytest.mark.parametrize("place", PLACES)
def test_an_address_tells_how_large_a_session_may_be(place: str, request: pytest.FixtureRequest) -> None:
    url = PLACES[place].fresh(request)
    with open_index(url) as index:
        assert index.max_session == max_transaction_of(url)
    assert (index.max_session is None) == (place in ("memory", "sqlite", "postgres"))


@pytest.mark.parametrize("place", PLACES)
def test_columns_are_part_of_the_session_and_outlive_a_reset(place: str, request: pytest.FixtureRequest) -> None:
    with open_index(PLACES[place].fresh(request)) as index:
        assert index.results.read_columns() is None
        with index.session():
            index.results.stage_columns("{}")
            assert index.results.read_columns() is None
        assert index.results.read_columns() == "{}"
        index.reset()
        assert index.results.read_columns() == "{}"
