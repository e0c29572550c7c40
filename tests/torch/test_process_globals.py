"""Globals of torch that belong to a process are a rank's own."""

import sys

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType
from torch.distributed.fsdp import _fsdp_extensions

from simrank.torch.rank_state.turns import NAMES


def saves(rank, folder):
    dist.init_process_group("gloo")
    torch.manual_seed(rank)
    state = {f"weight {rank}": torch.randn(4)}
    process = AsyncCheckpointerType.PROCESS
    for step in range(2):
        dcp.async_save(
            state, checkpoint_id=f"{folder}/{step}", async_checkpointer_type=process
        ).result()
    read = {f"weight {rank}": torch.zeros(4)}
    dcp.load(read, checkpoint_id=f"{folder}/1")
    assert torch.equal(read[f"weight {rank}"], state[f"weight {rank}"])
    dist.destroy_process_group()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_checkpoints_are_saved_by_a_process_of_each_rank(spawn, tmp_path):
    """The tensors reach it through a pipe."""
    spawn(saves, 2, str(tmp_path))
    assert (tmp_path / "1" / ".metadata").is_file()


def sets(rank):
    dist.init_process_group("gloo")
    _fsdp_extensions._set_fsdp_extensions(f"of rank {rank}")
    dist.barrier()
    assert _fsdp_extensions._extensions == f"of rank {rank}"


def test_a_global_that_ranks_set_is_their_own(spawn):
    """Outside of ranks it is what it was."""
    spawn(sets, 3)
    assert _fsdp_extensions._extensions is None


def test_torch_has_these_names():
    """A new version of torch may have others."""
    for module_name, name, first in NAMES:
        __import__(module_name)
        assert vars(sys.modules[module_name])[name] is first
