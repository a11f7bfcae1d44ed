"""Files that name others by where the workdir lies: captured without it, put back with it."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.pipeline.workdir.addresses import ROOT_MARK, read_portable, rewrite_addresses, to_local
from holdfast.pipeline.workdir.local import LocalWorkdir

NAMES_OTHERS = "state/0/_metadata/v2/0"


def write(workdir: LocalWorkdir, path: str, data: bytes) -> None:
    there = workdir.path / path
    there.parent.mkdir(parents=True, exist_ok=True)
    there.write_bytes(data)


def schema_of(workdir: LocalWorkdir) -> bytes:
    return f'{{"path":"file:{workdir.path}/state/0/schema"}}'.encode()


@pytest.mark.parametrize(
    ("path", "is_changed"),
    [
        (NAMES_OTHERS, True),
        ("state/12/_metadata/metadata", True),
        ("state/0/0/1.delta", False),
        ("state/0/_stateSchema/default/0_uuid", False),
        ("offsets/0", False),
        ("sources/0/_metadata/0", False),
        ("metadata", False),
    ],
)
def test_only_files_that_name_others_are_changed(tmp_path: Path, path: str, is_changed: bool) -> None:
    workdir, another = LocalWorkdir(tmp_path / "work"), LocalWorkdir(tmp_path / "another")
    write(workdir, path, schema_of(workdir))
    captured = read_portable(workdir, path)
    assert (captured == b'{"path":"' + ROOT_MARK + b'/state/0/schema"}') == is_changed
    assert (captured == schema_of(workdir)) == (not is_changed)
    assert (to_local(another.written_address(another.directory), path, captured) == schema_of(another)) == is_changed
    assert to_local(workdir.written_address(workdir.directory), path, captured) == schema_of(workdir)


@given(st.binary())
def test_to_a_checkpoint_and_back(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    workdir = LocalWorkdir(tmp_path_factory.getbasetemp() / "there and back")
    content = data.replace(ROOT_MARK, b"") + schema_of(workdir) + data.replace(ROOT_MARK, b"")
    write(workdir, NAMES_OTHERS, content)
    assert (
        to_local(workdir.written_address(workdir.directory), NAMES_OTHERS, read_portable(workdir, NAMES_OTHERS))
        == content
    )


def test_a_neighbour_whose_name_begins_alike_is_another(tmp_path: Path) -> None:
    workdir, neighbour = LocalWorkdir(tmp_path / "work"), LocalWorkdir(tmp_path / "workshop")
    write(workdir, NAMES_OTHERS, schema_of(neighbour))
    assert read_portable(workdir, NAMES_OTHERS) == schema_of(neighbour)


def test_what_an_earlier_generation_wrote_is_told_the_new_address(tmp_path: Path) -> None:
    plain = LocalWorkdir(tmp_path / "work (1)")
    plain.home.mkdir()
    before = plain.fenced(1, lambda: None)
    write(before, NAMES_OTHERS, schema_of(before))
    write(before, "state/0/0/1.delta", schema_of(before))
    write(before, "state/0/_metadata/v2/.0.crc", b"of the old bytes")
    captured = read_portable(plain, NAMES_OTHERS)
    assert captured == b'{"path":"' + ROOT_MARK + b'/state/0/schema"}'
    after = plain.fenced(2, lambda: None)
    rewrite_addresses(after)
    assert (after.path / NAMES_OTHERS).read_bytes() == schema_of(after)
    assert (after.path / "state/0/0/1.delta").read_bytes() == schema_of(before)
    assert not (after.path / "state/0/_metadata/v2/.0.crc").exists()
    assert read_portable(after, NAMES_OTHERS) == captured
    assert sorted(path for path, _ in after.spark_checkpoint.files()) == ["state/0/0/1.delta", NAMES_OTHERS]
