"""Graphs that inductor compiles for a simulated GPU: equal to eager, or refused by name."""

import sys
from importlib import import_module
from types import ModuleType
from zipfile import ZipFile

import pytest
import torch
import torch.distributed as dist
from torch.nn import functional as F  # noqa: N812 - torch's habit
from torch.overrides import TorchFunctionMode

from simrank.errors import UnsupportedError
from simrank.torch.dynamo import MID_COMPILATION, PLACES
from tests.torch.random_graphs import compare

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # torch's own.


def _masked_fill(x, y):
    return torch.where(x > 0, x, y).clamp(-1, 1)


def _scan(x, y):
    return torch.cumsum(x, 1) + torch.cumprod(y * 0.1, 1)


def _sorted(x, y):
    return torch.sort(x, 1)[0] + y.argsort(stable=True, dim=1)


def _scattered(x, y):
    index = torch.arange(x.shape[0], device=x.device) % 5
    return torch.zeros_like(x).index_put((index,), y, accumulate=True)


def _joined(x, y):
    return torch.cat([x.t(), y.t()], 1).contiguous() * 2


GRAPHS = {
    "product": lambda x, y: torch.softmax(F.gelu(x @ y) + 1, dim=-1),
    "norms": lambda x, y: F.layer_norm(x, (24,)) * F.rms_norm(y, (24,)),
    "reductions": lambda x, y: x.sum() + y.amax(0).mean() + x.var(1).sum() + (x * y).norm(),
    "argmax": lambda x, y: x.argmax(1) + y.argmin(1),
    "where": _masked_fill,
    "scan": _scan,
    "sort": _sorted,
    "scatter": _scattered,
    "cat": _joined,
    "pool": lambda x, y: F.avg_pool2d((x * y)[None, None], 3, 2),
    "integers": lambda x, y: (x * 10).to(torch.int64) // 3 + (y > 0).to(torch.int32),
    "loss": lambda x, y: F.cross_entropy(x, y.argmax(1)),
}


IN_HALF = [name for name in GRAPHS if name != "integers"]  # Its cuts are of rounded values.


