"""What has differed between releases of torch has each release's own meaning.

With `test_contacts.py`, this is what a new release is tried with first.
"""

import tomllib
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from simrank.errors import UnsupportedError
from simrank.torch.releases import INSTALLED, TESTED, release_of


def test_the_tested_releases_are_those_that_the_package_requires():
    """Each minor release in the range of the extra `torch`, with that of `constraints.txt`."""
    root = Path(__file__).parents[2]
    project = tomllib.loads((root / "pyproject.toml").read_text())
    (needed,) = project["project"]["optional-dependencies"]["torch"]
    minors = [release_of(each) for each in TESTED]
    (_, first), (_, last) = minors[0], minors[-1]
    assert needed == f"torch>=2.{first},<2.{last + 1}"
    assert minors == [(2, minor) for minor in range(first, last + 1)]
    pinned = (root / "constraints.txt").read_text()
    assert any(f"torch=={each}\n" in pinned for each in TESTED)
    assert release_of("2.15.0a0+git1234") == (2, 15)


def test_a_split_numbers_its_members_as_the_release_does(spawn):
    """2.14 keeps the order that it is given; before, torch sorts. Real gloo processes: the same."""
    found = {}

    def program(rank):
        dist.init_process_group("gloo")
        part = dist.distributed_c10d._get_default_group().split_group([1, 0], group_name="part")
        gathered = [torch.zeros(1) for _ in range(2)]
        part.allgather([gathered], [torch.full((1,), float(rank))]).wait()
        found[rank] = part.rank(), [int(each) for each in gathered]

    spawn(program)
    if INSTALLED < (2, 14):
        assert found == {0: (0, [0, 1]), 1: (1, [0, 1])}
    else:
        assert found == {0: (1, [1, 0]), 1: (0, [1, 0])}


def test_groups_that_can_be_reconfigured_are_refused(spawn):
    """By name, where a release has them."""

    def program(rank):
        with pytest.raises((UnsupportedError, TypeError), match="enable_reconfigure"):
            dist.init_process_group("gloo", enable_reconfigure=True)

    spawn(program)


def test_a_pool_of_memory_stays_a_class(spawn):
    """Libraries name it in types, before and after the first use of a device."""

    def program(rank):
        for _ in range(2):
            assert isinstance(torch.cuda.MemPool, type)
            assert torch.cuda.MemPool | None
            assert not isinstance(3, torch.cuda.MemPool)
            torch.cuda.set_device(rank)
            assert isinstance(torch.cuda.MemPool(), torch.cuda.MemPool)

    spawn(program)


def test_a_graph_is_captured_replayed_and_reset(spawn):
    """Kept or not; since 2.14 in two halves."""

    def program(rank):
        torch.cuda.set_device(rank)
        for kept in (False, True):
            x, graph = torch.zeros(2, device="cuda"), torch.cuda.CUDAGraph(keep_graph=kept)
            with torch.cuda.graph(graph):
                x += 1
            if kept:
                graph.instantiate()
            for _ in range(3):
                graph.replay()
            assert x.tolist() == [3.0, 3.0]
            assert isinstance(graph.pool(), tuple)
            with pytest.raises(UnsupportedError, match="raw_cuda_graph"):
                graph.raw_cuda_graph()
            graph.reset()

    spawn(program)


@pytest.mark.filterwarnings("ignore:The AccumulateGrad node:UserWarning")
def test_graphed_callables_compute_what_functions_do(spawn):
    """With gradients."""

    def program(rank):
        torch.cuda.set_device(rank)
        layer = torch.nn.Linear(2, 2).cuda()
        x = torch.ones(3, 2, device="cuda", requires_grad=True)
        with torch.no_grad():
            expected = layer(x)
        graphed = torch.cuda.make_graphed_callables(layer, (x,))
        torch.testing.assert_close(graphed(x), expected)

    spawn(program)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_compiled_functions_launch_their_kernels_in_ranks(spawn):
    """On the rank's device, with its numbers."""
    pytest.importorskip("triton")
    found = {}

    def program(rank):
        torch.cuda.set_device(rank)

        @torch.compile
        def function(x):
            return (x * 2 + rank).relu().sum()

        found[rank] = function(torch.ones(8, device="cuda")).item()

    spawn(program)
    assert found == {0: 16.0, 1: 24.0}


def test_an_operator_of_the_program_is_each_ranks_own(spawn):
    """Both ranks define one of the same name."""
    found = {}

    def program(rank):
        @torch.library.custom_op("simrank_releases::times", mutates_args=())
        def times(x: torch.Tensor) -> torch.Tensor:
            return x * (rank + 2)

        found[rank] = times(torch.ones(1)).item()

    spawn(program)
    assert found == {0: 2.0, 1: 3.0}


def test_groups_are_found_by_ranks_names_and_tags(spawn):
    """As torch registers them; 2.12 has no function for it."""

    def program(rank):
        dist.init_process_group("gloo")
        c10d = dist.distributed_c10d
        group = dist.new_group([0, 1], pg_options=None)
        name = c10d._get_process_group_name(group)
        assert c10d._resolve_process_group(name) is group
        tagged = c10d._new_group_with_tag([0, 1], pg_tag="mine")
        assert c10d._find_pg_by_ranks_and_tag("user:mine", [0, 1]) is tagged
        assert c10d._get_group_tag(tagged) == "mine"
        assert dist.get_backend(group) == "gloo"

    spawn(program)


def test_shardings_of_matrices_are_those_of_one_device(spawn):
    """DTensor's search for shardings, whose tables a release names otherwise."""

    def program(rank):
        from torch.distributed.tensor import Replicate, Shard, distribute_tensor

        mesh = dist.init_device_mesh("cuda", (2,))
        a, b = torch.arange(16.0).view(4, 4), torch.eye(4)
        product = distribute_tensor(a, mesh, [Shard(0)]) @ distribute_tensor(b, mesh, [Replicate()])
        assert product.placements == (Shard(0),)
        assert torch.equal(product.full_tensor().cpu(), a)
        assert product.view(-1).full_tensor().tolist() == a.flatten().tolist()

    spawn(program)


def test_generators_and_priorities_are_those_of_the_ranks_devices(spawn):
    """Also where the build has its own, which would ask a driver."""

    def program(rank):
        assert torch.cuda.Stream.priority_range() == (0, -5)
        assert len(torch.cuda.default_generators) == torch.cuda.device_count()
        torch.cuda.manual_seed_all(rank + 1)
        assert torch.cuda.default_generators[rank].initial_seed() == rank + 1

    spawn(program)


def test_the_host_waits_and_reads_as_before_the_first_use(spawn):
    """What asks the driver of a build for CUDA, as a rank's first use."""

    def program(rank):
        torch.cuda._sleep(1000)
        assert torch._C._cuda_getCurrentRawStream(0) == 0
        with pytest.raises(UnsupportedError, match="reset_peak_host_memory_stats"):
            torch.cuda.reset_peak_host_memory_stats()

    spawn(program)
