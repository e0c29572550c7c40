"""What whole programs do: autograd, modes, mixed precision, layers, optimizers."""

from __future__ import annotations

import copy
import threading
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - torch's custom.
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)
from torch.utils.flop_counter import FlopCounterMode

from tests.torch.cuda.check import same

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")


def test_gradients_equal_the_host(cuda):
    """Also through copies from the host, and twice."""
    w, x = torch.randn(4, 4), torch.randn(3, 4)
    host = w.clone().requires_grad_()
    (x @ host).tanh().pow(2).sum().backward()
    device = w.cuda().requires_grad_()
    (x.cuda() @ device).tanh().pow(2).sum().backward()
    assert device.grad.is_cuda
    same(device.grad, host.grad)
    crossing = w.clone().requires_grad_()
    (x.cuda() @ crossing.cuda()).tanh().pow(2).sum().backward()
    assert crossing.grad.device.type == "cpu"
    same(crossing.grad, host.grad)
    (first,) = torch.autograd.grad((device**3).sum(), device, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), device)
    same(second, 6 * w)


def test_backward_runs_on_the_callers_thread(cuda):
    """Functions, hooks and post-accumulate hooks are all called there, with device tensors."""
    seen = []

    def see(what, tensor):
        seen.append((what, threading.get_ident(), tensor.is_cuda))

    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            see("forward", x)
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            see("backward", gradient)
            return gradient * 2

    x = torch.ones(3, device="cuda", requires_grad=True)
    x.register_hook(partial(see, "hook"))
    x.register_post_accumulate_grad_hook(lambda p: see("accumulated", p.grad))
    Double.apply(x).sum().backward()
    me = threading.get_ident()
    names = ("forward", "backward", "hook", "accumulated")
    assert seen == [(name, me, True) for name in names]


def test_checkpointing_replays_random_numbers(cuda):
    """Dropout is the same in the recomputation, in both kinds of checkpoint."""
    for reentrant in (True, False):
        model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.Tanh(), nn.Linear(8, 8)).cuda()
        x = torch.randn(4, 8, device="cuda", requires_grad=True)
        torch.cuda.manual_seed(5)
        model(x).sum().backward()
        expected, x.grad = x.grad.clone(), None
        torch.cuda.manual_seed(5)
        checkpoint(model, x, use_reentrant=reentrant).sum().backward()
        same(x.grad, expected)


