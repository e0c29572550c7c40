"""The current folder is a rank's own, as it is a process's."""

import os
import time
from pathlib import Path

import pytest

import simrank
from simrank.errors import SpawnException


@pytest.mark.parametrize("carrier", ["greenlet", "thread"])
def test_each_rank_has_the_folder_that_it_went_to(tmp_path, monkeypatch, carrier):
    """Files with one name are two; the main program stays where it was."""
    monkeypatch.chdir(tmp_path)

    def program(rank):
        if rank < 2:
            os.mkdir(f"of{rank}")
            os.chdir(f"of{rank}")
        time.sleep(1e-3)
        Path("out.txt").write_text(f"by {rank}")
        time.sleep(1e-3)
        assert Path("out.txt").read_text() == f"by {rank}"

    with simrank.Context(carrier=carrier) as ctx:
        ctx.multiprocessing.spawn(program, nprocs=3)
        assert Path.cwd() == tmp_path
    assert (tmp_path / "of0" / "out.txt").read_text() == "by 0"
    assert (tmp_path / "of1" / "out.txt").read_text() == "by 1"
    assert (tmp_path / "out.txt").read_text() == "by 2"
    assert ctx.engine.observers == []


def test_a_rank_that_fails_leaves_the_main_program_where_it_was(tmp_path, monkeypatch):
    """Also in another folder, and with the others parked in theirs."""
    monkeypatch.chdir(tmp_path)

    def program(rank):
        os.chdir("/")
        time.sleep(1e-3 * rank)
        raise KeyError(rank)

    with pytest.raises(SpawnException), simrank.Context() as ctx:
        ctx.multiprocessing.spawn(program, nprocs=2)
    assert Path.cwd() == tmp_path
    assert os.chdir.__module__ == "posix"
