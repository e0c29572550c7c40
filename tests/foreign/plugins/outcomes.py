"""pytest's plugin that writes the outcome of each test to a file, for `tests/foreign_suites.py`."""

from __future__ import annotations

import os
from typing import Any

_MAX_LENGTH = 300  # Of the reason of a failure.
_failed: set[str] = set()


def pytest_runtest_logreport(report: Any) -> None:
    """Write a line as a test has failed, or as its body has ended."""
    path = os.environ.get("SIMRANK_FOREIGN_OUTCOMES")
    if path is None or not _says_something(report):
        return
    reason = ""
    if report.failed:
        _failed.add(report.nodeid)
        crash = getattr(report.longrepr, "reprcrash", None)
        text = str(report.longrepr) if crash is None else crash.message
        reason = ": " + " ".join(text.split())[:_MAX_LENGTH]
    with open(path, "a") as file:
        file.write(f"{report.nodeid}\t{report.outcome}{reason}\n")


def _says_something(report: Any) -> bool:
    if report.nodeid in _failed:
        return False
    return bool(report.failed or report.when == "call" or report.skipped)
