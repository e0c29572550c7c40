"""CUDA devices of torch under simulated ranks: streams, events, collectives and memory."""

import gc
import os
import shutil
import subprocess
import sys
import time
import weakref
from datetime import timedelta

import pytest
import torch

if shutil.which("g++") is None:
    pytest.skip("no compiler for simulated devices", allow_module_level=True)

import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import simrank
from simrank.engine.task import SwitchObserver
from simrank.errors import DeadlockError, SpawnException, UnsupportedError
from simrank.torch import cuda
from simrank.torch.devices import activation
from simrank.trace import Timeline


def test_a_rank_sees_the_devices_of_its_node_and_nobody_else_does(spawn):
    """By their own numbers; outside of ranks there are none, before and after."""
    seen = {}

    def program(rank):
        assert torch.cuda.is_available()
        assert torch.accelerator.current_accelerator() == torch.device("cuda")
        seen[rank] = torch.cuda.device_count()
        torch.cuda.set_device(rank % 8)
        assert torch.ones(1, device="cuda").device == torch.device("cuda", rank % 8)

    spawn(program, 10)
    assert seen == dict.fromkeys(range(10), 8)
    assert not torch.cuda.is_available()
    assert not activation.is_enabled()


def test_a_rank_may_hide_devices_from_itself(spawn):
    """None of them, or all but some neighbours; others are refused by name."""

    def program(rank):
        os.environ["CUDA_VISIBLE_DEVICES"] = ("", "3,1", "2,3")[rank]
        if rank == 0:
            assert not torch.cuda.is_available()
            assert torch.accelerator.current_accelerator() is None
            with pytest.raises(AssertionError, match="Torch not compiled with CUDA"):
                torch.ones(1, device="cuda")
        elif rank == 2:
            assert torch.cuda.device_count() == 2
            x = torch.ones(1, device="cuda:1")
            assert (x.data_ptr() - torch.ones(1, device="cuda:0").data_ptr()) >> 37 == 1
        else:
            with pytest.raises(UnsupportedError, match="CUDA_VISIBLE_DEVICES=3,1"):
                torch.cuda.device_count()
            os.environ["CUDA_VISIBLE_DEVICES"] = ""

    spawn(program, 3)


def test_torchs_own_questions_take_no_devices(spawn):
    """An optimizer asks; a program that trains on the CPU needs no compiler for that."""

    def program(rank):
        layer = torch.nn.Linear(2, 2)
        optimizer = torch.optim.Adam(layer.parameters())
        layer(torch.ones(2)).sum().backward()
        optimizer.step()
        torch.cuda.manual_seed(3)
        assert not activation.is_enabled()
        torch.cuda.synchronize()
        assert activation.is_enabled()
        assert torch.cuda.initial_seed() == 3

    spawn(program, 1)


def ask_for_cuda(rank):
    assert torch.cuda.is_available()


def ask_for_an_accelerator(rank):
    assert torch.accelerator.current_accelerator().type == "cuda"


def make_a_group(rank):
    dist.init_process_group("nccl")


@pytest.mark.parametrize("first", [ask_for_cuda, ask_for_an_accelerator, make_a_group])
def test_an_integer_is_a_device_after_the_first_sign_of_cuda(spawn, first):
    """Torch's C++ looks for an accelerator before any Python sees the integer."""

    def program(rank):
        first(rank)
        tensor = torch.ones(2).to(rank)
        assert tensor.device == torch.device("cuda", rank)
        assert torch.nn.Linear(2, 2).to(rank).weight.device == torch.device(rank)

    spawn(program, 2)


def test_nccl_reduces_on_devices_and_work_wait_orders_the_stream(spawn):
    """Numbers are right whatever is waited for; the host goes on."""
    results = {}

    def program(rank):
        dist.init_process_group("nccl")
        torch.cuda.set_device(rank)
        blocking = torch.full((4,), float(rank), device="cuda")
        dist.all_reduce(blocking)
        asynchronous = torch.full((4,), float(rank), device="cuda")
        work = dist.all_reduce(asynchronous, async_op=True)
        work.wait()
        results[rank] = [*(blocking * 2).tolist(), *asynchronous.tolist()]

    spawn(program, 4)
    assert results == dict.fromkeys(range(4), [12.0] * 4 + [6.0] * 4)


