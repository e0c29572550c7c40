"""Triton kernels on torch's simulated devices."""

import gc
import shutil
import time
import warnings
import weakref

import pytest
import torch

triton = pytest.importorskip("triton", reason="triton is not installed")
if shutil.which("g++") is None:
    pytest.skip("no compiler for simulated devices", allow_module_level=True)

import torch.distributed as dist  # noqa: E402
import triton.language as tl  # noqa: E402
from triton.language.extra import libdevice  # noqa: E402

from simrank.errors import RaceError, SpawnException  # noqa: E402
from simrank.kernels import library_tensors  # noqa: E402
from simrank.kernels.memory.addresses import IllegalAccessError  # noqa: E402


@triton.jit
def add(x, y, out, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    a = tl.load(x + offsets, mask=mask).to(tl.float32)
    b = tl.load(y + offsets, mask=mask).to(tl.float32)
    tl.store(out + offsets, a + b, mask=mask)


@triton.jit
def add_without_mask(x, out, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + offsets, tl.load(x + offsets) + 1)


@triton.jit
def sum_of_tables(pointers, out, n, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.float32)
    for i in range(n):
        address = tl.load(pointers + i)
        total += tl.load(address.to(tl.pointer_type(tl.float32)) + offsets)
    tl.store(out + offsets, total)


def added(x, y):
    out = torch.empty_like(x)
    n = x.numel()
    add[(triton.cdiv(n, 64),)](x, y, out, n, BLOCK=64)
    return out


@pytest.mark.parametrize(
    "dtype",
    [
        torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.int32,
        torch.uint16, torch.uint32, torch.uint64,
    ],
)  # fmt: skip
def test_a_kernel_takes_torchs_tensors_among_torchs_operations(spawn, dtype):
    """What torch computed before is there, what it computes behind sees the results."""
    results = []

    def program(rank):
        x = torch.arange(200, device="cuda").remainder(7).to(dtype)
        y = torch.full_like(x, 2)
        out = added(x, y)
        x.zero_()
        results.append((out.float() * 2).tolist())

    spawn(program, 1)
    assert results == [[(i % 7 + 2) * 2 for i in range(200)]]


def test_views_with_offsets_and_addresses_in_tables_find_their_memory(spawn):
    """Slices, transposed ones, and `data_ptr()` as an integer in memory."""
    results = []

    def program(rank):
        base = torch.arange(256.0, device="cuda")
        out = torch.zeros(256, device="cuda")
        add[(1,)](base[16:], base[32:], out[5:], 10, BLOCK=16)
        results.append(out[4:16].tolist())
        pointers = torch.tensor([base.data_ptr() + 4 * i for i in range(3)], device="cuda")
        sum_of_tables[(1,)](pointers, out, 3, BLOCK=8)
        results.append(out[:8].tolist())

    spawn(program, 1)
    assert results[0] == [0.0, *(float(2 * i + 48) for i in range(10)), 0.0]
    assert results[1] == [float(3 * i + 3) for i in range(8)]


def test_a_kernel_waits_for_collectives_and_takes_its_time_on_the_current_stream(spawn):
    """A side stream's kernel ends behind the collective that it waits for."""
    results = {}

    def program(rank):
        dist.init_process_group("nccl")
        torch.cuda.set_device(rank)
        x = torch.full((1 << 16,), float(rank + 1), device="cuda")
        start, reduced, done = (torch.cuda.Event(enable_timing=True) for _ in range(3))
        side = torch.cuda.Stream()
        start.record()
        dist.all_reduce(x)
        reduced.record()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            out = added(x, x)
            done.record()
        torch.cuda.synchronize()
        results[rank] = (float(out[-1]), start.elapsed_time(reduced) < start.elapsed_time(done))

    spawn(program, 3)
    assert results == dict.fromkeys(range(3), (12.0, True))


@pytest.mark.parametrize("races", ["off", "report"])
def test_a_launch_costs_simulated_time_and_does_not_hold_the_host(spawn, races):
    """The host goes on; the time between events is the kernel's, whoever looks for races."""
    times = []

    def program(rank):
        x = torch.ones(1 << 20, device="cuda")
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        out = torch.empty_like(x)
        torch.cuda.synchronize()
        first.record()
        for _ in range(20):
            add[(1024,)](x, x, out, x.numel(), BLOCK=1024)
        last.record()
        assert not last.query()
        torch.cuda.synchronize()
        times.append(first.elapsed_time(last))

    spawn(program, 1, races=races)
    # 12 MB each at 3.35 TB/s at most, 2.4 TB/s at least (assumed shares of the bandwidth); to
    # start takes each twice 2.35 us.
    assert 20 * 12.6e6 / 3.35e12 * 1e3 <= times[0] <= 20 * (12.6e6 / 2.0e12 + 4.7e-6) * 1e3


def test_gradients_pass_through_a_function_of_kernels(spawn):
    """Forward and backward launch; both ranks are inside backward at the same time."""
    results = {}

    class Add(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, y):
            return added(x, y)

        @staticmethod
        def backward(ctx, grad):
            dist.all_reduce(grad)
            return added(grad, grad), grad

    def program(rank):
        dist.init_process_group("nccl")
        torch.cuda.set_device(rank)
        x = torch.full((8,), float(rank), device="cuda", requires_grad=True)
        y = torch.ones(8, device="cuda", requires_grad=True)
        (Add.apply(x * 3, y) * (rank + 1)).sum().backward()
        results[rank] = (x.grad.tolist(), y.grad.tolist())

    spawn(program, 2)
    assert results == dict.fromkeys(range(2), ([18.0] * 8, [3.0] * 8))


def test_an_access_out_of_bounds_names_the_kernels_line_and_the_tensor(spawn):
    """Of a tensor of torch, at its launch."""

    def program(rank):
        x = torch.zeros(100, device="cuda")
        add_without_mask[(2,)](x, torch.empty_like(x), BLOCK=64)

    with pytest.raises(SpawnException) as caught:
        spawn(program, 1)
    error = caught.value.errors[0]
    assert isinstance(error, IllegalAccessError)
    assert "test_launches.py:" in str(error)
    assert "'out', fp32[100]," in str(error)


def test_a_tensor_of_the_host_is_refused_in_tritons_words(spawn):
    """As on hardware."""

    def program(rank):
        x = torch.zeros(64, device="cuda")
        with pytest.raises(ValueError, match=r"cannot be accessed from Triton \(cpu tensor\?\)"):
            add[(1,)](x, torch.zeros(64), x, 64, BLOCK=64)

    spawn(program, 1)


def test_devices_of_the_current_device_are_launched_on(spawn):
    """`torch.cuda.device` chooses; so do what the driver says and device properties."""
    results = []

    def program(rank):
        driver = triton.runtime.driver.active
        assert driver.get_active_torch_device() == torch.device("cuda", 0)
        with torch.cuda.device(1):
            x = torch.ones(64, device="cuda")
            results.append((added(x, x).device.index, driver.get_current_device()))
            stream = torch.cuda.Stream()
            with torch.cuda.stream(stream):
                assert driver.get_current_stream(1) == stream.cuda_stream
            num_sms = torch.cuda.get_device_properties(1).multi_processor_count
            assert driver.utils.get_device_properties(1)["multiprocessor_count"] == num_sms

    spawn(program, 1)
    assert results == [(1, 1)]


def test_autotune_heuristics_and_benchmarks_measure_simulated_time(spawn):
    """One round is faster than many; what was overwritten is restored."""
    results = []

    @triton.autotune(
        [triton.Config({"TIMES": 64}), triton.Config({"TIMES": 1})],
        key=["n"],
        restore_value=["out"],
    )
    @triton.jit
    def accumulate(x, out, n, BLOCK: tl.constexpr, TIMES: tl.constexpr):
        offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        for _ in range(TIMES):
            tl.store(out + offsets, tl.load(out + offsets) + tl.load(x + offsets) / TIMES)

    def program(rank):
        n = 1 << 17
        x, out = torch.ones(n, device="cuda"), torch.ones(n, device="cuda")
        accumulate[lambda meta: (triton.cdiv(n, meta["BLOCK"]),)](x, out, n, BLOCK=256)
        results.append((accumulate.best_config.kwargs["TIMES"], float(out.sum()) / n))
        results.append(triton.testing.do_bench(lambda: added(x, out)))

    spawn(program, 1)
    assert results[0] == (1, 2.0)
    assert 1e-3 < results[1] < 1e-1


def test_a_benchmark_of_graphs_takes_what_the_kernels_of_one_call_take(spawn):
    """As triton measures: thousands of calls share a graph's launch; here two calls say as much."""
    counts, measured = [], []

    def program(rank):
        x, out = torch.ones(1 << 17, device="cuda"), torch.ones(1 << 17, device="cuda")

        def call():
            counts.append(1)
            added(x, out)

        measured.append(triton.testing.do_bench_cudagraph(call))
        measured.extend(triton.testing.do_bench_cudagraph(call, quantiles=[0.5, 0.2]))
        measured.append(triton.testing.do_bench(call))

    spawn(program, 1)
    assert measured == pytest.approx([measured[-1]] * 4, rel=0.05)
    assert len(counts) < 100


def test_memory_does_not_stay_for_a_launch(spawn):
    """As on hardware: the allocator takes a block back when its tensor dies."""

    def program(rank):
        x = torch.ones(1 << 20, device="cuda")
        addresses = {added(x, x).data_ptr() for _ in range(5)}
        assert len(addresses) == 1

    spawn(program, 1)


@triton.jit
def increased(x_ptr):
    at = x_ptr + tl.arange(0, 64)
    tl.store(at, tl.load(at) + 1)


def test_a_kernel_in_a_captured_graph_runs_at_each_replay(spawn):
    """In its place among torch's operations, on what lies there by then; the host pays once."""

    def program(rank):
        x = torch.ones(64, device="cuda")
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            doubled = x * 2
            out = added(doubled, x)
            last = out + 1
            increased[(1,)](x)
        assert torch.equal(x, torch.ones_like(x)), "it was captured, and has not run"
        for number in (5.0, 7.0):
            x.fill_(number)
            graph.replay()
            assert torch.equal(last, torch.full_like(last, 3 * number + 1))
        start = time.perf_counter()
        graph.replay()
        replay_s = time.perf_counter() - start
        start = time.perf_counter()
        added(x, x)
        assert replay_s <= time.perf_counter() - start

    spawn(program, 1)


def test_a_kernel_in_a_captured_graph_uses_the_memory_of_the_capture(spawn):
    """Whatever became of its tensors since, which the graph does not keep."""

    def program(rank):
        x = torch.ones(1 << 20, device="cuda")
        gathered = torch.full((1 << 20,), 2.0, device="cuda")
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = x
            for _ in range(10):
                out = added(out, gathered)
        assert torch.cuda.memory_allocated() == 3 * (4 << 20), "x, gathered and out"
        gathered.untyped_storage().resize_(0)
        torch.full((1 << 20,), 9.0, device="cuda")
        graph.replay()
        assert torch.equal(out, torch.full_like(out, 21.0))

    spawn(program, 1)


def test_kernels_of_two_streams_race_unless_one_waits(spawn):
    """Both sites are named; with a wait nothing is said."""

    def program(rank, is_ordered):
        x = torch.ones(1 << 12, device="cuda")
        out, side = torch.empty_like(x), torch.cuda.Stream()
        add[(4,)](x, x, out, x.numel(), BLOCK=1024)
        if is_ordered:
            side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            assert float(added(out, out)[5]) == 4

    spawn(program, 1, True, races="error")
    with pytest.raises(SpawnException) as caught:
        spawn(program, 1, False, races="error")
    assert isinstance(caught.value.errors[0], RaceError)
    assert "add writes, on stream 'default'" in str(caught.value)
    assert "add reads, on stream 'stream 1'" in str(caught.value)


@pytest.mark.parametrize("races", ["off", "error"])
def test_nothing_of_a_context_outlives_it(spawn, races):
    """Its ranks, tensors and streams go as the last reference to it goes."""

    def program(rank):
        torch.cuda.set_device(rank)
        dist.init_process_group("nccl")
        x = torch.zeros(16, device="cuda")
        dist.all_reduce(added(x, x))
        torch.cuda.synchronize()

    context = spawn(program, 2, races=races)
    left = weakref.ref(context.engine)
    del context
    gc.collect()
    assert left() is None


@pytest.mark.parametrize("mode", ["auto", "tasks"])
def test_a_tensor_of_an_ended_context_is_an_argument(spawn, mode):
    """As a module keeps one from test to test; a launch may be the first use of a device."""
    kept = []

    def first(rank):
        kept.append(torch.ones(64, device="cuda"))
        kept.append(added(*kept, *kept))
        views.append(library_tensors.running().tensor(kept[1]))

    def second(rank):
        add[(1,)](kept[1], kept[1], kept[0], 64, BLOCK=64, mode=mode)
        assert kept[0].tolist() == [4.0] * 64

    views = []  # Kept alive, as a record of launches keeps them.
    spawn(first, 1)
    spawn(second, 1)


class Pointer:
    """What Triton takes for a tensor: an address, and the type of what lies there."""

    def __init__(self, tensor, first):
        self.tensor, self.first, self.dtype = tensor, first, tensor.dtype

    def data_ptr(self):
        return self.tensor.data_ptr() + self.first * self.tensor.element_size()


def test_whatever_has_an_address_and_a_type_is_a_pointer(spawn):
    """As triton has it; it reaches to the end of its block."""

    def program(rank):
        x = torch.arange(128.0, device="cuda")
        out = torch.zeros(100, device="cuda", dtype=torch.float64)
        add[(1,)](Pointer(x, 28), Pointer(x, 0), Pointer(out, 36), 64, BLOCK=64)
        assert out[:36].sum().item() == 0
        assert out[36:].tolist() == [2.0 * i + 28 for i in range(64)]
        with pytest.raises(IllegalAccessError, match="load of element 128 of 'x'"):
            add_without_mask[(8,)](Pointer(x, 0), torch.empty(256, device="cuda"), BLOCK=64)
            torch.cuda.synchronize()
        with pytest.raises(TypeError, match=r"argument 'x' is a .*Pointer: nothing of a device"):
            add_without_mask[(1,)](Pointer(torch.ones(64), 0), out, BLOCK=64)

    spawn(program, 1)


@triton.jit
def doubled_in_place(x, out, count, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    found = tl.load(x + offsets)
    tl.store(x + offsets, 2 * found)
    tl.store(out + offsets, found)
    tl.atomic_add(count, 1)


def test_pinned_memory_of_the_host_is_read_and_written_by_kernels(spawn):
    """Without a copy: by pointer and by address; memory that is not pinned is refused."""
    results = []

    def program(rank):
        x, out = torch.ones(8).pin_memory(), torch.zeros(8, device="cuda")
        count = torch.zeros(1, dtype=torch.int32, pin_memory=True)
        doubled_in_place[(2,)](x[:], out, count, BLOCK=4)
        torch.cuda.synchronize()
        results.append((x.sum().item(), out.sum().item(), count.item()))
        table = torch.tensor([x.data_ptr(), x[4:].data_ptr()], device="cuda")
        sum_of_tables[(1,)](table, out, 2, BLOCK=4)
        results.append(out.tolist()[:4])
        with pytest.raises(ValueError, match="cannot be accessed from Triton"):
            doubled_in_place[(2,)](torch.ones(8), out, count, BLOCK=4)

    spawn(program, 1)
    assert results == [(16.0, 8.0, 2), [4.0] * 4]


@triton.jit
def of_libdevice(x, out, NAME: tl.constexpr, N: tl.constexpr):
    at = tl.program_id(0) * N + tl.arange(0, N)
    value = tl.load(x + at).to(tl.float32)
    if NAME == "tanh":
        value = libdevice.tanh(value)
    elif NAME == "exp":
        value = libdevice.exp(value)
    elif NAME == "erf":
        value = tl.erf(value)
    elif NAME == "log1p":
        value = libdevice.log1p(value)
    elif NAME == "rsqrt":
        value = libdevice.rsqrt(value)
    elif NAME == "gelu":
        inner = 0.7978845608028654 * (value + 0.044715 * value * value * value)
        value = 0.5 * value * (1.0 + libdevice.tanh(inner))
    tl.store(out + at, value)


@pytest.mark.parametrize("name", ["tanh", "exp", "erf", "log1p", "rsqrt"])
def test_functions_of_torch_and_of_libdevice_are_one(spawn, name):
    """To the bit, as both call CUDA's own; blocks and scalars."""
    results = []

    def program(rank):
        x = torch.randn(4096, device="cuda").abs()
        out, one = torch.empty_like(x), torch.empty_like(x[:1])
        of_libdevice[(4,)](x, out, NAME=name, N=1024)
        of_libdevice[(1,)](x, one, NAME=name, N=1)
        wanted = getattr(torch, name)(x)
        results.append((torch.equal(out, wanted), torch.equal(one, wanted[:1])))

    spawn(program, 1)
    assert results == [(True, True)]


@triton.jit
def powers(out, N: tl.constexpr):
    at = tl.arange(0, N)
    tl.store(out + at, libdevice.pow(at.to(tl.float32), tl.full((1,), 2.0, tl.float32)))


def test_a_broadcast_operand_of_libdevice_gives_no_warning(spawn):
    """Its memory cannot be written, of which torch would warn."""

    def program(rank):
        out = torch.empty(4, device="cuda")
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            powers[(1,)](out, N=4)
        assert out.tolist() == [0, 1, 4, 9]

    spawn(program, 1)


def test_gelu_in_bf16_equals_torchs(spawn):
    """It is rounded once; an ulp of tanh would show."""
    results = []

    def program(rank):
        x = torch.randn(1 << 14, device="cuda").bfloat16()
        out = torch.empty_like(x)
        of_libdevice[(16,)](x, out, NAME="gelu", N=1024)
        results.append((out != torch.nn.functional.gelu(x, approximate="tanh")).sum().item())

    spawn(program, 1)
    assert results == [0]
