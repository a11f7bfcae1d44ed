"""A driver that was taken over reaches its successor's workdir no more."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from holdfast.errors import Conflict, Fenced, Unavailable
from holdfast.pipeline.workdir.local import LocalWorkdir
from holdfast.pipeline.workdir.owner import WorkdirOwner

OWNER = WorkdirOwner("orders", "memory://")


class Claims:
    """Who holds the lease, as far as a driver can ask."""

    def __init__(self) -> None:
        self.newest = 0

    def claim(self) -> int:
        self.newest += 1
        return self.newest

    def check_of(self, generation: int):
        def check() -> None:
            if self.newest != generation:
                raise Fenced(f"generation {self.newest} has it")

        return check


@pytest.fixture
def claims() -> Claims:
    return Claims()


@pytest.fixture
def workdir(tmp_path: Path) -> LocalWorkdir:
    return LocalWorkdir(tmp_path / "made on the way" / "work")


def beside(workdir: LocalWorkdir) -> list[str]:
    return sorted(path.name for path in workdir.home.parent.iterdir() if path != workdir.home)


def entered(workdir: LocalWorkdir, claims: Claims) -> LocalWorkdir:
    generation = claims.claim()
    return workdir.fenced(generation, claims.check_of(generation))


def test_by_its_entrance_it_is_the_same_directory(workdir: LocalWorkdir, claims: Claims) -> None:
    inside = entered(workdir, claims)
    assert inside.is_empty()
    inside.make(OWNER)
    (inside.path / "offsets").mkdir()
    (inside.path / "offsets/0").write_text("x")
    assert (workdir.home / "offsets/0").read_text() == "x"
    assert inside.home == workdir.home
    assert inside.owner() == OWNER
    assert beside(workdir) == [inside.path.name]


def test_the_next_generation_takes_it_away(workdir: LocalWorkdir, claims: Claims) -> None:
    before = entered(workdir, claims)
    before.make(OWNER)
    after = entered(workdir, claims)
    assert beside(workdir) == [after.path.name]
    with pytest.raises(FileNotFoundError):
        (before.path / "offsets").mkdir()
    # Spark makes what is missing on its way.
    os.makedirs(before.path / "offsets")
    (before.path / "offsets/0").write_text("of a driver that was taken over")
    assert not (after.path / "offsets").exists()
    third = entered(workdir, claims)
    assert beside(workdir) == [third.path.name]


def test_a_driver_frozen_before_it_enters_finds_out(workdir: LocalWorkdir, claims: Claims) -> None:
    frozen = claims.claim()
    after = entered(workdir, claims)
    with pytest.raises(Fenced):
        workdir.fenced(frozen, claims.check_of(frozen))
    assert beside(workdir) == [after.path.name]


def test_a_driver_frozen_while_it_enters_leaves_nothing_open(workdir: LocalWorkdir, claims: Claims) -> None:
    """The claim comes after its link is made: the successor finds and removes it, or has been seen."""
    frozen = claims.claim()

    def taken_over_now() -> None:
        entered(workdir, claims)
        claims.check_of(frozen)()

    with pytest.raises(Fenced):
        workdir.fenced(frozen, taken_over_now)
    assert [name.startswith(".work.spark-2-") for name in beside(workdir)] == [True]


def test_entrances_of_a_past_that_the_store_forgot_are_closed(workdir: LocalWorkdir) -> None:
    before = workdir.fenced(7, lambda: None)
    after = workdir.fenced(2, lambda: None)
    assert not os.path.lexists(before.path)
    assert os.path.lexists(after.path)


def test_a_directory_that_moves_with_its_parent_is_still_reached(tmp_path: Path) -> None:
    inside = LocalWorkdir(tmp_path / "a" / "work").fenced(1, lambda: None)
    inside.make(OWNER)
    os.rename(tmp_path / "a", tmp_path / "b")
    assert (tmp_path / "b" / inside.path.name).samefile(tmp_path / "b" / "work")


def test_where_no_link_can_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(Unavailable) as refused:
        LocalWorkdir(tmp_path / "file" / "work").fenced(1, lambda: None)
    assert refused.value.code == "workdir.disk"
    assert "unchanged" in str(refused.value).lower()


def test_a_workdir_that_turns_out_to_be_a_successors_is_put_back(workdir: LocalWorkdir, claims: Claims) -> None:
    first = entered(workdir, claims)
    first.make(OWNER)
    generation = claims.newest
    (workdir.home / "offsets").mkdir()
    claims.claim()
    with pytest.raises(Fenced):
        first.discard(claims.check_of(generation))
    assert (workdir.home / "offsets").is_dir()


def test_what_a_successor_made_is_not_replaced(workdir: LocalWorkdir, claims: Claims) -> None:
    first = entered(workdir, claims)
    fresh = first.new_sibling()
    (fresh / "offsets").mkdir()
    generation = claims.newest
    second = entered(workdir, claims)
    second.make(OWNER)
    with pytest.raises(Fenced):
        first.publish(fresh, claims.check_of(generation))
    with pytest.raises(Conflict):
        second.publish(fresh, claims.check_of(claims.newest))
    assert os.listdir(workdir.home) == [".holdfast.json"]
