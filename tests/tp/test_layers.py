"""Tensor-parallel layers, as a user tests them: equal to the serial model at every size.

This folder is the example of how to test code of one's own with `@pytest.mark.ranks`.
"""

import json

import numpy as np
import pytest

import simrank
import simrank.distributed as dist
from simrank import tp
from simrank.tp import ModelParallelConfig
from simrank.trace import Timeline

HIDDEN, FFN, SEQUENCE, BATCH = 16, 32, 8, 2
TOLERANCE = {"float32": 1e-5, "bfloat16": 5e-2, "float16": 5e-3}
SIZES = [1, 2, 4, 8]


def start(tp_size, **settings):
    """Initialise the groups and return a config."""
    if not dist.is_initialized():
        dist.init_process_group("nccl")
    tp.parallel_state.destroy_model_parallel()
    tp.parallel_state.initialize_model_parallel(tp_size)
    tp.model_parallel_manual_seed(42)
    return tp.ModelParallelConfig(tensor_model_parallel_size=tp_size, **settings)


def numbers(ctx, *shape, seed, dtype="float32"):
    """Return the same numbers on every rank."""
    drawn = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
    return ctx.from_numpy(drawn).to(dtype).cuda()


def values(tensor):
    """Return a tensor's numbers in float64."""
    return tensor.float().numpy().astype(np.float64)


def whole(tensor, dim):
    """Return a tensor that ranks hold parts of along a dim, put together."""
    group = tp.parallel_state.get_tensor_model_parallel_group()
    parts = [tensor.new_empty(tensor.shape) for _ in range(dist.get_world_size(group))]
    dist.all_gather(parts, tensor.contiguous(), group=group)
    return np.concatenate([values(part) for part in parts], axis=dim)


def part(array, dim):
    """Return this rank's part of an array along a dim."""
    size = tp.parallel_state.get_tensor_model_parallel_world_size()
    return np.split(array, size, axis=dim)[tp.parallel_state.get_tensor_model_parallel_rank()]


class Mlp:
    """Two layers with a ReLU between them, as in Megatron."""

    def __init__(self, config):
        self.up = tp.ColumnParallelLinear(HIDDEN, FFN, config=config)
        self.down = tp.RowParallelLinear(FFN, HIDDEN, config=config)

    def forward(self, x):
        self.inner, _ = self.up(x)
        return self.down(self.inner.relu())[0]

    def backward(self, grad):
        grad = self.down.backward(grad)
        return self.up.backward(grad * (self.inner > 0).to(grad.dtype))


def serial_mlp(x, grad, up, down, up_bias, down_bias):
    """Return output and gradients of the same model in float64 numpy."""
    inner = x @ up.T + up_bias
    active = np.maximum(inner, 0)
    output = active @ down.T + down_bias
    grad_inner = (grad @ down) * (inner > 0)
    rows = [a.reshape(-1, a.shape[-1]) for a in (grad, active, grad_inner, x)]
    return {
        "output": output,
        "input": grad_inner @ up,
        "up": rows[2].T @ rows[3],
        "down": rows[0].T @ rows[1],
        "up bias": rows[2].sum(0),
        "down bias": rows[0].sum(0),
    }


def check_mlp(ctx, tp_size, dtype="float32", **settings):
    """Compare a forward and a backward of the MLP with the serial model."""
    config = start(tp_size, params_dtype=getattr(ctx, dtype), **settings)
    mlp = Mlp(config)
    x = numbers(ctx, SEQUENCE, BATCH, HIDDEN, seed=1, dtype=dtype)
    grad = numbers(ctx, SEQUENCE, BATCH, HIDDEN, seed=2, dtype=dtype)
    own_x, own_grad = x, grad
    if config.sequence_parallel:
        own_x = tp.scatter_to_sequence_parallel_region(x)
        own_grad = tp.scatter_to_sequence_parallel_region(grad)
    output = mlp.forward(own_x)
    grad_input = mlp.backward(own_grad)
    wanted = serial_mlp(
        values(x), values(grad), whole(mlp.up.weight.data, 0), whole(mlp.down.weight.data, 1),
        whole(mlp.up.bias.data, 0), values(mlp.down.bias.data),
    )  # fmt: skip
    found = {
        "output": whole(output, 0) if config.sequence_parallel else values(output),
        "input": whole(grad_input, 0) if config.sequence_parallel else values(grad_input),
        "up": whole(mlp.up.weight.grad, 0),
        "down": whole(mlp.down.weight.grad, 1),
        "up bias": whole(mlp.up.bias.grad, 0),
        "down bias": values(mlp.down.bias.grad),
    }
    for name, array in wanted.items():
        scale = max(np.abs(array).max(), 1e-3)
        error = np.abs(found[name] - array).max() / scale
        assert error < TOLERANCE[dtype], (name, error)


