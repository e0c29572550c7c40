"""Pools that tests share, and proof that nothing is left of any."""

from __future__ import annotations

import os
import time
import uuid
from pathlib import Path

import pytest

from simrank.validate import Limits, Options, WorkerPool

TOKEN = "SIMRANK_TEST_TOKEN"
NONE_LEFT_S = 10.0


def holders(token):
    """Return the processes that inherited a token, whoever their parent is by now; no zombies."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            environment = (folder / "environ").read_bytes()
            state = (folder / "stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if f"{TOKEN}={token}".encode() in environment.split(b"\0") and state != "Z":
            found.append(int(folder.name))
    return sorted(set(found) - {os.getpid()})


def none_left(token):
    """Wait until nobody holds a token; return who does in spite of that."""
    deadline = time.monotonic() + NONE_LEFT_S
    while (left := holders(token)) and time.monotonic() < deadline:
        time.sleep(0.01)
    return left


@pytest.fixture
def token():
    """A word for the environment of workers; nobody has it when the test is over."""
    word = uuid.uuid4().hex
    yield word
    assert none_left(word) == []


@pytest.fixture(scope="module")
def pool():
    """Four plain processes that a module's tests share; nothing is run twice."""
    word = uuid.uuid4().hex
    options = Options(retry=False, limits=Limits(settle_s=0.1))
    with WorkerPool(4, None, 20, env={TOKEN: word}, options=options) as shared:
        yield shared
    assert none_left(word) == []
