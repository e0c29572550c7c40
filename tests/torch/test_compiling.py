"""torch.compile in ranks: traced, guarded and compiled as by processes, equal to eager."""

import importlib
from collections import Counter
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn import functional as F  # noqa: N812 - torch's habit

import simrank
from simrank.multiprocessing.script import run_script

# A second for each, as Dynamo takes; those of many graphs are slow.
pytestmark = pytest.mark.filterwarnings("ignore")  # torch's own, of its imports and of TF32.

VOCABULARY, WIDTH, LENGTH = 64, 32, 16


class Block(nn.Module):
    """A transformer's block, small."""

    def __init__(self):
        super().__init__()
        self.norm, self.norm_of_mlp = nn.RMSNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))
        self.up, self.gate = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(WIDTH, 2 * WIDTH)
        self.down = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x):
        h = self.norm(x)
        heads = (w(h).unflatten(-1, (-1, 8)).transpose(1, 2) for w in (self.q, self.k, self.v))
        values = F.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.o(values.transpose(1, 2).flatten(-2))
        h = self.norm_of_mlp(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class Model(nn.Module):
    """Two blocks between an embedding and a head."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens):
        h = self.embedding(tokens)
        for block in self.blocks:
            h = block(h)
        return self.head(h)


def _ddp(model, compiled, mesh):
    for block in model.blocks:
        compiled(block)
    return nn.parallel.DistributedDataParallel(model)


def _ddp_outside(model, compiled, mesh):
    """Dynamo's optimizer of DDP splits the graph at its buckets."""
    model = nn.parallel.DistributedDataParallel(model, bucket_cap_mb=1)
    compiled(model)
    return model


def _fsdp(model, compiled, mesh):
    for block in model.blocks:
        compiled(block)
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def _tp(model, compiled, mesh):
    columns, rows = ("q", "k", "v", "up", "gate"), ("o", "down")
    plan = {name: ColwiseParallel() for name in columns} | {n: RowwiseParallel() for n in rows}
    for block in model.blocks:
        parallelize_module(block, mesh, plan)
        compiled(block)
    return model


def _losses(rank, losses, layout, backend):
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl")
    world = dist.get_world_size()
    torch.manual_seed(0)
    model = Model().cuda()

    def compiled(module):
        if backend is not None:
            module.compile(backend=backend)

    model = layout(model, compiled, init_device_mesh("cuda", (world,)))
    optimizer = torch.optim.AdamW(model.parameters(), 0.01, foreach=False)
    torch.manual_seed(1 if layout is _tp else rank)
    for _ in range(3):
        tokens = torch.randint(0, VOCABULARY, (2, LENGTH), device="cuda")
        loss = F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses[rank].append(loss.item())
    dist.destroy_process_group()


@pytest.mark.slow
@pytest.mark.parametrize("nprocs", [2, 4])
@pytest.mark.parametrize("layout", [_ddp, _ddp_outside, _fsdp, _tp])
def test_three_compiled_steps_equal_eager_ones(spawn, layout, nprocs):
    """Forward, backward and optimizer, in fp32, up to the rounding of fused sums."""
    eager, compiled = ([[] for _ in range(nprocs)] for _ in range(2))
    spawn(_losses, nprocs, eager, layout, None)
    spawn(_losses, nprocs, compiled, layout, "inductor")
    assert len(compiled[0]) == 3
    torch.testing.assert_close(torch.tensor(compiled), torch.tensor(eager), atol=1e-5, rtol=1e-5)


def test_compiled_kernels_are_launched_and_fused(spawn):
    """Six operations on 64 MiB take the time of one pass."""

    def program(rank):
        def many(x):
            return (x.sin() * 2 + 1).cos().exp() - x

        x = torch.randn(2**22, device="cuda")
        times = []
        for run in (many, torch.compile(many)):
            run(x)
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            y = run(x)
            end.record()
            torch.cuda.synchronize()
            times.append(start.elapsed_time(end))
            results.append(y)
        torch.testing.assert_close(results[-2], results[-1])
        assert 4 < times[0] / times[1] < 8, times

    results = []
    spawn(program, 1)


def test_compiling_takes_no_simulated_time(spawn):
    """As if the code had been compiled before: a first step is not a slow one."""

    def program(rank):
        def double(x):
            return x * 2

        x = torch.ones(4, device="cuda")
        run = torch.compile(double, backend="aot_eager")
        torch.cuda.synchronize()
        before = time.perf_counter()
        run(x)
        torch.cuda.synchronize()
        assert time.perf_counter() - before < 1e-3

    import time

    spawn(program)


def test_a_graph_break_raises_where_the_full_graph_is_asked_for(spawn):
    """With torch's own error, which names the line."""
    from torch._dynamo.exc import Unsupported

    def program(rank):
        @torch.compile(fullgraph=True, backend="eager")
        def function(x):
            torch._dynamo.graph_break()
            return x + 1

        with pytest.raises(Unsupported, match=r"test_compiling\.py") as caught:
            function(torch.ones(2, device="cuda"))
        messages.append(str(caught.value))

    messages = []
    spawn(program)
    assert len(messages) == 2
    assert "graph_break" in messages[0]


def test_each_rank_has_its_own_guards_and_recompilations(spawn):
    """A custom backend is called once a rank and shape; equal shapes are found in the cache."""

    def program(rank):
        def backend(graph, inputs):
            compiled[rank].append(len([n for n in graph.graph.nodes if n.op == "call_function"]))
            return graph.forward

        @torch.compile(backend=backend, dynamic=False)
        def function(x):
            return (x + 1) * 2

        for size in (2, 3, 2, 3, 2 + rank):
            assert function(torch.ones(size, device="cuda")).tolist() == [4.0] * size
            dist.barrier()

    def start(rank):
        torch.cuda.set_device(rank)
        dist.init_process_group("nccl")
        program(rank)
        dist.destroy_process_group()

    compiled = [[], [], [], []]
    spawn(start, 4)
    assert compiled == [[2, 2], [2, 2], [2, 2, 2], [2, 2, 2]]


def test_the_limit_of_recompilations_is_a_ranks_own(spawn):
    """Twelve ranks compile one function of a library without reaching it."""

    def program(rank):
        torch.cuda.set_device(rank % 8)
        function = torch.compile(F.silu, backend="eager", fullgraph=True)
        assert function(torch.zeros(2, device="cuda")).tolist() == [0, 0]

    spawn(program, 12)


def test_a_hook_of_all_modules_is_called_by_compiled_ones(spawn):
    """Of those that its rank compiles, before and after it is there."""

    def program(rank):
        torch.cuda.set_device(rank)
        dist.init_process_group("nccl")
        model = nn.Linear(4, 4, device="cuda")
        model.compile(backend="eager")
        x = torch.ones(4, device="cuda")
        y = model(x)
        if rank == 1:
            nn.modules.module.register_module_forward_hook(lambda *call: call[-1] + 1)
        dist.barrier()
        assert torch.equal(model(x), y + rank)
        dist.destroy_process_group()

    spawn(program)


def test_ranks_share_what_inductor_compiles(spawn, tmp_path, monkeypatch):
    """One miss for all of them; each runs on its own device."""
    from torch._dynamo.utils import counters

    def program(rank):
        torch.cuda.set_device(rank)

        @torch.compile
        def function(x):
            return (x.sin() + torch.ones(6, device=x.device)).sum()

        y = function(torch.zeros(6, device="cuda"))
        assert (y.item(), y.device.index) == (6, rank)
        found.update(counters["inductor"])

    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    found = Counter()
    spawn(program, 4)
    assert (found["fxgraph_cache_miss"], found["fxgraph_cache_hit"]) == (1, 3)


def test_a_graph_of_two_devices_is_not_shared(spawn, tmp_path, monkeypatch):
    """Its code names both."""
    from torch._dynamo.utils import counters

    def program(rank):
        torch.cuda.set_device(rank)
        other = (rank + 1) % 2

        @torch.compile
        def function(x):
            return x.sin(), torch.ones(6, device=f"cuda:{other}") * 2

        x, y = function(torch.zeros(6, device="cuda"))
        assert (x.device.index, y.device.index) == (rank, other)
        found.update(counters["inductor"])

    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    found = Counter()
    spawn(program, 2)
    assert found["fxgraph_cache_miss"] == 2


def test_shapes_become_dynamic_as_in_a_process(spawn):
    """The second size compiles for all sizes."""

    def program(rank):
        def backend(graph, inputs):
            compiled[rank].append(graph)
            return graph.forward

        function = torch.compile(lambda x: x * 2, backend=backend)
        for size in (3, 4, 5, 6):
            assert function(torch.ones(size, device="cuda")).numel() == size

    compiled = [[], []]
    spawn(program)
    assert [len(graphs) for graphs in compiled] == [2, 2]


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["reduce-overhead", "max-autotune"])
def test_modes_give_the_same_values(spawn, mode):
    """A product's candidates are compared by simulated time; later calls are one launch each."""

    def program(rank):
        model = nn.Sequential(*(nn.Linear(32, 32) for _ in range(3))).cuda()
        compiled = torch.compile(model, mode=mode)
        outputs = []
        for _ in range(3):
            x = torch.randn(8, 32, device="cuda")
            outputs.append((compiled(x), model(x)))
        for found, expected in outputs:  # None is overwritten by a later call.
            torch.testing.assert_close(found, expected)

    spawn(program, 1)


