"""What `ForgetfulDisk` loses and keeps when the power goes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import pytest

from holdfast.storage.objects.local import LocalObjects
from holdfast.testing.faults.powerloss import ForgetfulDisk, PowerCut, keep_everything, lose_everything, seeded

Work = Callable[[ForgetfulDisk], None]


def disk_with(*work: Work) -> ForgetfulDisk:
    """A disk with a durable directory `/d` on which some work was done since."""
    disk = ForgetfulDisk()
    disk.make_directory("/d")
    disk.sync_directory("/")
    for each in work:
        each(disk)
    return disk


def write(name: str, body: bytes = b"body") -> Work:
    return lambda disk: disk.write_file(f"/d/{name}", [body])


def sync(disk: ForgetfulDisk) -> None:
    disk.sync_directory("/d")


def rename(old: str, new: str) -> Work:
    return lambda disk: disk.rename(f"/d/{old}", f"/d/{new}")


def remove(name: str) -> Work:
    return lambda disk: disk.remove_file(f"/d/{name}")


def outcomes(disk: ForgetfulDisk) -> set[tuple[tuple[str, bytes], ...]]:
    """Everything that 200 seeds made of this disk."""
    return {tuple(sorted(disk.reboot(seeded(seed)).files().items())) for seed in range(200)}


def test_a_synced_file_in_an_unsynced_directory_is_lost() -> None:
    assert disk_with(write("a")).reboot(lose_everything).files() == {}


def test_a_synced_file_in_a_synced_directory_is_kept() -> None:
    assert disk_with(write("a"), sync).reboot(lose_everything).files() == {"/d/a": b"body"}


def test_a_directory_is_lost_with_all_it_holds_unless_its_parent_was_synced() -> None:
    disk = ForgetfulDisk()
    disk.make_directory("/d")
    disk.write_file("/d/a", [b"body"])
    disk.sync_directory("/d")
    assert disk.reboot(lose_everything).scan("/") == []
    disk.sync_directory("/")
    assert disk.reboot(lose_everything).files() == {"/d/a": b"body"}


def test_an_unsynced_removal_comes_back() -> None:
    disk = disk_with(write("a"), sync, remove("a"))
    assert disk.files() == {}
    assert disk.reboot(lose_everything).files() == {"/d/a": b"body"}
    assert disk.reboot(keep_everything).files() == {}
    sync(disk)
    assert disk.reboot(lose_everything).files() == {}


def test_an_unsynced_removal_of_a_directory_comes_back() -> None:
    disk = disk_with(lambda disk: disk.remove_directory("/d"))
    assert [entry.name for entry in disk.reboot(lose_everything).scan("/")] == ["d"]


def test_an_unsynced_rename_is_undone() -> None:
    disk = disk_with(write("a", b"old"), write("b", b"new"), sync, rename("b", "a"))
    assert disk.reboot(lose_everything).files() == {"/d/a": b"old", "/d/b": b"new"}
    sync(disk)
    assert disk.reboot(lose_everything).files() == {"/d/a": b"new"}


def test_an_unsynced_link_is_lost_and_both_names_hold_the_same_file_when_kept() -> None:
    disk = disk_with(write("a"), sync, lambda disk: disk.link("/d/a", "/d/b"))
    assert disk.reboot(lose_everything).files() == {"/d/a": b"body"}
    again = disk.reboot(keep_everything)
    again.rename("/d/a", "/d/b")
    assert set(again.files()) == {"/d/a", "/d/b"}, "a rename between two names of one file does nothing"


def test_what_survived_a_reboot_is_durable() -> None:
    disk = disk_with(write("a")).reboot(keep_everything)
    assert disk.reboot(lose_everything).files() == {"/d/a": b"body"}


def test_halves_of_a_rename_survive_apart() -> None:
    disk = disk_with(write("a"), sync, rename("a", "b"))
    body = b"body"
    assert outcomes(disk) == {
        (("/d/a", body),),
        (("/d/b", body),),
        (("/d/a", body), ("/d/b", body)),
        (),
    }


def test_changes_of_one_name_survive_in_their_order() -> None:
    disk = disk_with(write("a", b"one"), sync, remove("a"), write("a", b"two"), remove("a"))
    assert outcomes(disk) == {(("/d/a", b"one"),), (), (("/d/a", b"two"),)}


def test_what_was_synced_is_past_choosing() -> None:
    assert outcomes(disk_with(write("a"), sync, remove("a"), write("b"), sync)) == {(("/d/b", b"body"),)}


def test_synced_content_never_tears() -> None:
    assert outcomes(disk_with(write("a"))) == {(), (("/d/a", b"body"),)}


def test_unsynced_content_survives_as_nothing_a_prefix_zeros_or_whole() -> None:
    disk = disk_with()
    disk.cut_after(disk.operations + 2)  # made and filled, not synced
    with pytest.raises(PowerCut):
        disk.write_file("/d/a", [b"bo", b"dy"])
    bodies = {files[0][1] for files in outcomes(disk) if files}
    zeros = {b"\0\0\0\0", b"b\0\0\0", b"bo\0\0", b"bod\0"}
    assert bodies == {b"", b"b", b"bo", b"bod", b"body"} | zeros
    assert disk.reboot(lose_everything).files() == {}
    assert disk.reboot(keep_everything).files() == {"/d/a": b"body"}


def test_a_seed_replays() -> None:
    disk = disk_with(*(write(name) for name in "abcdefgh"), *(rename(name, name * 2) for name in "abcd"))
    for seed in range(20):
        assert disk.reboot(seeded(seed)).files() == disk.reboot(seeded(seed)).files()


def test_each_operation_is_a_place_for_the_cut() -> None:
    def work(disk: ForgetfulDisk) -> None:
        disk.make_directory("/d")
        disk.write_file("/d/a", [b"body"])
        disk.link("/d/a", "/d/b")
        disk.rename("/d/a", "/d/c")
        disk.sync_directory("/d")
        disk.remove_file("/d/b")
        disk.remove_file("/d/c")
        disk.remove_directory("/d")

    whole = ForgetfulDisk()
    work(whole)
    assert [line.split()[0] for line in whole.journal] == [
        "directory.make",
        "file.write",
        "file.fill",
        "file.sync",
        "file.link",
        "file.rename",
        "directory.sync",
        "file.remove",
        "file.remove",
        "directory.remove",
    ]
    for operations in range(whole.operations):
        disk = ForgetfulDisk()
        disk.cut_after(operations)
        with pytest.raises(PowerCut):
            work(disk)
        assert disk.journal == whole.journal[:operations]
    enough = ForgetfulDisk()
    enough.cut_after(whole.operations)
    work(enough)


def test_after_the_cut_every_call_raises() -> None:
    disk = disk_with(write("a"))
    disk.cut_after(disk.operations)
    assert disk.entry("/d/a").size == 4, "a read is not an operation"
    with pytest.raises(PowerCut):
        sync(disk)
    calls: list[Callable[[], object]] = [
        lambda: disk.make_directory("/e"),
        lambda: disk.write_file("/e", []),
        lambda: disk.link("/d/a", "/e"),
        lambda: disk.rename("/d/a", "/e"),
        lambda: disk.remove_file("/d/a"),
        lambda: disk.remove_directory("/d"),
        lambda: disk.sync_directory("/d"),
        lambda: disk.open_file("/d/a"),
        lambda: disk.entry("/d/a"),
        lambda: disk.scan("/"),
        lambda: disk.locked("/d").__enter__(),
    ]
    for call in calls:
        with pytest.raises(PowerCut):
            call()
    assert disk.files() == {"/d/a": b"body"}


def test_no_handler_of_errors_swallows_the_cut() -> None:
    assert not issubclass(PowerCut, Exception)


def test_a_call_that_fails_is_no_operation() -> None:
    disk = disk_with()
    before = disk.operations
    calls: list[Callable[[], None]] = [
        lambda: disk.make_directory("/d"),
        lambda: disk.remove_file("/x"),
        lambda: disk.sync_directory("/x"),
    ]
    for call in calls:
        with pytest.raises(OSError, match=r"/[dx]"):
            call()
    assert disk.operations == before


def test_moving_a_directory_is_refused() -> None:
    with pytest.raises(NotImplementedError):
        disk_with().rename("/d", "/e")


def test_the_clock_is_ours() -> None:
    disk = ForgetfulDisk(clock=lambda: 17.0)
    disk.write_file("/a", [b""])
    assert disk.reboot(keep_everything).entry("/a").modified == 17.0


@pytest.mark.parametrize("choose", [lose_everything, keep_everything, *(seeded(seed) for seed in range(3))])
def test_local_objects_keep_what_they_acknowledged(choose: object) -> None:
    whole = ForgetfulDisk()
    LocalObjects("/store", disk=whole).create("folder/key", [b"body"])
    for operations in range(whole.operations + 1):
        disk = ForgetfulDisk()
        disk.cut_after(operations)
        acknowledged = False
        with contextlib.suppress(PowerCut):
            LocalObjects("/store", disk=disk).create("folder/key", [b"body"])
            acknowledged = True
        survivor = LocalObjects("/store", disk=disk.reboot(choose))  # type: ignore[arg-type]
        found = [info.key for info in survivor.list("")]
        assert found == ["folder/key"] if acknowledged else found in ([], ["folder/key"])
        assert all(survivor.read(key, limit=10) == b"body" for key in found), "an object is whole or not there"
