"""What ranks remove is gone after what others do at the same time."""

import os
import shutil
import time
from pathlib import Path

import pytest

import simrank
import simrank.distributed as dist


@pytest.mark.parametrize("carrier", ["thread", "greenlet"])
@pytest.mark.parametrize(
    ("make", "remove"),
    [
        (Path.touch, lambda path: os.remove(path)),  # noqa: PLW0108 - looked up as it is called
        (Path.touch, Path.unlink),
        (Path.mkdir, lambda path: os.rmdir(path)),  # noqa: PLW0108 - likewise
        (Path.mkdir, shutil.rmtree),
    ],
)
def test_what_one_rank_removes_behind_a_barrier_the_others_have_seen(
    tmp_path, carrier, make, remove
):
    """Whatever it removes it with."""
    path, seen = tmp_path / "checkpoint", []

    def program(rank):
        dist.init_process_group("gloo")
        if rank == 0:
            make(path)
        dist.barrier()
        assert path.exists()
        seen.append(rank)
        if rank == 0:
            remove(path)
            assert len(seen) == 4

    with simrank.Context("hgx_h100", carrier=carrier) as ctx:
        ctx.multiprocessing.spawn(program, nprocs=4, share_args=True)
    assert not path.exists()


def test_a_rank_that_is_aborted_as_it_removes_removes_all_the_same(tmp_path):
    """As a process in whose `finally` it is; its error is the other rank's."""
    path = tmp_path / "file"
    path.write_text("x")

    def program(rank):
        if rank == 0:
            os.remove(path)
            time.sleep(1)
        raise ZeroDivisionError

    with (
        simrank.Context("hgx_h100") as ctx,
        pytest.raises(simrank.errors.SpawnException, match="ZeroDivisionError"),
    ):
        ctx.multiprocessing.spawn(program, nprocs=2, share_args=True)
    assert not path.exists()


def test_outside_ranks_nothing_waits(tmp_path):
    """And what is no file is the error that it is."""
    path = tmp_path / "file"
    path.write_text("x")
    with simrank.Context("hgx_h100") as ctx:
        os.remove(path)
        with pytest.raises(FileNotFoundError):
            os.remove(path)
        assert ctx.now_ps == 0