def test_an_operation_waits_once_for_all_that_uses_its_tensor():
    """A stream ends the newest last: the rank is resumed for that one, and not for twenty."""

    class Resumed(SwitchObserver):
        times = 0

        def on_task_switch(self, task, time_ps):
            self.times += task.rank == 0

    resumed, counts = Resumed(), []

    def program(rank):
        torch.cuda.set_device(rank)
        dist.init_process_group("nccl")
        x = torch.ones(4, device="cuda")
        for _ in range(20):
            dist.all_reduce(x)
        before = resumed.times
        x.mul_(0.5)
        counts.append(resumed.times - before if rank == 0 else 0)
        assert x.tolist() == [2.0**19] * 4

    with simrank.Context.for_ranks(2) as context:
        context.observe(resumed)
        context.multiprocessing.spawn(program, nprocs=2)
    assert 1 <= max(counts) <= 2


def test_events_measure_simulated_time(spawn):
    """A product of known cost, alone on its device, which waits for its launch."""
    from simrank.hardware.load import load_cluster
    from simrank.hardware.roofline import library_product_ps

    found = []

    def program(rank):
        x = torch.ones(1024, 1024, device="cuda", dtype=torch.bfloat16)
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        start.record()
        x @ x
        end.record()
        torch.cuda.synchronize()
        found.append(start.elapsed_time(end))

    spawn(program, 1)
    spec = load_cluster("hgx_h100").device
    expected = library_product_ps(spec, "bfloat16", (1, 1024, 1024, 1024))
    assert found[0] * 1e9 == pytest.approx(expected + spec.launch_overhead_ps, rel=0.01)


def test_streams_overlap_and_wait_for_each_other(spawn):
    """Two sleeps beside each other take one; behind each other two."""
    times = {}

    def program(rank):
        cycles = 100_000_000
        other = torch.cuda.Stream()
        for name, is_ordered in (("beside", False), ("behind", True)):
            torch.cuda.synchronize()
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            torch.cuda._sleep(cycles)
            if is_ordered:
                other.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(other):
                torch.cuda._sleep(cycles)
            torch.cuda.current_stream().wait_stream(other)
            end.record()
            end.synchronize()
            times[name] = start.elapsed_time(end)

    spawn(program, 1)
    assert times["behind"] == pytest.approx(2 * times["beside"], rel=0.01)


def test_a_forgotten_set_device_is_nccls_error(spawn):
    """All ranks on the first device of the node."""

    def program(rank):
        dist.init_process_group("nccl")
        dist.all_reduce(torch.ones(1, device="cuda"))

    with pytest.raises(SpawnException, match="Duplicate GPU"):
        spawn(program)


def test_memory_runs_out_with_the_lines_that_hold_it(spawn):
    """Torch's own exception."""
    texts = []

    def program(rank):
        held = [torch.empty(30 << 30, dtype=torch.uint8, device="cuda") for _ in range(2)]
        with pytest.raises(torch.OutOfMemoryError) as caught:
            torch.empty(30 << 30, dtype=torch.uint8, device="cuda")
        texts.append(str(caught.value))
        del held

    context = spawn(program, 1)
    assert "61440.00 MiB in 2 tensors allocated at test_activation.py" in texts[0]
    assert context.devices[0].memory.peak_bytes >= 60 << 30


def test_training_on_devices_equals_training_on_the_host(spawn):
    """DDP, Adam, nccl on devices beside gloo on the host; to rounding."""
    weights = {}

    def program(rank, backend, device):
        dist.init_process_group(backend)
        if device == "cuda":
            torch.cuda.set_device(rank)
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 4))
        model = nn.parallel.DistributedDataParallel(model.double().to(device))
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        generator = torch.Generator().manual_seed(rank)
        for _ in range(3):
            optimizer.zero_grad()
            x = torch.randn(4, 8, generator=generator, dtype=torch.float64).to(device)
            model(x).square().mean().backward()
            optimizer.step()
        weights[device, rank] = torch.cat([p.detach().cpu().flatten() for p in model.parameters()])

    spawn(program, 4, "gloo", "cpu")
    spawn(program, 4, "nccl", "cuda")
    for rank in range(4):
        assert torch.allclose(weights["cpu", rank], weights["cuda", rank], rtol=1e-12, atol=1e-14)


def test_runs_repeat_to_the_byte(tmp_path):
    """Timeline, addresses, random numbers."""

    def program(rank):
        dist.init_process_group("nccl")
        torch.cuda.set_device(rank)
        x = torch.randn(64, 64, device="cuda")
        y = (x @ x).relu()
        dist.all_reduce(y)
        addresses.append((rank, x.data_ptr(), float(y.sum())))

    found = []
    for number in range(2):
        addresses, timeline = [], Timeline()
        with simrank.Context("hgx_h100") as ctx:
            ctx.observe(timeline)
            ctx.multiprocessing.spawn(program, (), 4, share_args=True)
        timeline.write(tmp_path / f"{number}")
        found.append((sorted(addresses), (tmp_path / f"{number}").read_bytes()))
    assert found[0] == found[1]
    assert b"mm" in found[0][1]


