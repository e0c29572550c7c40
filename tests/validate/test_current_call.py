"""What a worker publishes can be read at any time, also when its writer died in the middle."""

from __future__ import annotations

import os
import tempfile

import pytest

from simrank.validate.current_call import SIZE_BYTES, Page, memory_file


@pytest.fixture
def fd():
    """A memory file."""
    made = memory_file("page")
    yield made
    os.close(made)


def test_what_was_written_last_is_read(fd):
    """By another mapping of the same file; nothing before."""
    writer, reader = Page(fd), Page(fd)
    assert reader.read() == {}
    for number in range(3):
        writer.write({"stage": "running", "number": number})
    assert reader.read() == {"stage": "running", "number": 2}


def test_a_record_that_is_half_written_is_not_believed(fd):
    """Its count is odd."""
    page = Page(fd)
    page.write({"a": 1})
    page._map[0] = 3
    assert page.read() == {}


def test_a_record_that_is_too_long_loses_its_longest_part(fd):
    """Not the rest."""
    page = Page(fd)
    page.write({"stage": "running", "ranks": list(range(SIZE_BYTES))})
    assert page.read() == {"stage": "running"}


def test_a_memory_file_has_no_name_on_disk(monkeypatch):
    """Where the system has none, a temporary file without a name stands for it."""
    monkeypatch.delattr(os, "memfd_create")
    before = set(os.listdir(tempfile.gettempdir()))
    made = memory_file("page")
    Page(made).write({"a": 1})
    assert Page(made).read() == {"a": 1}
    assert set(os.listdir(tempfile.gettempdir())) <= before
    os.close(made)
