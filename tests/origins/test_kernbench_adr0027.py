"""kernbench2's ADR-0027: ranks are greenlets over a discrete-event engine.

The tests follow its numbers: decisions (D0.1, ...) and tests (T1, ...). The README beside this
file has the table; `docs/how-it-works.md` has the mechanism as one short program.
"""

import inspect
from pathlib import Path

import numpy as np
import pytest
from greenlet import getcurrent, greenlet

import simrank
import simrank.distributed as dist
from simrank import bench, tp
from simrank.config import bench_config_from_mapping, load_bench_config
from simrank.device.tensors.tensor import HOST_READS
from simrank.engine import Handle
from simrank.errors import (
    ConfigError,
    DeadlockError,
    HubError,
    ProcessRaisedException,
    SpawnException,
)

KERNELS = Path(__file__).parents[2] / "benches" / "kernels"


class Switches:
    """Counts the tasks that the hub resumes."""

    def __init__(self):
        self.count = 0

    def on_task_switch(self, _task, _time_ps):
        self.count += 1

    def on_host(self, *_):
        pass


def test_no_wait_is_pending_at_the_start(ctx):
    """D0.1: a new Context has an empty list of pending waits."""
    assert ctx.pending_waits == []


def test_a_wait_in_a_rank_switches_to_the_hub(run):
    """D0.2, T3.a: the rank is listed as waiting, and another rank runs meanwhile."""
    order, waiting = [], []

    def program(rank, ctx):
        if rank == 0:
            ctx.wait(ctx.timer(1000))
        else:
            waiting.extend(task.rank for task in ctx.pending_waits)
        order.append(rank)

    run(program, 2)
    assert waiting == [0]
    assert order == [1, 0]


def test_a_wait_for_a_complete_handle_does_not_switch(run):
    """D0.2: the rank goes on at once, at the same simulated time."""
    switches = Switches()

    def program(rank, ctx):
        handle = ctx.timer(1000)
        ctx.wait(handle)
        before = switches.count, ctx.now_ps
        for _ in range(100):
            ctx.wait(handle)
        assert (switches.count, ctx.now_ps) == before

    with simrank.Context("hgx_h100") as ctx:
        ctx.observe(switches)
        ctx.multiprocessing.spawn(program, (ctx,), nprocs=1)
    assert switches.count == 2  # The start of the rank, and the completion.


def test_the_handle_is_complete_when_a_rank_resumes(run):
    """D0.3, T3.b: the clock shows the time of completion."""

    def program(rank, ctx):
        handle = ctx.timer(1000 * (rank + 1))
        ctx.wait(handle)
        assert handle.complete
        assert ctx.now_ps == handle.complete_ps == 1000 * (rank + 1)

    run(program, 3)


def test_repeated_waits_drive_the_engine_once(ctx):
    """D0.4, T3.f: later waits leave the clock and other handles alone, on the hub and in a rank."""
    handle, later = ctx.timer(10), ctx.timer(1000)
    ctx.wait(handle)
    ctx.wait(handle)
    assert ctx.now_ps == 10
    assert not later.complete

    def program(rank):
        before_ps = ctx.now_ps
        ctx.wait(handle)
        assert ctx.now_ps == before_ps

    ctx.multiprocessing.spawn(program, nprocs=2)


def test_no_wait_is_pending_after_a_failure(ctx):
    """D0.4, T3.g: pending waits and operations are dropped, and the next spawn runs as the first.

    Each rank that raises at that time is in `errors`.
    """

    def failing(rank):
        dist.init_process_group()
        dist.all_reduce(ctx.ones(2**20), async_op=True)
        if rank < 2:
            raise ValueError(rank)
        dist.barrier()

    def working(rank):
        dist.init_process_group()
        x = ctx.ones(4)
        dist.all_reduce(x)
        assert x.tolist() == [4] * 4

    for _ in range(3):
        with pytest.raises(SpawnException) as caught:
            ctx.multiprocessing.spawn(failing, nprocs=4)
        assert sorted(caught.value.errors) == [0, 1]
        assert ctx.pending_waits == []
        assert not ctx.engine.pending
        assert all(device.sms.held == 0 for device in ctx.devices)
        ctx.multiprocessing.spawn(working, nprocs=4)