def test_selective_checkpointing_inside_a_mode(cuda):
    """Modes nest: FlopCounterMode around a checkpoint with a policy."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4)).cuda()
    x = torch.ones(2, 4, device="cuda", requires_grad=True)

    def policy(_context, op, *_args, **_kwargs):
        saves = "mm" in str(op)
        return CheckpointPolicy.MUST_SAVE if saves else CheckpointPolicy.PREFER_RECOMPUTE

    model(x).sum().backward()
    expected, x.grad = x.grad.clone(), None
    contexts = partial(create_selective_checkpoint_contexts, policy)
    with FlopCounterMode(display=False):
        checkpoint(model, x, use_reentrant=False, context_fn=contexts).sum().backward()
    same(x.grad, expected)


def test_dispatch_modes_see_device_tensors(cuda):
    """A TorchDispatchMode sees the operators and their device; flops are counted."""
    from torch.utils._python_dispatch import TorchDispatchMode

    seen = []

    class Mode(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            result = func(*args, **(kwargs or {}))
            seen.append((str(func), getattr(result, "is_cuda", None), kwargs or {}))
            return result

    with Mode():
        (torch.ones(3, device="cuda") * 2).cpu()
    assert any("mul" in name and on_device for name, on_device, _ in seen)
    assert any(str(kwargs.get("device", "")).startswith("cuda") for _, _, kwargs in seen)
    model = nn.Linear(4, 4).cuda()
    with FlopCounterMode(display=False) as counter:
        model(torch.ones(2, 4, device="cuda")).sum().backward()
    assert counter.get_total_flops() == 2 * 2 * 4 * 4 * 2


@pytest.mark.filterwarnings("ignore:.*torch.jit:FutureWarning")  # `vmap` makes one, too.
class Named(TorchFunctionMode):
    """Keeps the names of the functions that a program calls."""

    def __init__(self):
        super().__init__()
        self.names = set()

    def __torch_function__(self, function, types, args=(), kwargs=None):
        """Keep the name, and call it."""
        self.names.add(str(function))
        return function(*args, **(kwargs or {}))


def test_function_modes_see_no_operator_that_cuda_lacks(cuda):
    """Where devices are chosen, seeded and waited for, graphs replayed, and storages resized."""
    graph, held = torch.cuda.CUDAGraph(), torch.ones(4, device="cuda")
    with Named() as mode:
        with torch.cuda.stream(torch.cuda.Stream()):
            held.record_stream(torch.cuda.current_stream())
        with torch.cuda.device(1):
            torch.cuda.manual_seed(3)
            torch.rand(2, device="cuda", generator=torch.cuda.default_generators[1])
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            made = held * 2
        graph.replay()
        made.sum().item()
        made.untyped_storage().resize_(64)
        torch.cuda._sleep(100)
    assert any("mul" in name for name in mode.names)
    assert not [name for name in mode.names if "simrank" in name]


def test_function_transforms(cuda):
    """Also vmap of grad, jvp and functional_call."""

    def function(w, x):
        return (x @ w).sin().sum()

    w, x = torch.randn(3, 3, device="cuda"), torch.randn(5, 3, device="cuda")
    gradients = torch.func.vmap(torch.func.grad(function), (None, 0))(w, x)
    assert gradients.shape == (5, 3, 3)
    assert gradients.is_cuda
    same(torch.func.jvp(torch.sin, (x,), (torch.ones_like(x),))[1], x.cpu().cos())
    assert torch.func.functional_call(nn.Linear(3, 3).cuda(), {}, (x,)).is_cuda


def test_tensor_subclasses(cuda):
    """A subclass keeps its type and sees calls."""
    calls = []

    class Sub(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            calls.append(func)
            return super().__torch_function__(func, types, args, kwargs or {})

    y = torch.ones(3, device="cuda").as_subclass(Sub) + 1
    assert type(y) is Sub
    assert y.is_cuda
    assert calls


def test_fake_tensors(cuda):
    """FakeTensorMode knows the devices."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode() as mode:
        y = torch.ones(3, device="cuda") @ torch.ones(3, 2, device="cuda")
        assert y.is_cuda
        assert y.shape == (2,)
    assert mode.from_tensor(torch.ones(2, device="cuda:1")).device.index == 1


def test_saved_tensors_on_the_host(cuda):
    """save_on_cpu with pinned memory."""
    with torch.autograd.graph.save_on_cpu(pin_memory=True):
        x = torch.ones(3, device="cuda", requires_grad=True)
        y = (x * x).sum()
    y.backward()
    same(x.grad, torch.full((3,), 2.0))


def test_autocast(cuda):
    """Lists of operators are CUDA's, and the host's are left alone."""
    x, layer = torch.randn(4, 4, device="cuda"), nn.Linear(4, 4).cuda()
    with torch.autocast("cuda", dtype=torch.bfloat16):
        y = layer(x)
        assert y.dtype == torch.bfloat16
        assert F.softmax(y, -1).dtype == torch.float32
        assert y.float().pow(2).dtype == torch.float32
        assert F.layer_norm(y, (4,)).dtype == torch.float32
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.float32
        assert torch.is_autocast_enabled("cuda")
        assert torch.get_autocast_dtype("cuda") == torch.bfloat16
    y.float().sum().backward()
    assert layer.weight.grad.dtype == torch.float32
    with torch.amp.autocast("cuda"):
        assert (x @ x).dtype == torch.float16


def test_grad_scaler(cuda):
    """A step is taken with finite gradients, and skipped with the scale halved otherwise."""
    scaler = torch.amp.GradScaler("cuda", init_scale=1024.0)
    model = nn.Linear(4, 4).cuda()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    before = model.weight.detach().clone()
    scaler.scale(model(torch.ones(2, 4, device="cuda")).sum()).backward()
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()
    assert not torch.equal(before, model.weight)
    assert scaler.get_scale() == 1024.0
    before = model.weight.detach().clone()
    scaler.scale(model(torch.ones(2, 4, device="cuda")).sum() * float("inf")).backward()
    scaler.step(optimizer)
    scaler.update()
    assert torch.equal(before, model.weight)
    assert scaler.get_scale() == 512.0


