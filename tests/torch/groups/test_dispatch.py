"""Calls of process groups as torch's dispatcher shows them to modes and tensor subclasses."""

import shutil

import pytest
import torch
import torch.distributed as dist
from torch.distributed.tensor.debug import CommDebugMode
from torch.utils._python_dispatch import TorchDispatchMode

from simrank.errors import SpawnException, UnsupportedError
from simrank.torch.groups import dispatch
from tests.torch.collectives import all_gather_single, reduce_scatter_single

WORLD = 3
# Every call once, with what a member holds afterwards; member 1 is the root.
CALLS = {
    "allreduce_": lambda x, rank: dist.all_reduce(x),
    "allreduce_coalesced_": lambda x, rank: dist.all_reduce_coalesced([x]),
    "broadcast_": lambda x, rank: dist.broadcast(x, 1),
    "reduce_": lambda x, rank: dist.reduce(x, 1),
    "allgather_": lambda x, rank: dist.all_gather([x.clone() for _ in range(WORLD)], x),
    "_allgather_base_": lambda x, rank: all_gather_single(x.repeat(WORLD), x),
    "reduce_scatter_": lambda x, rank: dist.reduce_scatter(x, [x.clone() for _ in range(WORLD)]),
    "_reduce_scatter_base_": lambda x, rank: reduce_scatter_single(x, x.repeat(WORLD)),
    "alltoall_base_": lambda x, rank: dist.all_to_all_single(x, x.clone()),
    "alltoall_": lambda x, rank: dist.all_to_all(list(x.clone().chunk(3)), list(x.chunk(3))),
    "gather_": lambda x, rank: dist.gather(x, [x.clone()] * WORLD if rank == 1 else None, 1),
    "scatter_": lambda x, rank: dist.scatter(x, [x.clone()] * WORLD if rank == 1 else None, 1),
    "send": lambda x, rank: dist.send(x, 2) if rank == 1 else None,
    "recv_": lambda x, rank: dist.recv(x, 1) if rank == 2 else None,
}


class Seen(TorchDispatchMode):
    """Notes the operators of c10d."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        """Hand everything on."""
        if func.namespace == "c10d":
            self.names.append(func._opname)
        return func(*args, **(kwargs or {}))


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("backend", ["gloo", "nccl"])
def test_a_mode_sees_each_call_by_its_name_and_changes_nothing(spawn, backend):
    """The same values with and without; messages are those of the pair that exchanges one."""
    if backend == "nccl" and shutil.which("g++") is None:
        pytest.skip("no compiler for simulated devices")

    def program(rank):
        device = torch.device("cuda", rank) if backend == "nccl" else torch.device("cpu")
        dist.init_process_group(backend, device_id=device if backend == "nccl" else None)
        for name, call in {**CALLS, "both": messages}.items():
            if name in ("send", "recv_"):
                continue
            plain, seen = (torch.full((3,), rank + 1.0, device=device) for _ in range(2))
            call(plain, rank)
            with Seen() as mode:
                call(seen, rank)
            assert torch.equal(plain, seen), name
            expected = [name]
            if name == "both":
                expected = [[], ["send"], ["recv_"]][rank]
            assert mode.names == expected

    def messages(x, rank):
        CALLS["send"](x, rank)
        CALLS["recv_"](x, rank)

    spawn(program, WORLD)


def test_comm_debug_mode_counts_what_fsdp_and_programs_call(spawn):
    """As on real gloo processes."""
    from torch.distributed.fsdp import fully_shard

    def program(rank):
        dist.init_process_group("gloo")
        model = fully_shard(torch.nn.Linear(4, 4))
        with CommDebugMode() as mode:
            model(torch.ones(2, 4, requires_grad=True)).sum().backward()
            dist.all_reduce(torch.ones(1), op=dist.ReduceOp.MAX)
        counts = {str(name): count for name, count in mode.get_comm_counts().items()}
        assert counts == {
            "c10d._allgather_base_": 1,  # The outermost module keeps its parameters until backward.
            "c10d._reduce_scatter_base_": 1,
            "c10d.allreduce_": 1,
        }

    spawn(program, 2)


def test_the_method_has_the_reduction_and_the_options(spawn):
    """Which operators carry in a form that only C++ reads."""

    def program(rank):
        dist.init_process_group("gloo")
        x = torch.tensor([rank + 2.0])
        with Seen():
            work = dist.all_reduce(x, op=dist.ReduceOp.PRODUCT, async_op=True)
            work.wait()
            assert work.result()[0] is x
        assert x == 6

    spawn(program, 2)


def test_a_mode_may_hand_on_other_tensors_or_answer_itself(spawn):
    """What it hands on is what travels; what it answers, nobody else hears of."""

    class Doubles(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            if func._opname != "allreduce_":
                return func(*args, **(kwargs or {}))
            other = [tensor * 2 for tensor in args[0]]
            tensors, work = func(other, *args[1:])
            args[0][0].copy_(tensors[0])
            return args[0], work

    class Answers(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            if func._opname != "allreduce_":
                return func(*args, **(kwargs or {}))
            args[0][0].fill_(-1)
            return args[0], finished.boxed()

    finished = dist.Work()

    def program(rank):
        dist.init_process_group("gloo")
        x, y = torch.ones(1), torch.ones(1)
        with Doubles():
            dist.all_reduce(x)
        if rank == 0:
            with Answers():
                dist.all_reduce(y, async_op=True)
        assert (x.item(), y.item()) == (4, -1 if rank == 0 else 1)

    spawn(program, 2)


def test_a_tensor_subclass_sees_the_call(spawn):
    """An asynchronous result waits first; a DTensor is refused by torch's own words."""
    from torch.distributed._functional_collectives import all_reduce
    from torch.distributed.tensor import Replicate, distribute_tensor

    def program(rank):
        dist.init_process_group("gloo")
        pending = all_reduce(torch.ones(2), "sum", dist.group.WORLD)
        dist.all_reduce(pending)
        assert torch.equal(pending + 0, torch.full((2,), 4.0))
        mesh = dist.init_device_mesh("cpu", (2,))
        with pytest.raises(NotImplementedError, match=r"c10d\.allreduce_"):
            dist.all_reduce(distribute_tensor(torch.ones(2), mesh, [Replicate()]))

    spawn(program, 2)