@pytest.mark.slow
def test_one_launch_of_a_graph_is_shorter_than_its_kernels(spawn):
    """The host of a call with reduce-overhead is free at once."""

    def program(rank):
        def many(x):
            return [x[:, i].sort()[0] for i in range(8)]

        x = torch.randn(64, 8, device="cuda")
        for mode in (None, "reduce-overhead"):
            compiled = torch.compile(many, mode=mode)
            for _ in range(3):
                compiled(x)
            torch.cuda.synchronize()
            before = time.perf_counter()
            compiled(x)
            took.append(time.perf_counter() - before)

    import time

    took = []
    spawn(program, 1)
    assert took[1] < took[0] / 2


@pytest.mark.slow
def test_devices_of_another_cluster_are_told_apart(spawn, tmp_path, monkeypatch):
    """What inductor knows of a device is that of the running Context."""

    def program(rank, cores):
        def scaled(x):
            return x * 2

        torch.compile(scaled)(torch.ones(2, device="cuda"))
        from torch._inductor.runtime.hints import DeviceProperties

        device = torch.device("cuda", 0)
        found.append(DeviceProperties.create(device).multi_processor_count)

    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    found = []
    for cluster in ("hgx_h100", "hgx_a100", "hgx_h100"):
        with simrank.Context(cluster) as context:
            context.multiprocessing.spawn(program, (0,), 1, share_args=True)
    assert found == [132, 108, 132]


