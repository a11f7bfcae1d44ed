"""Pytest plugin: with CI=true, a skipped test fails the run unless allowed_skips.txt names it and says why.

Loaded by conftest.py with `pytest_plugins = ["allowed_skips"]`. Expected failures are not skips. Outside CI it does
nothing, so that a machine without some tool can still run the rest. Under xdist the workers' reports arrive here.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

ALLOWED = Path(__file__).with_suffix(".txt")
ENTRY = re.compile(r"(?P<prefix>\S.*?)\s+#\s*(?P<reason>\S.*)")


def read_allowed(path: Path) -> dict[str, str]:
    """The entries of the list as {node id or its beginning: reason}; an entry without a reason stops the run."""
    allowed: dict[str, str] = {}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        entry = ENTRY.fullmatch(line)
        if entry is None:
            raise pytest.UsageError(f"{path.name}:{number}: expected `node-id-or-prefix  # reason`, found: {line}")
        allowed[entry["prefix"]] = entry["reason"]
    return allowed


def reason_of(report: pytest.TestReport | pytest.CollectReport) -> str:
    where = report.longrepr
    return str(where[2] if isinstance(where, tuple) else where).removeprefix("Skipped: ")


class AllowedSkips:
    def __init__(self, allowed: dict[str, str]) -> None:
        self.allowed = allowed
        self.skipped: dict[str, str] = {}

    def forbidden(self) -> dict[str, str]:
        prefixes = tuple(self.allowed)
        return {test: reason for test, reason in sorted(self.skipped.items()) if not test.startswith(prefixes)}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.skipped and not hasattr(report, "wasxfail"):
            self.skipped[report.nodeid] = reason_of(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.skipped:
            self.skipped[report.nodeid] = reason_of(report)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self.forbidden() and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        forbidden = self.forbidden()
        if not forbidden:
            return
        terminalreporter.section("skipped without permission", red=True)
        for test, reason in forbidden.items():
            terminalreporter.line(f"{test}  # {reason}")
        terminalreporter.line(f"In CI a skipped test fails the run; one that must skip goes into {ALLOWED.name}.")


def pytest_configure(config: pytest.Config) -> None:
    if os.environ.get("CI", "").lower() in {"true", "1"}:
        config.pluginmanager.register(AllowedSkips(read_allowed(ALLOWED)), "allowed-skips")
