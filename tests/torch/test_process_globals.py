"""Globals of torch that belong to a process are a rank's own."""

import os
import sys
from collections import OrderedDict

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


def exports(rank):
    dist.init_process_group("gloo")
    model = torch.nn.Sequential(OrderedDict({f"only_on_{rank}": torch.nn.Linear(8, 8)}))
    found = torch.export.export(model, (torch.ones(4, 8),))
    assert [entry.fqn for entry in found.module_call_graph] == ["", f"only_on_{rank}"]
    dist.barrier()
    again = torch.export.export(model, (torch.ones(4, 8),))
    assert [entry.fqn for entry in again.module_call_graph] == ["", f"only_on_{rank}"]


@pytest.mark.slow
def test_ranks_export_modules_of_their_own(spawn):
    """The exporter keeps the names of the module in globals while it traces."""
    spawn(exports)


def reads_debug_level(rank):
    dist.init_process_group("gloo")
    os.environ["TORCH_DISTRIBUTED_DEBUG"] = ["info", "DETAIL", "most"][rank]
    if rank == 2:
        with pytest.raises(ValueError, match="must be OFF, INFO, or DETAIL"):
            dist.set_debug_level_from_env()
    else:
        dist.set_debug_level_from_env()
    dist.barrier()
    assert dist.get_debug_level().name == ["INFO", "DETAIL", "OFF"][rank]


def test_the_debug_level_is_read_from_the_ranks_environment(spawn):
    """C++ would read the process's."""
    spawn(reads_debug_level, 3)
    assert dist.get_debug_level() == dist.DebugLevel.OFF
