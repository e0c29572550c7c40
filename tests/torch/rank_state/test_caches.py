"""Caches and trackers of torch's libraries: each rank has its own."""

from __future__ import annotations

import gc
import shutil
import weakref
from dataclasses import dataclass

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch._library.opaque_object import register_opaque_type
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.elastic.rendezvous import rendezvous_handler_registry
from torch.distributed.rendezvous import register_rendezvous_handler
from torch.distributed.tensor import (
    DTensor,
    Replicate,
    Shard,
    _collective_utils,
    _random,
    distribute_tensor,
    rand,
)
from torch.distributed.tensor import _sharding_prop as propagation
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    loss_parallel,
    parallelize_module,
)
from torch.nn import functional as F  # noqa: N812 - torch's custom.
from torch.utils.flop_counter import FlopCounterMode, flop_registry, register_flop_formula

from simrank.torch.rank_state import sharding
from simrank.torch.releases import INSTALLED


def test_a_rank_has_fake_tensors_on_its_own_current_device(spawn):
    """In modes that torch itself enters, as DTensor does; a program's are refused."""
    fake_tensor = pytest.importorskip("torch._subclasses.fake_tensor")
    names = {"__name__": "torch.caller", "mode": fake_tensor.FakeTensorMode}
    exec("def within_mode(body):\n    with mode():\n        body()\n", names)  # noqa: S102

    def program(rank):
        torch.cuda.set_device(rank)

        def body():
            assert torch.empty(3, device="cuda").device.index == rank
            dist.init_process_group("nccl")
            assert torch.empty(3, device="cuda").neg().device.index == rank

        names["within_mode"](body)

    spawn(program, 2)


def test_profilers_of_fsdp_know_ranks_apart(spawn):
    """One may be entered on every rank at a time, and on a rank once."""
    profiler = pytest.importorskip("torch.distributed.fsdp._debug_utils").SimpleProfiler

    def program(rank):
        dist.init_process_group("gloo")
        with profiler.profile(profiler.Type.ALL):
            dist.barrier()
            with (
                pytest.raises(AssertionError, match="already being profiled"),
                profiler.profile(profiler.Type.ALL),
            ):
                pass

    spawn(program)
    assert not profiler.profiling


def test_random_dtensors_are_equal_on_all_ranks_where_they_are_replicated(spawn):
    """Every rank takes part as they agree on a state, though each has seeded by itself."""
    drawn = {}

    def program(rank):
        torch.cuda.set_device(rank)
        mesh = init_device_mesh("cuda", (4,))
        torch.manual_seed(rank)
        tensor = rand(2, 3, device_mesh=mesh, placements=[Replicate()])
        drawn[rank] = tensor.to_local().tolist(), id(_random._rng_tracker)

    spawn(program, 4)
    assert len({str(values) for values, _ in drawn.values()}) == 1
    assert len({tracker for _, tracker in drawn.values()}) == 4
    assert _random._rng_tracker is None


def test_uneven_shards_of_a_mesh_of_two_dimensions_are_gathered_whole(spawn):
    """What a rank sends depends on its place in the mesh."""

    def program(rank):
        mesh = init_device_mesh("cpu", (2, 2))
        given = torch.arange(5.0)
        tensor: DTensor = distribute_tensor(given, mesh, [Shard(0), Shard(0)])
        assert tensor.redistribute(mesh, [Replicate(), Replicate()]).to_local().equal(given)

    spawn(program, 4)


def test_a_tensor_of_the_main_program_is_planned_as_ever():
    """Outside ranks everything is torch's own."""
    assert not dist.is_initialized()


# ---- DTensor's searches for shardings, shared by ranks whose meshes are alike ----

if shutil.which("g++") is None:
    pytest.skip("no compiler for simulated devices", allow_module_level=True)


def _model():
    torch.manual_seed(0)
    return nn.ModuleDict(
        {"tokens": nn.Embedding(64, 16), "up": nn.Linear(16, 64), "down": nn.Linear(64, 16)}
    ).cuda()