def test_no_wait_is_pending_after_a_deadlock(ctx):
    """D0.4: waiting ranks are ended; ADR-0027 gives up after 20 rounds, simrank has a report."""

    def hanging(rank):
        dist.init_process_group()
        if rank:
            dist.barrier()

    for _ in range(2):
        with pytest.raises(DeadlockError, match="ranks 1-3: barrier"):
            ctx.multiprocessing.spawn(hanging, nprocs=4)
        assert ctx.pending_waits == []
    ctx.multiprocessing.spawn(lambda rank: ctx.ones(1).item(), nprocs=4)


def test_ranks_resume_at_their_own_completion_not_in_rounds(run):
    """D0.4: simrank has no drain order; the order of completion decides."""
    order = []

    def program(rank, ctx):
        ctx.wait(ctx.timer(1000 * (4 - rank)))
        order.append((ctx.now_ps, rank))

    run(program, 4)
    assert order == [(1000, 3), (2000, 2), (3000, 1), (4000, 0)]


@pytest.mark.parametrize(
    "read", [lambda x: x.numpy(), lambda x: x.tolist(), lambda x: x[x > 0], repr, float]
)
def test_a_host_read_waits_for_the_writers_of_its_tensor(run, read):
    """D0.5, T5: after the read the kernel that writes the tensor has ended."""

    def program(rank, ctx):
        x = ctx.ones(1)
        assert ctx.now_ps == 0
        read(x)
        assert ctx.now_ps > 0

    run(program, 1)


def test_a_host_read_waits_for_no_other_tensor(run):
    """D0.5: the barrier of ADR-0027 is global, simrank's has one tensor."""

    def program(rank, ctx):
        small, large = ctx.ones(2), ctx.empty(2**28)
        with ctx.stream(ctx.Stream()):
            large.fill_(1)  # Writes 1 GiB, which takes more than 300 us.
        assert small.tolist() == [1, 1]
        assert ctx.now_ps < 300_000_000

    run(program, 1, data=False)


def test_a_host_read_does_not_wait_for_a_collective_of_another_tensor(run):
    """D0.5: a pending collective is no part of the barrier; waiting for it would be a deadlock."""

    def program(rank, ctx):
        dist.init_process_group()
        x, y = ctx.ones(4), ctx.full((4,), float(rank))
        if rank == 0:
            with ctx.stream(ctx.Stream()):
                work = dist.all_reduce(x, async_op=True)
            assert y.tolist() == [0.0] * 4  # Rank 1 calls all_reduce only after this send.
            dist.send(y, 1)
            work.wait()
        else:
            dist.recv(y, 0)
            dist.all_reduce(x)
        assert x.tolist() == [2.0] * 4

    run(program, 2, races="off")  # On a GPU this is a race.


def test_the_target_of_a_copy_is_no_barrier(run):
    """D0.5: a write barrier there would wait for other ranks, and deadlock."""

    def program(rank, ctx):
        dist.init_process_group()
        x = ctx.ones(4)
        if rank == 0:
            work = dist.all_reduce(x, async_op=True)
            with ctx.stream(ctx.Stream()):
                x.copy_(ctx.zeros(4))
            assert not work.is_completed()
            dist.barrier()
        else:
            dist.all_reduce(x)
            dist.barrier()

    run(program, 2, races="off")  # On a GPU this is a race.


def test_a_copy_to_the_host_waits_for_its_source(run):
    """D0.5: `copy_` has a barrier on the side of its source."""

    def program(rank, ctx):
        x, on_host = ctx.ones(4), ctx.zeros(4, device="cpu")
        assert ctx.now_ps == 0
        on_host.copy_(x)
        assert ctx.now_ps > 0
        assert on_host.tolist() == [1.0] * 4

    run(program, 1)