def test_a_mismatch_under_a_mode_has_the_users_lines(spawn):
    """The dispatcher between is nobody's line."""

    def program(rank):
        dist.init_process_group("gloo")
        with Seen():
            dist.all_reduce(torch.ones(rank + 1))

    with pytest.raises(SpawnException) as raised:
        spawn(program, 2)
    text = str(raised.value)
    assert "test_dispatch.py" in text
    assert "all_reduce" in text
    assert "dispatched.py:" not in text.replace("test_dispatch.py:", "")


def test_torch_has_its_own_kernels_back_afterwards(spawn):
    """And every call stands in the table under an operator that torch has."""

    def program(rank):
        dist.init_process_group("gloo")
        dist.barrier()

    spawn(program)
    assert not dispatch._kernels.may_be
    assert "dispatched.py" not in torch._C._dispatch_dump("c10d::allreduce_")
    for name in dispatch._methods:
        assert hasattr(torch.ops.c10d, name)
    assert dispatch._methods.keys() >= CALLS.keys()


@pytest.mark.skipif(shutil.which("g++") is None, reason="no compiler for simulated devices")
def test_collectives_of_a_captured_graph_run_at_each_replay(spawn):
    """In their places, batches and messages too; what waits for them on the stream as well."""

    def program(rank):
        torch.cuda.set_device(rank)
        dist.init_process_group("nccl")
        x, peer = torch.ones(4, device="cuda"), 1 - rank
        y, got, kept = torch.zeros_like(x), torch.zeros_like(x), torch.ones_like(x)
        parts = [torch.zeros_like(x) for _ in range(2)]
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y.copy_(x * 2)
            work = dist.all_reduce(y, async_op=True)
            work.wait()
            z = y + 1
            dist.all_gather(parts, z)
            messages = [dist.P2POp(dist.isend, x, peer), dist.P2POp(dist.irecv, got, peer)]
            for each in dist.batch_isend_irecv(messages):
                each.wait()
            last = got + parts[1]
            dist.all_reduce(kept)
        assert torch.equal(kept, torch.ones_like(kept)), "it was captured, and has not run"
        for number in (10.0, 20.0):
            x.fill_(number + rank)
            graph.replay()
            assert torch.equal(y, torch.full_like(y, 4 * number + 2))
            assert torch.equal(parts[peer], z)
            assert torch.equal(last, z + number + peer)
        assert torch.equal(kept, torch.full_like(kept, 4.0))

    spawn(program, 2, races="error")


@pytest.mark.skipif(shutil.which("g++") is None, reason="no compiler for simulated devices")
def test_a_graph_is_not_replayed_inside_of_another(spawn):
    """By name; and a call on the host's tensors is no part of a graph."""

    def program(rank):
        torch.cuda.set_device(rank)
        dist.init_process_group("cpu:gloo,cuda:nccl")
        inner, host = torch.cuda.CUDAGraph(), torch.ones(1)
        x = torch.ones(1, device="cuda")
        with torch.cuda.graph(inner):
            x.add_(1)
            dist.all_reduce(host)
        inner.replay()
        assert (x.item(), host.item()) == (2, 2)
        with (
            pytest.raises(UnsupportedError, match="replayed in a captured graph"),
            torch.cuda.graph(torch.cuda.CUDAGraph()),
        ):
            inner.replay()

    spawn(program, 2)