@pytest.mark.ranks(8)
@pytest.mark.parametrize("sequence_parallel", [False, True])
@pytest.mark.parametrize("tp_size", SIZES)
def test_an_mlp_equals_the_serial_model_at_every_size(ctx, tp_size, sequence_parallel):
    """Outputs, gradients of the input and of all parameters; with and without sequence parallel."""
    check_mlp(ctx, tp_size, sequence_parallel=sequence_parallel)


@pytest.mark.ranks(4)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("gemm", ["library", "triton"])
def test_an_mlp_equals_the_serial_model_in_16_bits(ctx, dtype, gemm):
    """With the library's products, and with a Triton kernel's."""
    if gemm == "triton":
        pytest.importorskip("triton")
    check_mlp(ctx, 4, dtype=dtype, gemm=gemm)


@pytest.mark.ranks(4, races="error", strict=True)
@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_overlap_has_no_race_and_leaves_no_work_behind(ctx, sequence_parallel):
    """What runs beside the weight gradient is waited for."""
    check_mlp(ctx, 4, sequence_parallel=sequence_parallel)


@pytest.mark.ranks(8)
@pytest.mark.parametrize("tp_size", SIZES)
def test_the_full_weight_is_the_same_at_every_size(ctx, tp_size):
    """Two layers, one after the other, from one seed."""
    config = start(tp_size)
    mlp = Mlp(config)
    up, down = whole(mlp.up.weight.data, 0), whole(mlp.down.weight.data, 1)
    generator = np.random.Generator(np.random.PCG64(42))
    for found, shape in ((up, (FFN, HIDDEN)), (down, (HIDDEN, FFN))):
        drawn = generator.standard_normal(shape).astype(np.float32) * np.float32(0.02)
        assert np.allclose(found, drawn, rtol=1e-6)


@pytest.mark.ranks(8)
@pytest.mark.parametrize("tp_size", SIZES)
def test_a_row_layer_equals_the_concatenated_product(ctx, tp_size):
    """Its output is the product with all columns, not a mean; all ranks have the same bytes."""
    config = start(tp_size)
    layer = tp.RowParallelLinear(HIDDEN, FFN, config=config, bias=False)
    x = numbers(ctx, 4, HIDDEN, seed=3)
    own = tp.scatter_to_tensor_model_parallel_region(x)
    output, _ = layer(own)
    assert np.allclose(values(output), values(x) @ whole(layer.weight.data, 1).T, atol=1e-6)
    every = [output.new_empty(output.shape) for _ in range(8)]
    dist.all_gather(every, output)
    assert all((each.numpy() == output.numpy()).all() for each in every)


@pytest.mark.ranks(4)
def test_options_return_what_megatrons_do(ctx):
    """gather_output, input_is_parallel and skip_bias_add."""
    config = start(4)
    x = numbers(ctx, SEQUENCE, HIDDEN, seed=4)
    column = tp.ColumnParallelLinear(HIDDEN, FFN, config=config, gather_output=True)
    row = tp.RowParallelLinear(
        FFN, HIDDEN, config=config, input_is_parallel=False, skip_bias_add=True
    )
    inner, none = column(x)
    assert none is None
    assert tuple(inner.shape) == (SEQUENCE, FFN)
    output, bias = row(inner)
    assert bias is row.bias.data
    wanted = values(x) @ whole(column.weight.data, 0).T @ whole(row.weight.data, 1).T
    assert np.allclose(values(output), wanted, atol=1e-5)
    grad = column.backward(row.backward(numbers(ctx, SEQUENCE, HIDDEN, seed=5)))
    assert tuple(grad.shape) == (SEQUENCE, HIDDEN)
    assert row.bias.grad is None


@pytest.mark.ranks(2)
def test_gradients_add_up_until_they_are_zeroed(ctx):
    """As over the micro-batches of a step."""
    mlp = Mlp(start(2))
    x, grad = (numbers(ctx, 4, HIDDEN, seed=seed) for seed in (1, 2))
    for _ in range(2):
        mlp.forward(x)
        mlp.backward(grad)
    twice = values(mlp.up.weight.grad)
    mlp.up.zero_grad()
    mlp.forward(x)
    mlp.backward(grad)
    assert np.allclose(twice, 2 * values(mlp.up.weight.grad), rtol=1e-5)


