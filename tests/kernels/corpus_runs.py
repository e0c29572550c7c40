"""Launches of the corpus: each returns what came out beside what numpy says in float64."""

import math

import ml_dtypes
import numpy as np
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from simrank.validate.compare import kernels as base

from . import corpus as c

FP8 = ml_dtypes.float8_e4m3fn
BF16 = ml_dtypes.bfloat16


class Bench(base.Bench):
    """Makes inputs, launches on a Context in one mode, and collects results."""

    def __init__(self, ctx, mode):
        super().__init__()
        self.ctx = ctx
        self.mode = mode

    def tensor(self, array):
        return self.ctx.from_numpy(array)

    def array(self, tensor):
        return tensor.numpy()

    def launch(self, kernel, grid, *args, **constants):
        kernel[grid](*args, **constants, mode=self.mode)


def _f8(x):
    return x.astype(np.float64)


def vector_add(b):
    x, y = b.normal(5000), b.normal(5000)
    out = b.out(5000)
    b.launch(c.vector_add, (5,), *b.put(x, y), out, 5000, BLOCK=1024)
    b.expect(out, x + y, 0)


def softmax(b):
    x = b.normal(37, 100)
    out = b.out(37, 100)
    b.launch(c.softmax, (8,), out, b.put(x), 100, 37, 100, BLOCK=128)
    e = np.exp(_f8(x) - x.max(1, keepdims=True))
    b.expect(out, e / e.sum(1, keepdims=True))


def layer_norm(b):
    m, n = 20, 200
    x, dy, w, bias = b.normal(m, n), b.normal(m, n), b.normal(n), b.normal(n)
    y, mean, rstd, dx, dw, db = (b.out(*s) for s in ((m, n), (m,), (m,), (m, n), (n,), (n,)))
    dx_, dy_, w_, b_ = b.put(x, dy, w, bias)
    b.launch(c.layer_norm, (m,), dx_, y, w_, b_, mean, rstd, n, 1e-5, BLOCK=128)
    b.launch(c.layer_norm_dx, (m,), dx, dy_, dx_, w_, mean, rstd, n, BLOCK=256)
    b.launch(c.layer_norm_dwdb, (7,), dy_, dx_, mean, rstd, dw, db, m, n, BM=8, BN=32)
    x, dy = _f8(x), _f8(dy)
    r = 1 / np.sqrt(x.var(1, keepdims=True) + 1e-5)
    hat = (x - x.mean(1, keepdims=True)) * r
    b.expect(y, hat * w + bias, 1e-5)
    wdy = w * dy
    correction = hat * (hat * wdy).mean(1, keepdims=True) + wdy.mean(1, keepdims=True)
    b.expect(dx, (wdy - correction) * r, 1e-5)
    b.expect(dw, (dy * hat).sum(0), 1e-4)
    b.expect(db, dy.sum(0), 1e-4)


def rms_norm(b):
    x, w = b.normal(16, 96, dtype=BF16), b.normal(96, dtype=BF16)
    out = b.out(16, 96, dtype=BF16)
    b.launch(c.rms_norm, (16,), *b.put(x, w), out, 96, 1e-6, BLOCK=128)
    r = 1 / np.sqrt((_f8(x) ** 2).mean(1, keepdims=True) + 1e-6)
    b.expect(out, _f8((_f8(x) * r).astype(BF16)) * _f8(w), 2e-2)


def _matmul(b, dtype, tolerance, activation=None):
    m, n, k = 70, 50, 90
    x, y = b.normal(m, k, dtype=dtype), b.normal(k, n, dtype=dtype)
    out = b.out(m, n, dtype=dtype)
    tiles = {"BM": 32, "BN": 16, "BK": 32, "GROUP": 2, "ACT": activation}
    b.launch(c.matmul, (3 * 4,), *b.put(x, y), out, m, n, k, k, 1, n, 1, n, 1, **tiles)
    wanted = _f8(x) @ _f8(y)
    b.expect(out, np.where(wanted > 0, wanted, 0.01 * wanted) if activation else wanted, tolerance)


