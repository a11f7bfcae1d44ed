"""With the power on, `ForgetfulDisk` answers every call as the real disk does, errors included."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from holdfast.storage.files.disk import Disk, PosixDisk
from holdfast.testing.faults.powerloss import ForgetfulDisk, keep_everything

NAMES = st.sampled_from(["a", "b"])
PATHS = st.lists(NAMES, min_size=1, max_size=3).map(lambda names: "/" + "/".join(names))
BODIES = st.lists(st.binary(max_size=5), max_size=3)


KINDS = ["/file", "/same", "/empty", "/full", "/full/file", "/absent", "/file/below", "/absent/below"]


def prepare(disk: Disk, root: str) -> None:
    disk.write_file(root + "/file", [b"body"])
    disk.link(root + "/file", root + "/same")
    disk.make_directory(root + "/empty")
    disk.make_directory(root + "/full")
    disk.write_file(root + "/full/file", [b"other"])


CALLS: dict[str, Callable[[Disk, str, str], object]] = {
    "make_directory": lambda disk, path, _: disk.make_directory(path),
    "write_file": lambda disk, path, _: disk.write_file(path, [b"new"]),
    "link": lambda disk, path, other: disk.link(path, other),
    "rename": lambda disk, path, other: disk.rename(path, other),
    "remove_file": lambda disk, path, _: disk.remove_file(path),
    "remove_directory": lambda disk, path, _: disk.remove_directory(path),
    "sync_directory": lambda disk, path, _: disk.sync_directory(path),
    "read": lambda disk, path, _: read(disk, path),
    "scan": lambda disk, path, _: sorted(entry.name for entry in disk.scan(path)),
}


@pytest.mark.parametrize("path", KINDS)
@pytest.mark.parametrize("name", CALLS)
def test_every_call_on_every_kind_of_path(name: str, path: str, tmp_path: Path) -> None:
    if name == "rename" and path in ("/empty", "/full"):
        return  # moving directories is not modelled
    for number, other in enumerate(KINDS if name in ("link", "rename") else ["/unused"]):
        posix, root, forgetful = PosixDisk(), str(tmp_path / str(number)), ForgetfulDisk()
        posix.make_directory(root)
        prepare(posix, root)
        prepare(forgetful, "")
        expected = outcome(CALLS[name], posix, root + path, root + other)
        assert outcome(CALLS[name], forgetful, path, other) == expected, other
        assert tree(forgetful, "/") == tree(posix, root), other


class SameAsPosix(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.root = tempfile.mkdtemp(prefix="holdfast-")
        self.posix = PosixDisk()
        self.forgetful = ForgetfulDisk()

    def teardown(self) -> None:
        shutil.rmtree(self.root)

    def both(self, call: Callable[[Disk, str], object]) -> None:
        expected = outcome(call, self.posix, self.root)
        assert outcome(call, self.forgetful, "") == expected

    @rule(path=PATHS)
    def make_directory(self, path: str) -> None:
        self.both(lambda disk, root: disk.make_directory(root + path))

    @rule(path=PATHS, chunks=BODIES)
    def write_file(self, path: str, chunks: list[bytes]) -> None:
        self.both(lambda disk, root: disk.write_file(root + path, chunks))

    @rule(existing=PATHS, new=PATHS)
    def link(self, existing: str, new: str) -> None:
        self.both(lambda disk, root: disk.link(root + existing, root + new))

    @rule(old=PATHS, new=PATHS)
    def rename(self, old: str, new: str) -> None:
        if not is_directory(self.posix, self.root + old):  # moving directories is not modelled
            self.both(lambda disk, root: disk.rename(root + old, root + new))

    @rule(path=PATHS)
    def remove_file(self, path: str) -> None:
        self.both(lambda disk, root: disk.remove_file(root + path))

    @rule(path=PATHS)
    def remove_directory(self, path: str) -> None:
        self.both(lambda disk, root: disk.remove_directory(root + path))

    @rule(path=PATHS)
    def sync_directory(self, path: str) -> None:
        self.both(lambda disk, root: disk.sync_directory(root + path))

    @rule(path=PATHS)
    def ask(self, path: str) -> None:
        self.both(lambda disk, root: read(disk, root + path))
        self.both(lambda disk, root: (entry := disk.entry(root + path)).is_directory or (entry.name, entry.size))
        self.both(lambda disk, root: sorted(entry.name for entry in disk.scan(root + path)))

    @rule(path=PATHS)
    def lock(self, path: str) -> None:
        def hold(disk: Disk, root: str) -> None:
            with disk.locked(root + path):
                pass

        self.both(hold)

    @rule()
    def reboot_with_everything(self) -> None:
        self.forgetful = self.forgetful.reboot(keep_everything)

    @invariant()
    def same_tree(self) -> None:
        assert tree(self.forgetful, "/") == tree(self.posix, self.root)


def outcome(call: Callable[..., object], *arguments: object) -> object:
    try:
        return call(*arguments)
    except OSError as error:
        return type(error), error.errno


def read(disk: Disk, path: str) -> bytes:
    with disk.open_file(path) as file:
        return file.read()


def is_directory(disk: Disk, path: str) -> bool:
    try:
        return disk.entry(path).is_directory
    except OSError:
        return False


def tree(disk: Disk, path: str) -> dict[str, object]:
    found: dict[str, object] = {}
    for entry in disk.scan(path):
        below = f"{path}/{entry.name}"
        if entry.is_directory:
            found[entry.name] = tree(disk, below)
        else:
            body = read(disk, below)
            assert entry.size == len(body)
            found[entry.name] = body
    return found


TestSameAsPosix = SameAsPosix.TestCase
TestSameAsPosix.settings = settings(max_examples=50, stateful_step_count=40, deadline=None)