def test_attention(cuda):
    """Causal, grouped queries, masks; gradients equal the host's."""
    host = [torch.randn(2, 4, 8, 16).requires_grad_() for _ in range(3)]
    device = [t.detach().cuda().requires_grad_() for t in host]
    expected = F.scaled_dot_product_attention(*host, is_causal=True)
    expected.square().sum().backward()
    actual = F.scaled_dot_product_attention(*device, is_causal=True)
    actual.square().sum().backward()
    same(actual, expected)
    for a, b in zip(device, host, strict=True):
        same(a.grad, b.grad, 1e-4)
    q, k, v = device
    grouped = F.scaled_dot_product_attention(q, k[:, :2], v[:, :2], enable_gqa=True)
    assert grouped.shape == q.shape
    mask = torch.ones(8, 8, device="cuda").tril().bool()
    same(F.scaled_dot_product_attention(q, k, v, attn_mask=mask), expected)


@pytest.mark.parametrize("num_heads", [8, 2])
def test_flash_attention_and_its_gradients_are_those_of_fp32(cuda, num_heads):
    """Heads of queries may share one of keys and values, as CUDA's kernel has it."""
    torch.manual_seed(0)
    parts = [torch.randn(2, heads, 16, 32) for heads in (8, num_heads, num_heads)]

    def computed(device, dtype, backends):
        inputs = [part.to(device, dtype).detach().requires_grad_() for part in parts]
        with sdpa_kernel(backends):
            out = F.scaled_dot_product_attention(*inputs, is_causal=True, enable_gqa=True)
        out.float().square().sum().backward()
        return [value.detach().cpu().float() for value in (out, *(x.grad for x in inputs))]

    expected = computed("cpu", torch.float32, [SDPBackend.MATH])
    for found, value in zip(
        computed("cuda", torch.bfloat16, [SDPBackend.FLASH_ATTENTION]), expected, strict=True
    ):
        assert found.shape == value.shape
        assert (found - value).norm() < 0.01 * value.norm()


def test_flash_attention_returns_what_cudas_kernel_returns(cuda):
    """Context parallelism looks at all of it: nothing of sequences, and a state of two words."""
    q = torch.randn(1, 4, 16, 32, device="cuda", dtype=torch.bfloat16)
    out, lse, *rest = torch.ops.aten._scaled_dot_product_flash_attention(q, q, q)
    assert (out.shape, lse.shape, lse.dtype) == (q.shape, (1, 4, 16), torch.float32)
    assert lse.is_contiguous()
    assert rest[:4] == [None, None, 16, 16]
    assert [(each.shape, each.dtype) for each in rest[4:]] == [
        ((2,), torch.uint64), ((), torch.uint64), ((0,), torch.bfloat16),
    ]  # fmt: skip


def test_flash_attention_is_one_operation(recorded):
    """Where CUDA takes flash attention, the record shows it; the math path can be asked for."""
    q = torch.randn(2, 4, 8, 16, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    recorded()
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        out = F.scaled_dot_product_attention(q, q, q, is_causal=True)
    assert "_scaled_dot_product_flash_attention" in [op.name for op in recorded()]
    out.sum().backward()
    assert q.grad is not None
    with sdpa_kernel(SDPBackend.MATH):
        math = F.scaled_dot_product_attention(q, q, q, is_causal=True)
    same(out, math, 2e-2)


OPTIMIZERS = {
    "sgd": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9}),
    "adam": (torch.optim.Adam, {}),
    "adamw_fused": (torch.optim.AdamW, {"fused": True}),
    "adam_foreach": (torch.optim.Adam, {"foreach": True}),
    "adamw_capturable": (torch.optim.AdamW, {"capturable": True}),
    "sgd_fused": (torch.optim.SGD, {"lr": 0.1, "fused": True}),
    "adagrad": (torch.optim.Adagrad, {}),
    "rmsprop": (torch.optim.RMSprop, {}),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers_equal_the_host(cuda, name):
    """Plain, foreach, fused and capturable; state travels with the device."""
    kind, options = OPTIMIZERS[name]
    host = nn.Linear(4, 4)
    device = copy.deepcopy(host).cuda()
    on_host = {key: value for key, value in options.items() if key != "capturable"}
    pairs = (
        (host, kind(host.parameters(), **on_host)),
        (device, kind(device.parameters(), **options)),
    )
    for _ in range(3):
        for model, optimizer in pairs:
            optimizer.zero_grad()
            x = torch.arange(8.0, device=model.weight.device).reshape(2, 4) / 8
            model(x).square().sum().backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
    same(host.weight, device.weight, 1e-4)
    optimizer = pairs[1][1]
    optimizer.load_state_dict(optimizer.state_dict())
    for state in optimizer.state.values():
        assert all(t.is_cuda for key, t in state.items() if key != "step" and torch.is_tensor(t))