def test_reset_forgets_compiled_code(spawn):
    """`torch._dynamo.reset()` in a rank; `explain` counts graphs."""

    def program(rank):
        def backend(graph, inputs):
            compiled[rank].append(graph)
            return graph.forward

        def function(x):
            y = x + 1
            torch._dynamo.graph_break()
            return y * 2

        x = torch.ones(2, device="cuda")
        assert torch._dynamo.explain(function)(x).graph_break_count == 1
        torch.compile(function, backend=backend)(x)
        torch._dynamo.reset()
        torch.compile(function, backend=backend)(x)

    compiled = [[]]
    spawn(program, 1)
    assert len(compiled[0]) == 4


def test_a_rank_resets_its_own_code_alone(spawn):
    """The others go on with theirs, in the midst of a step."""

    def program(rank):
        def backend(graph, inputs):
            compiled[rank].append(graph)
            return graph.forward

        torch.cuda.set_device(rank)
        dist.init_process_group("nccl", timeout=timedelta(seconds=60))
        function = torch.compile(lambda x: x * 2, backend=backend)
        for _ in range(4):
            assert function(torch.ones(2, device="cuda")).sum().item() == 4
            if rank == 0:
                torch._dynamo.reset()
            dist.barrier()
        dist.destroy_process_group()

    compiled = [[], []]
    spawn(program)
    assert [len(graphs) for graphs in compiled] == [4, 1]


def test_a_stance_is_a_ranks_own(spawn):
    """Set before anything is compiled, too."""

    def program(rank):
        def backend(graph, inputs):
            compiled[rank].append(graph)
            return graph.forward

        torch.cuda.set_device(rank)
        dist.init_process_group("nccl")
        if rank == 0:
            torch.compiler.set_stance("force_eager")
        dist.barrier()
        torch.compile(lambda x: x * 2, backend=backend)(torch.ones(2, device="cuda"))
        dist.destroy_process_group()

    compiled = [[], []]
    spawn(program)
    assert [len(graphs) for graphs in compiled] == [0, 1]