@pytest.mark.parametrize(
    ("name", "dtype"),
    [*((name, torch.float32) for name in GRAPHS), *((name, torch.bfloat16) for name in IN_HALF)],
)
def test_compiled_graphs_equal_eager_ones(spawn, name, dtype):
    """In bfloat16 up to two roundings: what is fused is computed in fp32."""

    def program(rank):
        torch.manual_seed(0)
        x, y = (torch.randn(24, 24, device="cuda", dtype=dtype) for _ in range(2))
        eager, compiled = GRAPHS[name](x, y), torch.compile(GRAPHS[name], fullgraph=True)(x, y)
        bound = {"atol": 0.03, "rtol": 0.016} if dtype == torch.bfloat16 else {}
        torch.testing.assert_close(compiled, eager, **bound)

    spawn(program, 1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_random_graphs_and_their_gradients_equal_eager_ones(spawn, dtype):
    """Six of a hundred, which `tests.torch.random_graphs` runs."""

    def program(rank):
        for seed in range(6):
            torch._dynamo.reset()
            compare(seed, dtype)

    spawn(program, 1)


def _causal(x):
    return F.scaled_dot_product_attention(x, x, x, is_causal=True)


def _masked(x):
    mask = torch.ones(x.shape[2], x.shape[2], device=x.device, dtype=torch.bool).tril()
    return F.scaled_dot_product_attention(x, x, x, attn_mask=mask)


def _grouped(x):
    return F.scaled_dot_product_attention(x, x[:, :2], x[:, :2], enable_gqa=True)


def _in_half(x):
    return _causal(x.bfloat16()).float()


@pytest.mark.parametrize("function", [_causal, _masked, _grouped, _in_half])
def test_attention_of_many_lengths_is_compiled_once(spawn, function):
    """By each kernel of it, with gradients; the second length makes the shapes dynamic."""

    def program(rank):
        graphs = CompileCounterWithBackend("inductor")
        compiled = torch.compile(function, backend=graphs, fullgraph=True)
        for batch, length in ((2, 32), (2, 48), (3, 64), (3, 40)):
            x = torch.randn(batch, 4, length, 16, device="cuda", requires_grad=True)
            results = []
            for each in (compiled, function):
                y = each(x)
                results.append((y, *torch.autograd.grad(y.sum(), x)))
            torch.testing.assert_close(*results, atol=0.02, rtol=0.01)
        assert graphs.frame_count <= 3  # Of one length, of many, and of many batches.

    from torch._dynamo.testing import CompileCounterWithBackend

    spawn(program, 1)


def test_attention_is_exported_for_many_lengths(spawn):
    """And compiled for a length that is known as it runs only."""

    def program(rank):
        class Attention(torch.nn.Module):
            def forward(self, x):
                return _causal(x)

        def of_positive(x, numbers):
            num = (numbers > 0).nonzero().shape[0]
            return _causal(x[:, :, :1].expand(-1, -1, num, -1))

        x, longer = (torch.randn(2, 4, length, 16, device="cuda") for length in (8, 24))
        shapes = ({2: torch.export.Dim("length", max=512)},)
        exported = torch.export.export(Attention(), (x,), dynamic_shapes=shapes).module()
        torch.testing.assert_close(exported(longer), _causal(longer))
        numbers = torch.randn(9, device="cuda")
        with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
            compiled = torch.compile(of_positive, fullgraph=True)(x, numbers)
        torch.testing.assert_close(compiled, of_positive(x, numbers))

    spawn(program, 1)


def test_code_in_cpp_is_refused_for_devices_and_runs_on_the_host(spawn, tmp_path):
    """Of AOTInductor and of `cpp_wrapper`."""
    from torch._inductor import aot_compile, aoti_compile_and_package, aoti_load_package

    def program(rank):
        host = torch.nn.Linear(4, 4)
        module, x = torch.nn.Linear(4, 4).cuda(), torch.randn(2, 4, device="cuda")
        exported = torch.export.export(module, (x,))
        for compile_ in (
            lambda: aoti_compile_and_package(exported, package_path=str(path)),
            lambda: aot_compile(exported.module(), (x,)),
            lambda: torch.compile(module, options={"cpp_wrapper": True})(x),
        ):
            with pytest.raises(Exception, match=r"AOTInductor .* is not simulated for CUDA"):
                compile_()
        exported = torch.export.export(host, (x.cpu(),))
        package = aoti_compile_and_package(exported, package_path=str(path))
        torch.testing.assert_close(aoti_load_package(package)(x.cpu()), host(x.cpu()))
        of_cuda = str(_named_cuda(path))
        for load in (
            lambda: aoti_load_package(of_cuda),
            lambda: torch._C._aoti.AOTIModelPackageLoader(of_cuda, "model", False, 1, -1),
            lambda: torch._export.aot_load("model.so", "cuda"),
        ):
            with pytest.raises(UnsupportedError, match=r"AOTInductor's .* is not simulated"):
                load()

    path = tmp_path / "model.pt2"
    spawn(program, 1)


def _named_cuda(path):
    """Write a package of the CPU as one of CUDA."""
    written = path.with_name("of_cuda.pt2")
    with ZipFile(path) as package, ZipFile(written, "w") as named:
        for info in package.infolist():
            data = package.read(info)
            is_fact = info.filename.endswith("_metadata.json")
            named.writestr(info, data.replace(b'"cpu"', b'"cuda"') if is_fact else data)
    return written


def test_a_kernel_of_cuda_code_is_refused_by_name(spawn):
    """A simulated device has no compiler of CUDA code."""

    def program(rank):
        code = "template <typename T> T twice(T x) { return x + x; }"
        kernel = torch.cuda.jiterator._create_jit_fn(code)
        with pytest.raises(UnsupportedError, match=r"torch\.cuda\.jiterator"):
            kernel(torch.ones(2, device="cuda"))

    spawn(program, 1)


MODES = [None, "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"]


@pytest.mark.parametrize("mode", MODES)
def test_products_with_epilogues_equal_eager_ones(spawn, mode, tmp_path, monkeypatch):
    """Candidates of fused kernels are timed too, and leave no times in inductor's cache."""

    def program(rank):
        def relu(x, y, bias):
            return torch.relu(x @ y)

        def linear(x, y, bias):
            return F.gelu(torch.addmm(bias, x, y)) * 2

        inputs = [torch.randn(size, device="cuda") for size in ((32, 48), (48, 32), (32,))]
        for function in (relu, linear):
            compiled = torch.compile(function, mode=mode)
            for _ in range(2):
                found, expected = compiled(*inputs), function(*inputs)
                torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)

    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    spawn(program, 1)
    assert [*tmp_path.rglob("*.py")]
    assert not [*tmp_path.rglob("*.kernel_perf")]