def test_only_the_hub_drives_the_engine(run):
    """D0.7: a rank that tries gets an error."""

    def program(rank, ctx):
        with pytest.raises(HubError):
            ctx.engine.step()
        with pytest.raises(HubError):
            ctx.drain()

    run(program, 1)


def test_a_kernel_that_a_rank_starts_has_the_hub_as_its_parent(run):
    """D0.7, T3.d: so it is no orphan: it goes on after the rank has ended."""
    parents, done = [], []

    def program(rank, ctx):
        def kernel():
            parents.append(getcurrent().parent)
            ctx.wait(ctx.timer(10**6))
            done.append((rank, ctx.now_ps))

        ctx.start(kernel, "kernel")

    context = run(program, 2)
    assert parents == [context.engine.hub] * 2
    assert sorted(done) == [(0, 10**6), (1, 10**6)]


def test_all_ranks_wait_before_time_moves(run):
    """T3.c: at the first completion every rank is in `pending_waits`."""
    waiting = []

    def program(rank, ctx):
        handle = ctx.timer(1000)
        if rank == 0:
            handle.on_complete(lambda: waiting.extend(ctx.pending_waits))
        assert ctx.now_ps == 0
        ctx.wait(handle)

    run(program, 4)
    assert [task.rank for task in waiting] == [0, 1, 2, 3]


def test_a_greenlet_that_spawn_did_not_start_may_wait(ctx):
    """T3.c: the running greenlet decides, not a registry; its parent becomes the hub."""
    done = []
    handle = ctx.timer(100)

    def body():
        ctx.wait(handle)
        done.append(ctx.now_ps)

    bare = greenlet(body)
    bare.switch()
    assert not done
    assert len(ctx.pending_waits) == 1
    assert bare.parent is ctx.engine.hub
    ctx.drain()
    assert done == [100]
    assert bare.dead


def test_a_greenlet_of_a_rank_does_not_hold_the_rank(run):
    """T3.c: the rank that switched into it goes on at the same simulated time."""
    order = []

    def program(rank, ctx):
        handle = ctx.timer(100)
        bare = greenlet(lambda: (ctx.wait(handle), order.append("bare")))
        bare.switch()
        order.append("rank")
        assert ctx.now_ps == 0
        ctx.wait(handle)

    run(program, 1)
    assert order[0] == "rank"
    assert "bare" in order


def test_spawn_has_the_signature_of_torch(ctx):
    """D1, T4: on the module and, bound to one Context, on `ctx.multiprocessing`."""
    expected = {
        "args": (), "nprocs": 1, "join": True, "daemon": False, "start_method": "spawn",
    }  # fmt: skip
    for spawn in (simrank.multiprocessing.spawn, ctx.multiprocessing.spawn):
        parameters = inspect.signature(spawn).parameters
        positional = [p for p in parameters.values() if p.kind is not p.KEYWORD_ONLY]
        assert positional[0].name == "fn"
        assert {p.name: p.default for p in positional[1:]} == expected


def test_ranks_are_in_one_process(run):
    """D1: isolation by processes is no aim (D1.0); arguments are copied unless they are shared."""
    shared, copied = [], []

    def program(rank, mine):
        mine.append(rank)

    with simrank.Context("hgx_h100") as ctx:
        ctx.multiprocessing.spawn(program, (shared,), nprocs=3, share_args=True)
        ctx.multiprocessing.spawn(program, (copied,), nprocs=3)
    assert shared == [0, 1, 2]
    assert copied == []


def test_spawn_runs_what_ranks_leave_behind(ctx):
    """D1: waits and collectives are drained together until none is left."""
    sums = []

    def program(rank):
        dist.init_process_group()
        x = ctx.full((4,), float(rank))
        work = dist.all_reduce(x, async_op=True)
        ctx.start(lambda: (ctx.wait(work), sums.append(x.tolist()[0])))

    ctx.multiprocessing.spawn(program, nprocs=4)
    ctx.drain()
    assert sums == [6.0] * 4
    assert ctx.pending_waits == []