def test_devices_may_be_asked_for_in_the_midst_of_a_backward(spawn):
    """Of which the process has had none before: by a hook, without grad."""
    script = """
import torch, simrank
def program(rank):
    x = torch.ones(2, requires_grad=True)
    def hook(gradient):
        torch.cuda.synchronize()
        return gradient * torch.ones(2, device="cuda").sum().item()
    y = x * 2
    y.register_hook(hook)
    y.sum().backward()
    print(x.grad.tolist())
simrank.multiprocessing.spawn(program, nprocs=2)
"""
    command = [sys.executable, "-c", script]
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert out == "[4.0, 4.0]\n" * 2


def test_the_summary_of_a_run_names_the_ranks_that_there_were(cli, tmp_path):
    """A rank sees all devices of its node; those that nobody used are no ranks."""
    (tmp_path / "one.py").write_text(
        "import torch\nassert torch.ones(3, device='cuda').sum() == 3\n"
    )
    _, _, err = cli("run", "--nproc-per-node", "2", tmp_path / "one.py")
    lines = [line for line in err.splitlines() if line.startswith("  rank")]
    assert [line.partition(":")[0].split()[-1] for line in lines] in (["0", "1"], ["0-1"])


def test_devices_belong_to_one_context_at_a_time():
    """And come back with the next one."""
    for _ in range(2):
        with simrank.Context("hgx_h100") as ctx:
            ctx.multiprocessing.spawn(lambda rank: torch.ones(1).cuda(), nprocs=1)


def test_devices_come_where_something_else_had_some_of_its_own():
    """Torch asks for devices once in a process, and was answered by them."""
    with cuda.standalone(1):
        torch.ones(1).cuda()
    with simrank.Context("hgx_h100") as ctx:
        ctx.multiprocessing.spawn(lambda rank: torch.ones(1).cuda(), nprocs=1)


def test_ddp_reduces_gradients_beside_backward(spawn):
    """The future of an nccl call is done at once; streams wait for it, as on CUDA."""
    seen = {}

    def backward_us(model, x):
        model(x).sum().backward()  # The first one tells DDP the order.
        loss = model(x).sum()
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        loss.backward()
        last.record()
        last.synchronize()
        return first.elapsed_time(last) * 1e3

    def program(rank):
        torch.cuda.set_device(rank)
        dist.init_process_group("nccl")
        layers = [nn.Linear(1024, 1024, bias=False, device="cuda") for _ in range(6)]
        x = torch.ones(512, 1024, device="cuda")
        alone = backward_us(nn.Sequential(*layers), x)
        together = backward_us(DistributedDataParallel(nn.Sequential(*layers), bucket_cap_mb=4), x)
        gradient = layers[0].weight.grad
        torch.cuda.synchronize()
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        work = dist.all_reduce(gradient, async_op=True)
        assert work.get_future().done()
        assert not first.query() or not work.is_completed()
        work.get_future().wait()
        last.record()
        last.synchronize()
        seen[rank] = alone, together, first.elapsed_time(last) * 1e3

    context = spawn(program, 4, races="report")
    assert context.races == []
    alone, together, one = seen[0]
    assert one > 15  # 4 MiB, by nccl's formula for four ranks on NVLink.
    assert together < alone + 3 * one  # Of six.


def test_nccls_watchdog_fires_at_the_time_limit_and_lets_the_host_go_on(spawn):
    """Wherever the host is by then: with torch's words, and the lines of all ranks."""
    hosts = []

    def program(rank):
        torch.cuda.set_device(rank)
        dist.init_process_group("nccl", timeout=timedelta(seconds=3))
        x = torch.ones(1 << 22, device="cuda")
        before = time.perf_counter()
        for is_async in (True, False):
            work = dist.all_reduce(x, async_op=is_async)
            if is_async:
                work.wait()
                assert work.get_future().done()
        hosts.append(time.perf_counter() - before)
        torch.cuda.synchronize()
        time.sleep(5)
        if rank == 0:
            dist.all_reduce(x)
            torch.cuda.synchronize()
        time.sleep(10)

    with pytest.raises(SpawnException) as raised:
        spawn(program, 2)
    assert max(hosts) < 20e-6
    text = str(raised.value)
    assert (
        "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=3, OpType=ALLREDUCE" in text
    )
    assert "ran for 3000 milliseconds before timing out" in text
    assert "rank 1: time.sleep(10) at test_activation.py" in text


def test_a_model_may_outlive_its_simulation(spawn):
    """Its futures and events go on a thread that has no device."""
    kept = []

    def program(rank):
        torch.cuda.set_device(rank)
        dist.init_process_group("nccl")
        model = DistributedDataParallel(nn.Linear(4, 4).cuda())
        model(torch.ones(2, 4, device="cuda")).sum().backward()
        kept.append(model)

    spawn(program, 2)
    left = weakref.ref(kept[0])
    kept.clear()
    gc.collect()
    assert left() is None