def matmul_fp32(b):
    _matmul(b, np.float32, 1e-4)


def matmul_fp16_leaky_relu(b):
    _matmul(b, np.float16, 2e-2, c.leaky_relu)


def matmul_bf16(b):
    _matmul(b, BF16, 2e-1)


def matmul_split_k(b):
    m, n, k = 40, 40, 200
    x, y = (b.integers(5, *s, low=-5).astype(np.float32) for s in ((m, k), (k, n)))
    out = b.out(m, n)
    tiles = {"BM": 16, "BN": 16, "BK": 32, "SPLIT": 4}
    b.launch(c.matmul_split_k, (9, 4), *b.put(x, y), out, m, n, k, **tiles)
    b.expect(out, x @ y, 0)


def matmul_descriptors(b):
    m, n, k = 72, 40, 88
    x, y = b.normal(m, k, dtype=np.float16), b.normal(n, k, dtype=np.float16)
    out = b.out(m, n, dtype=np.float16)
    described = [
        TensorDescriptor.from_tensor(tensor, block)
        for tensor, block in ((b.put(x), [32, 32]), (b.put(y), [16, 32]), (out, [32, 16]))
    ]
    b.launch(c.matmul_descriptors, (3, 3), *described, k, BM=32, BN=16, BK=32)
    b.expect(out, _f8(x) @ _f8(y).T, 2e-2)


def matmul_block_pointers(b):
    m, n, k = 50, 34, 70
    x, y = b.normal(m, k), b.normal(k, n)
    out = b.out(m, n)
    tiles = {"BM": 32, "BN": 16, "BK": 32}
    b.launch(c.matmul_block_pointers, (2, 3), *b.put(x, y), out, m, n, k, **tiles)
    b.expect(out, _f8(x) @ _f8(y), 1e-4)


def matmul_persistent(b):
    m, n, k = 96, 80, 64
    x, y = b.normal(m, k, dtype=np.float16), b.normal(k, n, dtype=np.float16)
    out = b.out(m, n, dtype=np.float16)
    tiles = {"BM": 32, "BN": 32, "BK": 32, "GROUP": 2}
    b.launch(c.matmul_persistent, (4,), *b.put(x, y), out, m, n, k, **tiles)
    b.expect(out, _f8(x) @ _f8(y), 2e-2)


def grouped_gemm(b):
    sizes = [(32, 32, 32), (64, 32, 16), (32, 96, 48)]
    pairs = [
        (b.normal(m, k, dtype=np.float16), b.normal(k, n, dtype=np.float16)) for m, n, k in sizes
    ]
    on_device = [b.put(*pair) for pair in pairs]
    outs = [b.out(m, n, dtype=np.float16) for m, n, _ in sizes]
    columns = ([x for x, _ in on_device], [y for _, y in on_device], outs)
    pointers = [b.put(np.array([t.data_ptr() for t in column])) for column in columns]
    tiles = {"PROGRAMS": 4, "BM": 16, "BN": 32, "BK": 16}
    b.launch(c.grouped_gemm, (4,), *pointers, b.put(np.int32(sizes)), 3, **tiles)
    for (x, y), out in zip(pairs, outs, strict=True):
        b.expect(out, _f8(x) @ _f8(y), 2e-2)