def test_the_siblings_of_a_failing_rank_get_system_exit(run):
    """D1, T4: where they wait, in rank order; `errors` has the root cause alone."""
    ended = []

    def program(rank, ctx):
        if rank == 2:
            raise KeyError("lost")
        try:
            ctx.wait(Handle())
        except SystemExit:
            ended.append(rank)
            raise

    with pytest.raises(SpawnException) as caught:
        run(program, 4)
    assert ended == [0, 1, 3]
    assert [(rank, type(error)) for rank, error in caught.value.errors.items()] == [(2, KeyError)]
    assert isinstance(caught.value, ProcessRaisedException)
    assert caught.value.error_index == 2


@pytest.mark.ranks(4)
def test_tp_has_the_names_of_megatron_core(rank, ctx):
    """D2-D6, D8: state, two layers and mappings; these compute, where ADR-0027 has stubs."""
    dist.init_process_group("nccl")
    tp.parallel_state.initialize_model_parallel(2)
    layers = tp.ColumnParallelLinear(8, 8), tp.RowParallelLinear(8, 8)
    assert [layer(ctx.ones(2, 8 if n == 0 else 4))[0].shape for n, layer in enumerate(layers)] == [
        (2, 4), (2, 8),
    ]  # fmt: skip
    x = ctx.ones(2, 4)
    assert tp.reduce_from_tensor_model_parallel_region(x).tolist() == [[2.0] * 4] * 2
    assert tp.gather_from_tensor_model_parallel_region(x).shape == (2, 8)


@pytest.mark.ranks(8)
@pytest.mark.parametrize("size", [1, 2, 4, 8])
def test_parallel_state_is_that_of_the_running_rank(rank, size):
    """T1: neighbours split layers, strides hold copies."""
    state = tp.parallel_state
    dist.init_process_group("nccl")
    state.initialize_model_parallel(size)
    assert state.get_tensor_model_parallel_rank() == rank % size
    assert state.get_tensor_model_parallel_world_size() == size
    assert state.get_data_parallel_rank() == rank // size
    assert state.get_data_parallel_world_size() == 8 // size


def whole(weight, dim):
    """Return the numbers of a weight that ranks hold parts of along a dim."""
    parts = [weight.new_empty(weight.shape) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, weight)
    return np.concatenate([part.numpy() for part in parts], axis=dim)


def started(size):
    """Initialise groups and weights; return a configuration."""
    dist.init_process_group("nccl")
    tp.parallel_state.initialize_model_parallel(size)
    tp.model_parallel_manual_seed(42)
    return tp.ModelParallelConfig(tensor_model_parallel_size=size)


@pytest.mark.ranks(4)
def test_column_and_row_layers_equal_the_whole_product(ctx):
    """T2: a column layer has its columns of the product, a row layer the sum over all rows."""
    config = started(4)
    rank = dist.get_rank()
    x = ctx.arange(16, dtype=ctx.float32).reshape(2, 8) / 16

    column = tp.ColumnParallelLinear(8, 12, config=config, bias=False)
    product = x.numpy() @ whole(column.weight.data, 0).T
    assert np.allclose(column(x)[0].numpy(), product[:, 3 * rank : 3 * rank + 3], rtol=1e-5)

    row = tp.RowParallelLinear(8, 12, config=config, bias=False)
    product = x.numpy() @ whole(row.weight.data, 1).T
    part = x[:, 2 * rank : 2 * rank + 2].contiguous()
    assert np.allclose(row(part)[0].numpy(), product, rtol=1e-5)