class Attention:
    """Self-attention whose heads are split over the ranks."""

    num_heads, head_size = 8, 4

    def __init__(self, config):
        size = self.num_heads * self.head_size
        self.query, self.key, self.value = (
            tp.ColumnParallelLinear(HIDDEN, size, config=config) for _ in range(3)
        )
        self.out = tp.RowParallelLinear(size, HIDDEN, config=config)

    def _heads(self, x):
        """Return [s, B, h * d] as [B * h, s, d]."""
        s, b, width = x.shape
        heads = x.reshape(s, b * (width // self.head_size), self.head_size)
        return heads.transpose(0, 1).contiguous()

    def _joined(self, heads, b):
        """Return [B * h, s, d] as [s, B, h * d]."""
        return heads.transpose(0, 1).contiguous().reshape(heads.shape[1], b, -1)

    def forward(self, x):
        projected = [layer(x)[0] for layer in (self.query, self.key, self.value)]
        self.batch = projected[0].shape[1]
        self.q, self.k, self.v = (self._heads(each) for each in projected)
        self.p = (self.q.bmm(self.k.transpose(1, 2)) * self.head_size**-0.5).softmax(-1)
        return self.out(self._joined(self.p.bmm(self.v), self.batch))[0]

    def backward(self, grad):
        grad = self._heads(self.out.backward(grad))
        grad_v = self.p.transpose(1, 2).bmm(grad)
        grad_p = grad.bmm(self.v.transpose(1, 2))
        grad_s = self.p * (grad_p - (grad_p * self.p).sum(-1, keepdim=True))
        grad_s = grad_s * self.head_size**-0.5
        grads = (grad_s.bmm(self.k), grad_s.transpose(1, 2).bmm(self.q), grad_v)
        layers = (self.query, self.key, self.value)
        parts = [
            layer.backward(self._joined(each, self.batch))
            for layer, each in zip(layers, grads, strict=True)
        ]
        return parts[0] + parts[1] + parts[2]


class Block:
    """Attention and MLP, each with a residual."""

    def __init__(self, config):
        self.attention, self.mlp = Attention(config), Mlp(config)

    def forward(self, x):
        x = x + self.attention.forward(x)
        return x + self.mlp.forward(x)

    def backward(self, grad):
        grad = grad + self.mlp.backward(grad)
        return grad + self.attention.backward(grad)

    def layers(self):
        inner = self.attention
        return [inner.query, inner.key, inner.value, inner.out, self.mlp.up, self.mlp.down]


def run_block(ctx, tp_size, *, sequence_parallel):
    """Return output, input gradient and full weight gradients of one step."""
    config = start(tp_size, sequence_parallel=sequence_parallel)
    block = Block(config)
    x, grad = (numbers(ctx, SEQUENCE, BATCH, HIDDEN, seed=seed) for seed in (7, 8))
    if sequence_parallel:
        x, grad = (tp.scatter_to_sequence_parallel_region(each) for each in (x, grad))
    output, grad_input = block.forward(x), block.backward(grad)
    if sequence_parallel:
        output, grad_input = (tp.mappings.gather_first_dim(
            each, tp.parallel_state.get_tensor_model_parallel_group()
        ) for each in (output, grad_input))  # fmt: skip
    weights = [whole(each.weight.grad, each.weight.partition_dim) for each in block.layers()]
    return [values(output), values(grad_input), *weights]


@pytest.mark.ranks(8)
@pytest.mark.parametrize("sequence_parallel", [False, True])
@pytest.mark.parametrize("tp_size", SIZES[1:])
def test_an_attention_block_equals_the_serial_model(ctx, tp_size, sequence_parallel):
    """The serial one is the same block at size 1, on every rank alone."""
    wanted = run_block(ctx, 1, sequence_parallel=False)
    found = run_block(ctx, tp_size, sequence_parallel=sequence_parallel)
    for ours, theirs in zip(found, wanted, strict=True):
        assert np.abs(ours - theirs).max() / np.abs(theirs).max() < 1e-4


@pytest.mark.ranks(1)
def test_the_serial_blocks_gradient_is_the_derivative(ctx):
    """By differences of the loss, in a few directions."""
    config = start(1)
    block = Block(config)
    x, grad = (numbers(ctx, SEQUENCE, BATCH, HIDDEN, seed=seed) for seed in (7, 8))
    block.forward(x)
    grad_input = values(block.backward(grad))
    step = 1e-2
    for seed in range(3):
        direction = numbers(ctx, SEQUENCE, BATCH, HIDDEN, seed=20 + seed)
        ahead, behind = (
            (values(block.forward(x + direction * sign)) * values(grad)).sum()
            for sign in (step, -step)
        )
        slope = (grad_input * values(direction)).sum()
        assert (ahead - behind) / (2 * step) == pytest.approx(slope, rel=2e-2)


@pytest.mark.ranks(2)
def test_a_parameter_is_a_tensor(ctx):
    """With a gradient of its own; what is computed from it is a plain tensor."""
    weight = tp.ColumnParallelLinear(HIDDEN, FFN, config=start(2)).weight
    assert isinstance(weight, simrank.Tensor)
    assert (weight * 2).tolist() == (weight.data * 2).tolist()
    assert type(weight * 2) is type(weight.T) is simrank.Tensor
    assert weight.grad is None
    replaced = ctx.zeros(*weight.shape)
    weight.data = replaced
    assert weight.tolist() == replaced.tolist()
    weight.fill_(3.0)
    assert weight.data is replaced
    assert replaced.tolist() == weight.tolist()


# ---- what layers are built with ----


def test_an_unknown_way_to_multiply_is_refused_with_the_choices():
    """Before any layer is made."""
    with pytest.raises(ValueError, match="gemm='cublas'; choices: library, triton"):
        ModelParallelConfig(gemm="cublas")


def test_a_config_is_frozen():
    """Layers share one: what one of them changed would be changed for all."""
    with pytest.raises(AttributeError):
        ModelParallelConfig().sequence_parallel = True


# ---- the reduction of the input's gradient runs beside the weight's, as the timeline shows ----

TOKENS, HIDDEN_SIZE = 4096, 8192


def backward(rank, ctx, times, *, overlaps, sequence_parallel=False):
    """Run one backward of a column-parallel layer; note when it ends."""
    dist.init_process_group("nccl")
    tp.parallel_state.initialize_model_parallel(8)
    config = tp.ModelParallelConfig(
        params_dtype=ctx.bfloat16,
        sequence_parallel=sequence_parallel,
        async_tensor_model_parallel_allreduce=overlaps,
    )
    layer = tp.ColumnParallelLinear(HIDDEN_SIZE, 4 * HIDDEN_SIZE, config=config, bias=False)
    rows = TOKENS // 8 if sequence_parallel else TOKENS
    layer(ctx.empty(rows, HIDDEN_SIZE, dtype=ctx.bfloat16))
    grad = ctx.empty(TOKENS, HIDDEN_SIZE // 2, dtype=ctx.bfloat16)
    ctx.synchronize()
    start_ps = ctx.now_ps
    layer.backward(grad)
    ctx.synchronize()
    times.append(ctx.now_ps - start_ps)


def run(*, overlaps, sequence_parallel=False):
    """Return the time of the backward in picoseconds, and the timeline's operations of rank 0."""
    times, timeline = [], Timeline([0])
    with simrank.Context("hgx_h100", data=False) as ctx:
        ctx.observe(timeline)
        ctx.multiprocessing.spawn(
            lambda rank: backward(
                rank, ctx, times, overlaps=overlaps, sequence_parallel=sequence_parallel
            ),
            nprocs=8,
        )
    return max(times), timeline


def operations(timeline, tmp_path):
    """Return (name, start, end) of the operations on the device, in microseconds."""
    path = tmp_path / "timeline.json"
    timeline.write(path)
    events = json.loads(path.read_text())["traceEvents"]
    return [
        (event["name"], event["ts"], event["ts"] + event["dur"])
        for event in events
        if event.get("ph") == "X"
    ]


def last_of(found, part):
    return [each for each in found if each[0].startswith(part)][-1]


def test_the_timeline_shows_the_all_reduce_beside_the_weight_gradient(tmp_path):
    """With overlap they share time, without they do not."""
    for overlaps in (True, False):
        _, timeline = run(overlaps=overlaps)
        found = operations(timeline, tmp_path)
        _, reduce_start, reduce_end = last_of(found, "all_reduce")
        _, product_start, product_end = last_of(found, "matmul")
        shared = min(reduce_end, product_end) - max(reduce_start, product_start)
        assert (shared > 0.5 * (reduce_end - reduce_start)) == overlaps


@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_without_overlap_the_step_is_longer_by_what_was_hidden(sequence_parallel):
    """The cost model says how long the collectives take by themselves."""
    with_overlap_ps, _ = run(overlaps=True, sequence_parallel=sequence_parallel)
    without_ps, _ = run(overlaps=False, sequence_parallel=sequence_parallel)
    collectives_ps = 0
    with simrank.Context("hgx_h100", data=False) as ctx:

        def alone(rank):
            nonlocal collectives_ps
            dist.init_process_group("nccl")
            whole = ctx.empty(TOKENS, HIDDEN_SIZE, dtype=ctx.bfloat16)
            part = ctx.empty(TOKENS // 8, HIDDEN_SIZE, dtype=ctx.bfloat16)
            ctx.synchronize()
            start_ps = ctx.now_ps
            if sequence_parallel:
                dist.all_gather_into_tensor(whole, part)
                dist.reduce_scatter_tensor(part, whole)
            else:
                dist.all_reduce(whole)
            ctx.synchronize()
            collectives_ps = ctx.now_ps - start_ps

        ctx.multiprocessing.spawn(alone, nprocs=8)
    hidden_ps = without_ps - with_overlap_ps
    assert 0 < hidden_ps <= collectives_ps
    # What runs beside a collective has fewer SMs: the products lose a part of what is hidden.
    assert hidden_ps > 0.5 * collectives_ps