@pytest.mark.parametrize("is_tensor", [False, True], ids=["number", "tensor"])
@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.AdamW])
def test_fused_adam_takes_narrow_states_beside_wide_parameters(cuda, kind, is_tensor):
    """A step in fp32 whose states are rounded once, as CUDA's mixed kernel; CPU torch has none."""
    names = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq")
    host, device = nn.Parameter(torch.randn(5, 3)), nn.Parameter(torch.empty(5, 3, device="cuda"))
    device.data.copy_(host.data)
    rate = torch.tensor(0.1, device="cuda") if is_tensor else 0.1
    wide = kind([host], lr=0.1, fused=True, amsgrad=True)
    mixed = kind([device], lr=rate, fused=True, amsgrad=True)
    for _ in range(3):
        host.grad = torch.randn(5, 3)
        device.grad = host.grad.cuda()
        wide.step()
        mixed.step()
        for name in names:  # Both go on from the rounded states.
            expected, found = wide.state[host][name], mixed.state[device][name].bfloat16()
            mixed.state[device][name] = found
            assert torch.equal(expected.bfloat16(), found.cpu())
            expected.copy_(found)
        same(host, device, 1e-6)
    assert mixed.state[device]["exp_avg"].dtype is torch.bfloat16


def test_fused_adam_refuses_wide_states_beside_narrow_parameters(cuda):
    """In the words of CUDA's kernel."""
    narrow = nn.Parameter(torch.ones(2, device="cuda", dtype=torch.bfloat16))
    optimizer = torch.optim.AdamW([narrow], fused=True)
    narrow.grad = torch.ones_like(narrow)
    optimizer.step()
    state = optimizer.state[narrow]
    state.update({name: state[name].float() for name in ("exp_avg", "exp_avg_sq")})
    with pytest.raises(RuntimeError, match="AdamW requires float32 params, got BFloat16"):
        optimizer.step()


LAYERS = {
    "conv2d": (lambda: nn.Conv2d(3, 4, 3, padding=1), (2, 3, 8, 8)),
    "conv1d_groups": (lambda: nn.Conv1d(4, 4, 3, groups=4), (2, 4, 9)),
    "conv_transpose": (lambda: nn.ConvTranspose2d(3, 4, 3), (2, 3, 5, 5)),
    "batch_norm": (lambda: nn.BatchNorm2d(3), (4, 3, 5, 5)),
    "layer_norm": (lambda: nn.LayerNorm(8), (2, 8)),
    "rms_norm": (lambda: nn.RMSNorm(8), (2, 8)),
    "group_norm": (lambda: nn.GroupNorm(2, 4), (2, 4, 6)),
    "gelu": (nn.GELU, (9,)),
    "max_pool": (lambda: nn.MaxPool2d(2), (1, 2, 6, 6)),
    "avg_pool": (lambda: nn.AvgPool2d(2), (1, 2, 6, 6)),
    "softmax": (lambda: nn.Softmax(-1), (3, 5)),
    "lstm": (lambda: nn.LSTM(4, 6, 2), (5, 2, 4)),
    "gru": (lambda: nn.GRU(4, 6), (5, 2, 4)),
    "transformer": (lambda: nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0), (5, 2, 8)),
    "attention": (lambda: nn.MultiheadAttention(8, 2), (5, 2, 8)),
    "upsample": (lambda: nn.Upsample(scale_factor=2), (1, 2, 4, 4)),
}


@pytest.mark.parametrize("name", LAYERS)
def test_layers_equal_the_host(cuda, name):
    """Outputs, gradients of inputs and of parameters."""
    make, shape = LAYERS[name]
    host = make()
    device = copy.deepcopy(host).cuda()
    inputs = torch.randn(shape)
    results = []
    for model, where in ((host, "cpu"), (device, "cuda")):
        x = inputs.clone().to(where).requires_grad_()
        args = (x, x, x) if name == "attention" else (x,)
        out = model(*args)
        out = out[0] if isinstance(out, tuple) else out
        out.square().sum().backward()
        results.append((out, x.grad))
    same(results[0][0], results[1][0], 1e-4)
    same(results[0][1], results[1][1], 1e-3)
    for a, b in zip(host.parameters(), device.parameters(), strict=True):
        same(a.grad, b.grad, 1e-3)