def _attention_reference(q, k, v, scale, causal):
    s = q @ k.transpose(0, 2, 1) * scale
    if causal:
        s = np.where(np.tril(np.ones(s.shape[-2:], bool)), s, -np.inf)
    p = np.exp(s - s.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    return p, p @ v


def _attention(b, t, *, causal):
    heads, d = 2, 32
    q, k, v = (b.normal(heads, t, d) for _ in range(3))
    out, lse = b.out(heads, t, d), b.out(heads, t)
    grid = (triton.cdiv(t, 32), heads)
    tiles = {"BM": 32, "BN": 16, "D": d, "CAUSAL": causal}
    b.launch(c.attention, grid, *b.put(q, k, v), out, lse, 0.2, t, **tiles)
    _, wanted = _attention_reference(_f8(q), _f8(k), _f8(v), 0.2, causal)
    b.expect(out, wanted, 1e-5)


def attention_causal(b):
    _attention(b, 128, causal=True)


def attention_ragged(b):
    _attention(b, 100, causal=False)


def attention_backward(b):
    heads, t, d, scale = 2, 64, 32, 0.2
    q, k, v, do = (b.normal(heads, t, d) for _ in range(4))
    out, lse, dq, dk, dv = (b.out(*s) for s in ((heads, t, d), (heads, t), *[(heads, t, d)] * 3))
    tensors = b.put(q, k, v)
    tiles = {"BM": 16, "BN": 32, "D": d}
    b.launch(c.attention, (4, heads), *tensors, out, lse, scale, t, CAUSAL=True, **tiles)
    delta = (_f8(do) * out.numpy()).sum(-1).astype(np.float32)
    tensors += b.put(do), lse, b.put(delta)
    b.launch(c.attention_dq, (4, heads), *tensors, dq, scale, t, **tiles)
    b.launch(c.attention_dkdv, (2, heads), *tensors, dk, dv, scale, t, **tiles)
    q, k, v, do = (_f8(x) for x in (q, k, v, do))
    p, o = _attention_reference(q, k, v, scale, causal=True)
    ds = p * (do @ v.transpose(0, 2, 1) - (do * o).sum(-1, keepdims=True)) * scale
    b.expect(dq, ds @ k, 1e-4)
    b.expect(dk, ds.transpose(0, 2, 1) @ q, 1e-4)
    b.expect(dv, p.transpose(0, 2, 1) @ do, 1e-4)


def dropout(b):
    x = np.ones(3000, np.float32)
    out = b.out(3000)
    b.launch(c.dropout, (3,), b.put(x), out, 3000, 0.25, 123, BLOCK=1024)
    kept = (out.numpy() != 0).mean()
    assert 0.7 < kept < 0.8, f"{kept} of the elements were kept"
    b.expect(out, np.where(out.numpy() != 0, 1 / 0.75, 0), 1e-6)


def histogram(b):
    x = b.integers(32, 6, 100)
    out = b.out(6, 32, dtype=np.int32)
    b.launch(c.row_histogram, (6,), b.put(x), out, 100, BINS=32, BLOCK=64)
    b.expect(out, [np.bincount(row, minlength=32) for row in x], 0)


def sort(b):
    x = b.normal(12, 64)
    out, top = b.out(12, 64), b.out(12, 8)
    b.launch(c.row_sort, (12,), b.put(x), out, top, n=64, k=8)
    b.expect(out, np.sort(x, 1), 0)
    b.expect(top, -np.sort(-x, 1)[:, :8], 0)


def linear_recurrence(b):
    a, x = b.rng.uniform(0.5, 1, (4, 100)).astype(np.float32), b.normal(4, 100)
    out = b.out(4, 100)
    b.launch(c.linear_recurrence, (4,), *b.put(a, x), out, 100, BLOCK=32)
    state, wanted = np.zeros(4), np.zeros((4, 100))
    for t in range(100):
        state = _f8(a[:, t]) * state + x[:, t]
        wanted[:, t] = state
    b.expect(out, wanted, 1e-5)


def cross_entropy(b):
    x, label = b.normal(24, 100, dtype=BF16), b.integers(100, 24, dtype=np.int64)
    label[::5] = -100
    loss = b.out(24)
    b.launch(c.cross_entropy, (24,), *b.put(x, label), loss, 100, -100, BLOCK=32)
    x = _f8(x)
    picked = x[np.arange(24), np.maximum(label, 0)]
    b.expect(loss, np.where(label < 0, 0, np.log(np.exp(x).sum(1)) - picked), 1e-5)


def rope(b):
    t, h, half = 10, 4, 16
    x, angle = b.normal(t, h, 2 * half), b.normal(t, half)
    found = b.put(x)
    b.launch(c.rope, (t,), found, *b.put(np.cos(angle), np.sin(angle)), t, H=h, HALF=half)
    cos, sin = np.cos(_f8(angle))[:, None], np.sin(_f8(angle))[:, None]
    x1, x2 = _f8(x[..., :half]), _f8(x[..., half:])
    b.expect(found, np.concatenate([x1 * cos - x2 * sin, x2 * cos + x1 * sin], -1), 1e-5)


def embedding(b):
    index, table = b.integers(50, 30), b.normal(50, 64, dtype=np.float16)
    out = b.out(30, 64, dtype=np.float16)
    b.launch(c.embedding, (4,), *b.put(index, table), out, 30, D=64, BLOCK=8)
    b.expect(out, table[index], 0)


def gated_mlp(b):
    gate, up = b.normal(1000, dtype=BF16), b.normal(1000, dtype=BF16)
    x = _f8(gate)
    erf = np.vectorize(math.erf)(x / np.sqrt(2))
    wanted = {"silu": x / (1 + np.exp(-x)), "gelu": x * (1 + erf) / 2}
    wanted["tanh"] = wanted["gelu"]
    for kind, act in wanted.items():
        out = b.out(1000, dtype=BF16)
        b.launch(c.gated_mlp, (4,), *b.put(gate, up), out, 1000, KIND=kind, BLOCK=256)
        b.expect(out, act * _f8(up), 3e-2)


def _scaled_matmul(b, x, y, acc):
    m, n, k = 32, 32, 64
    scales = b.rng.uniform(0.5, 1, (2, 32)).astype(np.float32)
    out = b.out(m, n, dtype=BF16)
    tiles = {"BM": 16, "BN": 16, "BK": 32, "ACC": acc}
    b.launch(c.scaled_matmul, (2, 2), *b.put(x, y, *scales), out, n, k, **tiles)
    wanted = (_f8(x) @ _f8(y).T) * scales[0][:, None] * scales[1]
    b.expect(out, wanted, 0.004 * np.abs(wanted).max())


def matmul_int8(b):
    x, y = (b.integers(127, 32, 64, low=-127, dtype=np.int8) for _ in range(2))
    _scaled_matmul(b, x, y, tl.int32)


def matmul_fp8(b):
    _scaled_matmul(b, b.normal(32, 64, dtype=FP8), b.normal(32, 64, dtype=FP8), tl.float32)


def transpose(b):
    x = b.normal(40, 70, dtype=np.float16)
    out = b.out(70, 40, dtype=np.float16)
    b.launch(c.transpose, (2, 3), b.put(x), out, 40, 70, B=32)
    b.expect(out, x.T, 0)


def conv1d(b):
    x, w = b.normal(6, 100), b.normal(6, 4)
    out = b.out(6, 100)
    b.launch(c.conv1d, (2, 6), *b.put(x, w), out, 100, WIDTH=4, BLOCK=64)
    acc = np.stack([np.convolve(_f8(x[i]), _f8(w[i])[::-1])[:100] for i in range(6)])
    b.expect(out, acc / (1 + np.exp(-acc)), 1e-5)


RUNS = {
    run.__name__: run
    for run in (
        vector_add, softmax, layer_norm, rms_norm, matmul_fp32, matmul_fp16_leaky_relu, matmul_bf16,
        matmul_split_k, matmul_descriptors, matmul_block_pointers, matmul_persistent, grouped_gemm,
        attention_causal, attention_ragged, attention_backward, dropout, histogram, sort,
        linear_recurrence, cross_entropy, rope, embedding, gated_mlp, matmul_int8, matmul_fp8,
        transpose, conv1d,
    )
}  # fmt: skip