def test_small_compiled_steps_take_no_longer_than_eager_ones(spawn):
    """Forward and backward of a softmax differ by the bytes that they move."""

    def program(rank):
        def times_us(function):
            with torch.profiler.profile() as profile:
                y = function(x)
                torch.autograd.grad(y, x, torch.ones_like(y))
                torch.cuda.synchronize()
            events = [e for e in profile.events() if str(e.device_type).endswith("CUDA")]
            return [event.time_range.elapsed_us() for event in events]

        x = torch.randn(64, 64, device="cuda", requires_grad=True)
        for eager in (lambda x: torch.softmax(x, -1), lambda x: F.gelu(x) * 2 + 1):
            compiled = torch.compile(eager)
            times_us(compiled)
            forward, _, backward = times_us(compiled)
            assert forward < backward
            assert forward + backward < sum(times_us(eager)) - 1.7  # Without the gradient's ones.

    spawn(program, 1)


def test_a_rank_without_triton_is_told_what_to_install(spawn, monkeypatch):
    """And how to go on without it."""
    import torch._inductor.scheduler as scheduler

    def program(rank):
        with pytest.raises(RuntimeError, match=r"pip install triton; or set SIMRANK_COMPILE=eager"):
            torch.compile(lambda x: x * 2)(torch.ones(3, device="cuda"))

    monkeypatch.setattr(scheduler, "has_triton", lambda *_: False)
    spawn(program)


def _attributes(value):
    """Yield what lies at a global of torch: itself, or the attributes of its class or object."""
    is_class = isinstance(value, type)
    if is_class or type(value).__module__.startswith("torch"):
        names = vars(value) if hasattr(value, "__dict__") else {}
        for name, held in list(names.items()):
            if not name.startswith("__") and not (is_class and callable(held)):
                yield value, name, held


def state_of_torch():
    """Return the attributes of torch's modules, classes and objects, by owner and name."""
    found = {}
    for home, module in list(sys.modules.items()):
        if not home.startswith("torch") or not isinstance(module, ModuleType):
            continue
        for name, value in list(vars(module).items()):
            if not name.startswith("__"):
                found[id(module), name] = f"{home}.{name}", value
                if str(getattr(value, "__module__", "")).startswith("torch"):
                    found.update(
                        ((id(owner), inner), (f"{home}.{name}.{inner}", held))
                        for owner, inner, held in _attributes(value)
                    )
    return found


def _is_same(value, other):
    return value is other or (isinstance(value, (int, float, str)) and value == other)


def _owner(place):
    module, name, _ = place
    owner, _, attribute = name.rpartition(".")
    home = sys.modules[module]
    return id(getattr(home, owner) if owner else home), attribute


def test_what_is_set_for_as_long_as_a_compilation_lasts_is_the_ranks_own(spawn):
    """All of torch is compared while configurations are timed: a rank waits there."""
    midst = []

    def program(rank):
        product = torch.compile(torch.mm, mode="max-autotune-no-cudagraphs")
        made = [torch.ones(64, 32, device="cuda"), torch.ones(32, 16, device="cuda")]
        product(*made)  # Imports what compiles.
        benchmarking = import_module("torch._inductor.runtime.benchmarking")
        kind = benchmarking.InductorBenchmarker
        timed = kind.benchmark_gpu

        def look(self, *args, **kwargs):
            midst.append(state_of_torch())
            return timed(self, *args, **kwargs)

        kind.benchmark_gpu = look
        torch._dynamo.reset()
        before = state_of_torch()
        product(torch.ones(96, 64, device="cuda"), torch.ones(64, 48, device="cuda"))
        after = state_of_torch()
        kind.benchmark_gpu = timed
        own = {_owner(place) for place in (*PLACES, *MID_COMPILATION) if place[0] in sys.modules}
        others = {
            text
            for state in midst
            for key, (text, value) in state.items()
            if key in before and key in after and key not in own and "._TLS." not in text
            if not _is_same(value, before[key][1]) and _is_same(before[key][1], after[key][1])
        }
        assert not others, "simrank.torch.dynamo.MID_COMPILATION lacks these"

    spawn(program, 1)
    assert midst, "nothing was timed"


class Passing(TorchFunctionMode):
    """A mode of the program that changes nothing."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        """Call it."""
        return function(*args, **(kwargs or {}))


def test_ranks_that_compile_in_turns_keep_their_function_modes(spawn):
    """Dynamo takes them off a stack while it compiles, and keeps them in one place."""

    def program(rank):
        dist.init_process_group("nccl")
        torch.cuda.set_device(rank)
        product = torch.compile(torch.mm, mode="max-autotune-no-cudagraphs")
        a, b = torch.ones(32 * (rank + 1), 32, device="cuda"), torch.ones(32, 16, device="cuda")
        with Passing():
            assert product(a, b).sum().item() == a.shape[0] * 32 * 16
            assert torch._C._len_torch_function_stack() == 1
        assert torch._C._len_torch_function_stack() == 0

    spawn(program, 3)