def test_embeddings_and_losses(cuda):
    """Repeated indices add up; ignored targets are ignored."""
    host = nn.Embedding(10, 4)
    device = copy.deepcopy(host).cuda()
    index = torch.tensor([1, 3, 3])
    host(index).sum().backward()
    device(index.cuda()).sum().backward()
    same(host.weight.grad, device.weight.grad)
    logits, target = torch.randn(4, 7), torch.tensor([0, 3, 6, -100])
    same(F.cross_entropy(logits, target), F.cross_entropy(logits.cuda(), target.cuda()))


def test_inference_mode_and_no_grad(cuda):
    """Inference tensors, and parameters whose data is exchanged."""
    model = nn.Linear(3, 3).cuda()
    with torch.inference_mode():
        y = model(torch.ones(1, 3, device="cuda"))
        assert y.is_inference()
        y.add_(1)
    with torch.no_grad():
        model.weight.mul_(2)
        model.weight.data = torch.ones(3, 3, device="cuda:1")
    assert model.weight.device.index == 1


def test_custom_operators(cuda):
    """Registered by decorator and by library; the other device is refused."""

    @torch.library.custom_op("simrank_test::twice", mutates_args=(), device_types="cuda")
    def twice(x: torch.Tensor) -> torch.Tensor:
        assert x.is_cuda
        return x * 2

    twice.register_autograd(lambda _ctx, gradient: gradient * 2)
    x = torch.ones(3, device="cuda", requires_grad=True)
    twice(x).sum().backward()
    same(x.grad, torch.full((3,), 2.0))
    with pytest.raises(NotImplementedError):
        twice(torch.ones(3))
    library = torch.library.Library("simrank_test2", "DEF")
    library.define("increment(Tensor(a!) x) -> ()")
    library.impl("increment", lambda x: (x.add_(1), None)[1], "CUDA")
    y = torch.zeros(2, device="cuda")
    torch.ops.simrank_test2.increment(y)
    same(y, torch.ones(2))


@pytest.mark.filterwarnings("ignore:.*torch.jit:FutureWarning")
def test_scripted_functions(cuda):
    """torch.jit.script runs on the devices."""

    @torch.jit.script
    def function(x, y):
        return torch.relu(x) + y

    x = torch.ones(2, device="cuda")
    for _ in range(4):
        assert function(x, x).is_cuda


def test_eager_stance_of_compile(cuda):
    """torch.compile in the stance `force_eager`, and disabled functions."""

    @torch.compile
    def double(x):
        return x * 2

    with torch.compiler.set_stance("force_eager"):
        assert double(torch.ones(2, device="cuda")).is_cuda
    assert torch.compiler.disable(lambda x: x + 1)(torch.ones(2, device="cuda")).is_cuda


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_compiled_modules(cuda, backend):
    """Traced by dynamo and AOTAutograd with device tensors, computed by the devices' kernels."""
    model = nn.Linear(4, 4).cuda()
    compiled = torch.compile(model, backend=backend)
    x = torch.randn(2, 4, device="cuda")
    same(compiled(x), model(x))
    compiled(x).sum().backward()
    same(model.bias.grad, torch.full((4,), 2.0))
    torch.compiler.reset()


def test_profiler(cuda):
    """A profile of both activities has the host's events."""
    from torch.profiler import ProfilerActivity, profile

    activities = [ProfilerActivity.CPU, ProfilerActivity.CUDA]
    with profile(activities=activities, acc_events=True) as result:
        torch.ones(3, device="cuda") + 1
    assert any("aten::add" in event.key for event in result.key_averages())


def test_data_loader_pins(cuda):
    """Batches are pinned by the loader's thread."""
    from torch.utils.data import DataLoader, TensorDataset

    for (batch,) in DataLoader(TensorDataset(torch.arange(8.0)), batch_size=4, pin_memory=True):
        assert batch.is_pinned()
        assert batch.cuda(non_blocking=True).is_cuda


def test_nothing_is_recorded_of_the_host(recorded):
    """Forward, backward and a fused step are recorded; the host's work is not."""
    model = nn.Linear(4, 4).cuda()
    optimizer = torch.optim.Adam(model.parameters(), fused=True)
    x = torch.ones(2, 4, device="cuda")
    recorded()
    loss = model(x).relu().sum()
    forward = [op.name for op in recorded()]
    assert forward == ["addmm", "relu", "sum.dim_IntList"]
    loss.backward()
    backward = [op.name for op in recorded()]
    assert "threshold_backward" in backward
    assert "mm" in backward
    optimizer.step()
    assert "_fused_adam_" in [op.name for op in recorded()]
    torch.ones(2) + 1
    assert recorded() == []
