"""What each verb of the command line prints with --json, on the artefacts."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from golden import compare
from museum import fixed_place, unpack

from holdfast.cli import main

PROJECTIONS = Path(__file__).parent / "museum.py"
OVER_TIME = {"now_ms", "elapsed_seconds"}
"""Fields that differ with each call."""
PROSE = {"message", "unchanged", "next_step", "notes"}
"""Sentences for people, which may become plainer: only that there are some, and how many, is compared."""


class Commands:
    """Runs commands in this process and keeps what they printed."""

    def __init__(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self._tmp_path = tmp_path
        self._capsys = capsys
        self._began_ms = int(time.time() * 1000)
        self._seen: dict[str, Any] = {}

    def __call__(self, *words: object) -> None:
        self._capsys.readouterr()
        code = main([*(str(word) for word in words), "--json"])
        out, err = self._capsys.readouterr()
        printed = {name: json.loads(text) for name, text in (("out", out), ("err", err)) if text}
        command = self._plain(" ".join(map(str, words)))
        while command in self._seen:
            command += " (again)"
        self._seen[command] = self._plain({"exit_code": code} | printed)

    def check(self, name: str) -> None:
        compare(f"cli-{name}.json", self._seen)

    def _field(self, key: str, value: Any) -> Any:
        if key in PROSE and value:
            return ["a sentence"] * len(value) if isinstance(value, list) else "a sentence"
        return "…" if key in OVER_TIME else self._plain(value)

    def _plain(self, value: Any) -> Any:
        """Without this machine's paths, and without the time of the test."""
        match value:
            case dict():
                return {key: self._field(key, item) for key, item in value.items()}
            case list():
                return [self._plain(item) for item in value]
            case str():
                return value.replace(str(PROJECTIONS), "museum.py").replace(str(self._tmp_path), "/museum")
            case int() if value >= self._began_ms and value < 2 * self._began_ms:
                return "just now"
        return value


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Commands:
    monkeypatch.delenv("HOLDFAST_DEBUG", raising=False)
    return Commands(tmp_path, capsys)


def test_json_of_a_store(run: Commands, tmp_path: Path) -> None:
    store = unpack("store-directory.tar.gz", tmp_path / "store")
    run("ls", store)
    run("ls", store, "--limit", 1)
    for number in range(1, 7):
        run("show", store, number)
    run("show", store, "latest")
    run("show", store, 77)
    run("diff", store, 3, 4)
    run("diff", store, 5, "latest")
    run("verify", store)
    run("verify", store, "--deep", 6, 3)
    run("status", store)
    run("recover", store, "--dry-run")
    run("gc", store, "--dry-run")
    run("prune", store, "--keep", 2, "--dry-run")
    run("prune", store, "--keep", 2)
    run("gc", store, "--yes")
    run("prune", store, "--keep", 2, "--yes")
    run("recover", store, "--yes")
    run("ls", tmp_path / "nothing")
    run.check("store")


def test_store_damaged(run: Commands, tmp_path: Path) -> None:
    store = unpack("store-directory.tar.gz", tmp_path / "store")
    for number in (4, 6):
        path = store / f"checkpoints/checkpoint_{number:06}/manifest.json"
        path.write_bytes(path.read_bytes().replace(b"orders", b"Orders", 1))
    for verb in ("ls", "verify", "status"):
        run(verb, store)
    run("show", store)
    run("recover", store, "--dry-run")
    run("recover", store, "--yes")
    run.check("store-damaged")


def test_store_object_layout(run: Commands, tmp_path: Path) -> None:
    store = unpack("store-object.tar.gz", tmp_path / "store")
    for verb in ("ls", "show", "verify", "status"):
        run(verb, store, "--layout", "object")
    run("recover", store, "--layout", "object", "--dry-run")
    run("prune", store, "--layout", "object", "--keep", 1, "--dry-run")
    run("gc", store, "--layout", "object", "--dry-run")
    run.check("store-object-layout")


def test_json_of_a_pipelines_store(run: Commands) -> None:
    """At its fixed place: its checkpoints say where the workdir is, and some verbs look there."""
    with fixed_place() as place:
        store = unpack("workdir-hdfs.tar.gz", place) / "store"
        for verb in ("ls", "show", "status", "verify"):
            run(verb, store)
        run("diff", store, 1, 2)
        run("recover", store, "--dry-run")
    run.check("pipeline")


@pytest.mark.parametrize("kind", ["sqlite", "rocksdb"])
def test_json_of_sources(run: Commands, tmp_path: Path, kind: str) -> None:
    urls = []
    for name in ("index", "reset"):
        folder = unpack(f"index-{kind}-{name}.tar.gz", tmp_path / name)
        urls.append(f"sqlite:///{folder}/index.db" if kind == "sqlite" else f"rocksdb:///{folder}")
    index, half_emptied = urls
    run("sources", index)
    run("sources", half_emptied)
    run("sources", "clear", index, "--dry-run")
    run("sources", "clear", index, "--results", "--dry-run")
    run("sources", "clear", index)
    run("sources", "clear", index, "--results", "--yes")
    run("sources", index)
    run("sources", "clear", half_emptied, "--yes")
    run("sources", f"{kind}:///{tmp_path}/nothing")
    run.check(f"sources-{kind}")


@pytest.mark.parametrize("kind", ["sqlite", "slatedb"])
def test_json_of_projections(run: Commands, tmp_path: Path, kind: str) -> None:
    folder = unpack(f"projections-{kind}.tar.gz", tmp_path / "store")
    store = f"sqlite:///{folder}/events.db" if kind == "sqlite" else f"file://{folder}"
    turnover, net = f"{PROJECTIONS}:Turnover", f"{PROJECTIONS}:NetTurnover"
    run("projections", store)
    run("projections", "dead-letters", store, "turnover")
    run("projections", "dead-letters", store, "turnover", "--retry", "--projection", turnover, "--dry-run")
    run("projections", "dead-letters", store, "turnover", "--retry", "--projection", turnover, "--yes")
    run("projections", "reset", store, "by-hand", "--dry-run")
    run("projections", "reset", store, "by-hand")
    run("projections", "reset", store, "by-hand", "--yes")
    run("projections", "rebuild", store, "turnover", "--projection", net, "--resume", "--dry-run")
    run("projections", "rebuild", store, "turnover", "--projection", net, "--resume", "--yes")
    run("projections", store)
    run("projections", "reset", store, "nothing", "--yes")
    run.check(f"projections-{kind}")