def _train(rank, found):
    """Train a tensor-parallel model with an embedding in parts, in groups of two ranks."""
    torch.cuda.set_device(rank)
    mesh = init_device_mesh("cuda", (2, 2), mesh_dim_names=("data", "model"))["model"]
    model = _model()
    plan = {
        "tokens": RowwiseParallel(input_layouts=Replicate()),
        "up": ColwiseParallel(),
        "down": RowwiseParallel(),
    }
    parallelize_module(model, mesh, plan)
    tokens = torch.arange(8, device="cuda") * (rank // 2 + 1)
    losses = []
    for _ in range(2):
        loss = model["down"](model["up"](model["tokens"](tokens)).relu()).square().mean()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        losses.append(loss.item())
    uneven = distribute_tensor(torch.arange(5, device="cuda"), mesh, [Shard(0)])
    shapes = [tuple(each.to_local().shape) for each in (uneven, uneven.new_ones(5))]
    found[rank] = (losses, shapes, uneven.full_tensor().tolist())


def test_results_are_those_of_separate_searches(spawn, monkeypatch):
    """Values of an embedding in parts, which has a mask of its rank, and uneven shards."""
    shared, separate = {}, {}
    spawn(_train, 4, shared)
    monkeypatch.setattr(sharding, "_is_of_rank", lambda *_: True)
    spawn(_train, 4, separate)
    assert shared == separate
    assert shared[0][0] != shared[2][0]
    assert shared[0][1] == [(3,), (3,)]
    assert shared[1][1] == [(2,), (2,)]


def test_one_rank_searches_for_all(spawn, monkeypatch):
    """A foreach operation of many parameters is looked at once, and not by every rank."""
    searched = []
    kind = propagation.ShardingPropagator
    original = kind._propagate_tensor_meta_non_cached

    def counted(self, schema):
        searched.append(str(schema.op))
        return original(self, schema)

    monkeypatch.setattr(kind, "_propagate_tensor_meta_non_cached", counted)

    def program(rank):
        torch.cuda.set_device(rank)
        mesh = init_device_mesh("cuda", (4,))
        x = DTensor.from_local(torch.ones(4, 4, device="cuda"), mesh, [Shard(0)])
        assert (x * 2).to_local().sum().item() == 32
        torch._foreach_mul_([x] * 3, 2.0)

    spawn(program, 4)
    assert searched.count("aten.mul.Tensor") == 1
    assert searched.count("aten._foreach_mul_.Scalar") == 1


# ---- handlers of DTensor's operators: each rank adds and takes away its own ----


def test_a_rank_that_leaves_loss_parallel_takes_it_from_nobody(spawn):
    """One is in the midst of its block while another enters, and while another leaves."""

    def program(rank):
        dist.init_process_group("gloo")
        mesh = init_device_mesh("cpu", (4,))
        torch.manual_seed(0)
        x, labels = torch.randn(4, 8), torch.randint(0, 8, (4,))
        sharded = distribute_tensor(x.clone().requires_grad_(), mesh, [Shard(1)])
        with loss_parallel():
            loss = F.cross_entropy(sharded, labels)
            if rank % 2:
                dist.barrier()
            loss.backward()
        if rank % 2 == 0:
            dist.barrier()
        alone = x.clone().requires_grad_()
        F.cross_entropy(alone, labels).backward()
        assert torch.allclose(sharded.grad.full_tensor(), alone.grad)

    outside = DTensor._op_dispatcher._custom_op_handlers
    before = dict(outside)
    spawn(program, 4)
    assert DTensor._op_dispatcher._custom_op_handlers is outside
    assert outside == before


def test_handlers_of_a_rank_begin_as_the_process_has_them(spawn):
    """What it puts there is its own, also where it puts another dictionary."""
    dispatcher = DTensor._op_dispatcher

    def program(rank):
        assert dispatcher._custom_op_handlers == before
        dispatcher._custom_op_handlers["of a rank"] = rank
        dist.init_process_group("gloo")
        dist.barrier()
        assert dispatcher._custom_op_handlers["of a rank"] == rank
        dispatcher._custom_op_handlers = before
        dispatcher._custom_op_handlers.pop(next(iter(before)))
        dist.barrier()
        assert len(dispatcher._custom_op_handlers) == len(before) - 1

    before = dict(dispatcher._custom_op_handlers)
    spawn(program)
    assert dispatcher._custom_op_handlers == before


@dataclass(frozen=True)
class Name:
    """A value that tracing may keep whole."""

    value: int

    def __fx_repr__(self):  # noqa: D105 - torch's protocol
        return f"Name({self.value!r})", {"Name": Name}


def registers(rank):
    dist.init_process_group("gloo")
    handler, formula = lambda *_, **__: rank, lambda *_, **__: 100 + rank
    own = type("Name", (Name,), {"__module__": __name__})
    register_opaque_type(own, typ="value", hoist=True)
    register_rendezvous_handler("mine", handler)
    rendezvous_handler_registry.register("mine", handler)
    register_flop_formula(torch.ops.aten.bincount)(formula)
    torch.serialization.register_package(7, lambda _: f"tag {rank}", lambda *_: None)
    with pytest.raises(RuntimeError, match="already registered"):
        register_rendezvous_handler("mine", handler)
    with pytest.raises(RuntimeError, match="already registered"):
        register_rendezvous_handler("env", handler)
    with pytest.raises(RuntimeError, match="already registered"):
        register_opaque_type(own, typ="value", hoist=True)
    dist.barrier()
    assert dist.rendezvous("mine://somewhere", 0, 1) == rank
    with FlopCounterMode(display=False) as counter:
        torch.bincount(torch.tensor([1]))
    assert counter.get_total_flops() == 100 + rank
    storage = torch.ones(1).untyped_storage()
    assert torch.serialization.location_tag(storage) == f"tag {rank}"


@pytest.mark.filterwarnings("ignore")
def test_each_rank_may_register_under_the_same_names(spawn):
    """In torch's registries; a second time on one rank is refused as in a process."""
    for _ in range(2):  # C++ keeps some of the names.
        spawn(registers)
    assert torch.ops.aten.bincount not in flop_registry
    assert 7 not in [entry[0] for entry in torch.serialization._package_registry]


def compiles(rank):
    dist.init_process_group("gloo")
    torch._dynamo.register_backend(name="mine")(lambda graph, _: lambda x: [x + rank])
    dist.barrier()
    assert torch.compile(lambda x: x * 2, backend="mine")(torch.zeros(1)).item() == rank


@pytest.mark.slow
def test_each_rank_may_register_a_compiler_under_the_same_name(spawn):
    """Dynamo calls the running rank's."""
    spawn(compiles)


def test_what_torch_keeps_of_a_mesh_is_kept_as_long_as_its_rank(spawn):
    """Costs by mesh, and shapes; a mesh holds its groups, and they the Context."""

    def program(rank):
        dist.init_process_group("gloo")
        mesh = init_device_mesh("cpu", (2,))
        found = [_collective_utils.MeshTopoInfo.build_from_mesh(mesh) for _ in range(2)]
        assert found[0] is found[1]
        x = distribute_tensor(torch.ones(4, 8), mesh, [Shard(1)])
        if INSTALLED > (2, 12):  # Which itself keeps each DTensor that a block like this makes.
            with loss_parallel():
                F.cross_entropy(x, torch.zeros(4, dtype=torch.int64))

    context = weakref.ref(spawn(program))
    gc.collect()
    assert context() is None