@pytest.mark.ranks(4)
def test_a_two_layer_mlp_is_the_same_on_every_rank(ctx):
    """T6: after the all-reduce of the second layer each rank has the same bytes."""
    config = started(4)
    up = tp.ColumnParallelLinear(8, 16, config=config)
    down = tp.RowParallelLinear(16, 8, config=config)
    output = down(up(ctx.ones(2, 8))[0].relu())[0]
    outputs = [ctx.empty(2, 8) for _ in range(4)]
    dist.all_gather(outputs, output)
    assert len({each.numpy().tobytes() for each in outputs}) == 1
    assert np.abs(output.numpy()).max() > 0


def test_the_list_of_host_reads_is_closed():
    """T5.g: these names and no other wait; `tests/device/tensors/test_tensor.py` tries each."""
    assert set(HOST_READS) == {
        "numpy", "item", "tolist", "cpu", "to", "copy_", "equal", "allclose", "nonzero",
        "masked_select", "__getitem__", "__bool__", "__int__", "__float__", "__index__",
        "__repr__", "__format__", "__reduce__", "__array__", "__array_interface__", "__dlpack__",
    }  # fmt: skip


def test_a_ring_has_all_devices_by_default():
    """T7: `ring` without a number of ranks runs on the whole cluster, and its sums are right."""
    rows = bench.run(
        {"cluster": "hgx_h100", "collectives": ["all_reduce"], "algorithms": ["ring"],
         "sizes": ["64 KiB"], "iterations": {"warmup": 0, "timed": 1}}
    )  # fmt: skip
    assert {(row["algorithm"], row["num_ranks"], row["num_wrong"]) for row in rows} == {
        ("ring", 8, 0)
    }


def test_a_collective_may_be_a_triton_kernel(run):
    """kernels: a program calls `all_reduce`, and the named kernel runs on every rank."""
    pytest.importorskip("triton")

    def program(rank, ctx):
        dist.init_process_group("nccl")
        x = ctx.arange(100, dtype=simrank.float32) + rank
        dist.all_reduce(x)
        assert x.tolist() == [2.0 * i + 1 for i in range(100)]

    kernel = {"kernel": str(KERNELS / "one_shot_all_reduce.py"), "num_channels": 1}
    run(program, 2, algorithms={"all_reduce": kernel})


def test_a_kernel_reads_its_source_in_stream_order(run):
    """data: a copy has the numbers of its turn, and a later write of the source changes none."""

    def program(rank, ctx):
        x = ctx.zeros(4)
        assert x.tolist() == [0.0] * 4
        x.add_(1)
        y = x.clone()
        x.add_(1)
        z = ctx.empty(4, device=(rank + 1) % 2)
        z.copy_(x, non_blocking=True)
        x.fill_(9)
        assert (y.tolist(), z.tolist()) == ([1.0] * 4, [2.0] * 4)

    run(program, 2)


def test_an_algorithm_overrides_the_defaults_of_its_file():
    """yaml: an entry takes from `defaults` the options that it does not set."""
    config = bench_config_from_mapping(
        {
            "cluster": "hgx_h100",
            "collectives": ["all_reduce"],
            "algorithms": {
                "defaults": {"buffer": "hbm", "num_slots": 4, "slot_size": "4 KiB"},
                "mine": {"kernel": "benches.kernels.ring_all_reduce"},
                "one_slot": {"kernel": "benches.kernels.ring_all_reduce", "num_slots": 1},
            },
        }
    )
    kernel = "benches.kernels.ring_all_reduce"
    common = {"kernel": kernel, "buffer": "hbm", "slot_size": "4 KiB"}
    assert config.algorithms == {
        "mine": {**common, "num_slots": 4},
        "one_slot": {**common, "num_slots": 1},
    }


def test_a_benchmark_is_a_file_whose_unknown_keys_are_errors(tmp_path):
    """yaml: the caller names the file; the source takes `ccl.yaml` of the working directory."""
    path = tmp_path / "mine.yaml"
    path.write_text("cluster: hgx_h100\ncollectives: [all_reduce]\nalgorithm: [ring]\n")
    with pytest.raises(ConfigError, match=r"mine\.yaml:3: algorithm: "):
        load_bench_config(path)
