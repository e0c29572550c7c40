"""A process group belongs to the rank that has made it: processes cannot have another's."""

import sys

import pytest
import torch
import torch.distributed as dist

import simrank
from simrank.errors import SimrankError, SpawnException

LIBRARY = """
class State:
    group = None

class Singleton:
    pass

state = Singleton()
"""
USES = [
    lambda group: dist.all_reduce(torch.ones(1), group=group),
    dist.barrier,
    dist.get_rank,
    dist.get_backend,
    lambda group: group.rank(),
]


@pytest.fixture
def library(tmp_path, monkeypatch):
    """An installed package that keeps groups in an object of its own, or in a class."""
    folder = tmp_path / "site-packages" / "keeper"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text(LIBRARY)
    monkeypatch.syspath_prepend(str(folder.parent))
    yield "keeper"
    sys.modules.pop("keeper", None)


def in_pairs(use, holder):
    """Return a program of four ranks: each pair keeps its group, and uses what it has kept."""

    def program(rank):
        import keeper

        dist.init_process_group("gloo")
        kept = getattr(keeper, holder)
        for ranks in ([0, 1], [2, 3]):
            group = dist.new_group(ranks)
            if rank in ranks:
                kept.group = group
        dist.barrier()
        use(kept.group)

    return program


@pytest.mark.parametrize("use", USES, ids=["collective", "barrier", "rank", "backend", "method"])
def test_a_group_of_another_rank_is_refused(library, use):
    """The call would be left out with a warning, and its result be the argument."""
    with pytest.raises(SpawnException) as caught, simrank.Context("hgx_h100") as ctx:
        ctx.multiprocessing.spawn(in_pairs(use, "state"), (), 4, share_args=True)
    error = caught.value.errors[0]
    assert isinstance(error, SimrankError)
    assert "rank 0 uses a process group of rank 3" in str(error)
    assert f"held by {library}, which ranks share" in str(error)
    assert f'private = ["{library}"]' in str(error)
    assert 3 not in caught.value.errors


def test_classes_are_followed_to_their_module(library):
    """Where they hold the group themselves."""
    with pytest.raises(SpawnException) as caught, simrank.Context("hgx_h100") as ctx:
        ctx.multiprocessing.spawn(in_pairs(USES[0], "State"), (), 4, share_args=True)
    assert f'private = ["{library}"]' in str(caught.value.errors[0])


def test_a_private_package_has_each_ranks_own(library):
    """So that the cure is one."""
    with simrank.Context("hgx_h100", private=[library]) as ctx:
        for use in USES:
            ctx.multiprocessing.spawn(in_pairs(use, "state"), (), 4, share_args=True)


def test_unknown_groups_stay_torchs_affair():
    """One that is destroyed is the rank's own, and torch says what it is."""

    def program():
        dist.init_process_group("gloo")
        group = dist.new_group([0, 1])
        dist.destroy_process_group(group)
        with pytest.raises(ValueError, match="is not registered"):
            dist.get_rank(group)

    with simrank.Context("hgx_h100") as ctx:
        ctx.multiprocessing.spawn(lambda _: program(), (), 2, share_args=True)