def test_operations_of_torch_may_cost_nothing():
    """Then communication is left."""
    times = {}

    def program(rank):
        dist.init_process_group("nccl")
        torch.cuda.set_device(rank)
        x = torch.ones(1024, 1024, device="cuda")
        for _ in range(3):
            x = x @ x
        dist.all_reduce(x)
        torch.cuda.synchronize()

    for compute_time in ("roofline", "none"):
        with simrank.Context("hgx_h100", compute_time=compute_time) as context:
            context.multiprocessing.spawn(program, nprocs=2)
        times[compute_time] = context.now_ps
    assert 0 < times["none"] < times["roofline"]
    with pytest.raises(ValueError, match="choices: roofline, none"):
        simrank.Context("hgx_h100", compute_time="some")


def test_a_hang_is_suspected_only_if_a_host_that_would_go_on_could_end_it():
    """Rank 0 reads a sum early; on hardware its host would go on to the call that rank 1 awaits."""

    def crossed(rank):
        torch.cuda.set_device(rank)
        dist.init_process_group("nccl")
        first, second = dist.new_group([0, 1]), dist.new_group([0, 1], backend="gloo")
        x = torch.ones(2, device="cuda")
        if rank == 0:
            dist.all_reduce(x, group=first)
            x.add(1)
            dist.barrier(second)
        else:
            dist.barrier(second)
            dist.all_reduce(x, group=first)

    def lost(rank):
        torch.cuda.set_device(rank)
        dist.init_process_group("nccl")
        if rank == 0:
            x = torch.ones(2, device="cuda")
            dist.all_reduce(x)
            x.add(1)

    for program, kind in ((crossed, "suspected"), (lost, "proved")):
        with pytest.raises(DeadlockError) as caught, simrank.Context("hgx_h100") as context:
            context.multiprocessing.spawn(program, nprocs=2)
        assert str(caught.value).startswith(f"deadlock ({kind})")
        assert caught.value.proved == (kind == "proved")


def test_a_tensor_without_elements_lies_on_its_device(spawn):
    """Its address is null; nccl takes it all the same."""

    def program(rank):
        dist.init_process_group("nccl")
        torch.cuda.set_device(rank)
        tensor = torch.empty(0, device="cuda")
        dist.all_reduce(tensor)
        assert tensor.device == torch.device("cuda", rank)
        dist.broadcast(tensor, 0)

    spawn(program, 2)


def test_the_future_of_a_gathered_list_has_one_tensor(spawn):
    """Of nccl, as torch's quantization hooks expect; of gloo it has the list."""
    from torch.distributed.algorithms.ddp_comm_hooks import quantization

    def program(rank):
        torch.cuda.set_device(rank)
        dist.init_process_group("cpu:gloo,cuda:nccl")
        for device in ("cuda", "cpu"):
            mine = torch.full((2,), float(rank), device=device)
            outputs = [torch.empty_like(mine) for _ in range(3)]
            result = dist.all_gather(outputs, mine, async_op=True).get_future().wait()
            assert len(result) == (1 if device == "cuda" else 3)
            gathered = result[0] if device == "cuda" else torch.stack(result)
            assert torch.equal(gathered, torch.arange(3.0, device=device).repeat(2, 1).T)
        torch.manual_seed(0)
        model = DistributedDataParallel(nn.Linear(4, 4).cuda())
        model.register_comm_hook(dist.group.WORLD, quantization.quantization_perchannel_hook)
        plain = nn.Linear(4, 4).cuda()
        plain.load_state_dict(model.module.state_dict())
        for each in (model, plain):
            each(torch.full((2, 4), rank + 1.0, device="cuda")).square().mean().backward()
        gradients = [each.weight.grad for each in (model.module, plain)]
        dist.all_reduce(gradients[1], op=dist.ReduceOp.AVG)
        assert torch.allclose(*gradients, rtol=0.05, atol=0.05)
        assert not torch.equal(*gradients), "they were rounded"

    spawn(program, 3)


def test_each_rank_captures_on_a_stream_of_its_own_device(spawn):
    """Torch keeps the default one per process, in a class: the next rank got the first one's."""

    def program(rank):
        torch.cuda.set_device(rank)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            assert torch.cuda.current_device() == rank
            assert torch.cuda.current_stream().device_index == rank
            made = torch.ones(2, device="cuda")
        assert made.get_device() == rank
        assert torch.cuda.graph.default_capture_stream.device_index == rank

    spawn(program, 3)
    assert torch.cuda.graph.default_capture_stream is None