def test_a_time_limit_of_its_own_does_not_hinder_a_cached_graph(spawn):
    """Where the graph comes from the cache, torch would lengthen the limit."""

    def program(rank):
        torch.cuda.set_device(rank)
        dist.init_process_group("nccl", timeout=timedelta(seconds=60))
        assert torch.compile(torch.sin)(torch.zeros(2, device="cuda")).sum().item() == 0
        dist.destroy_process_group()

    spawn(program)


@pytest.mark.slow
def test_cpu_tensors_are_compiled_as_in_a_process(spawn):
    """By inductor's C++, which asks C's environment."""

    def program(rank):
        x = torch.arange(4.0)
        torch.testing.assert_close(torch.compile(lambda x: x.sin() + 1)(x), x.sin() + 1)

    spawn(program)


def test_a_patch_of_inductors_settings_is_a_ranks_own(spawn):
    """It finds them by attribute, and takes them back in any order."""
    from unittest import mock

    import torch._inductor.config as config

    def program(rank):
        torch.cuda.set_device(rank)
        dist.init_process_group("nccl")
        with mock.patch.object(config.triton, "cudagraphs", True):
            dist.barrier()
            assert config.triton.cudagraphs
        dist.barrier()
        assert not config.triton.cudagraphs
        dist.destroy_process_group()

    spawn(program)


def test_functions_run_as_they_are_written_if_asked(spawn, monkeypatch):
    """SIMRANK_COMPILE=eager, which the summary says; the module is where `_orig_mod` is."""
    monkeypatch.setenv("SIMRANK_COMPILE", "eager")

    def program(rank):
        def double(x):
            calls.append(rank)
            return x * 2

        assert torch.compile(double)(torch.ones(1)).item() == 2
        assert torch.compile(mode="max-autotune")(double)(torch.ones(1)).item() == 2
        model = nn.Linear(2, 2)
        compiled = torch.compile(model)
        assert compiled._orig_mod is model
        assert torch.equal(compiled(torch.ones(2)), model(torch.ones(2)))

    calls = []
    context = spawn(program)
    assert sorted(calls) == [0, 0, 1, 1]
    assert [note for note in context.notes if "SIMRANK_COMPILE=eager" in note]


def test_contexts_leave_dynamo_s_rules_as_they_are():
    """Each would make the expression longer that Dynamo matches with every file."""
    rules = importlib.import_module("torch._dynamo.trace_rules")
    importlib.import_module("torch._dynamo.convert_frame")
    lengths = set()
    for _ in range(3):
        with simrank.Context.for_ranks(2) as ctx:
            ctx.multiprocessing.spawn(int, nprocs=1)
        lengths.add(len(rules.SKIP_DIRS))
    assert len(lengths) == 1


OWN_MODULE = """
from threading import local

KEPT = local()


def stack():
    found = getattr(KEPT, "stack", None)
    if found is None:
        found = KEPT.stack = []
    return found
"""
USES_OWN_MODULE = """
import own_module
import torch
import torch.distributed as dist


class Layer(torch.nn.Module):
    def forward(self, x):
        return x * (len(own_module.stack()) + 1 + dist.get_rank())


dist.init_process_group("gloo")
own_module.stack()
layer = Layer()
layer.compile(backend="eager")
for _ in range(2):
    dist.barrier()
    print(dist.get_rank(), layer(torch.ones(1)).item(), flush=True)
    own_module.stack().append(1)
"""


def test_frames_of_torch_that_ranks_compile_read_each_ranks_own_modules(tmp_path, capfd):
    """Torch's frames have the same globals for all ranks, where Dynamo puts what guards read."""
    (tmp_path / "own_module.py").write_text(OWN_MODULE)
    (tmp_path / "program.py").write_text(USES_OWN_MODULE)
    with simrank.Context() as ctx:
        run_script(ctx.program, str(tmp_path / "program.py"), [], 3)
    lines = capfd.readouterr().out.splitlines()
    assert sorted(lines) == ["0 1.0", "0 2.0", "1 2.0", "1 3.0", "2 3.0", "2 4.0"]
