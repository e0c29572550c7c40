"""Kernels in the style in which users write them; `corpus_runs` launches and checks them."""

import triton
import triton.language as tl
from triton.language.extra import libdevice


@triton.jit
def vector_add(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    x = tl.load(x_ptr + offs, mask=mask)
    y = tl.load(y_ptr + offs, mask=mask)
    tl.store(out_ptr + offs, x + y, mask=mask)


@triton.jit
def softmax(out_ptr, in_ptr, stride, n_rows, n_cols, BLOCK: tl.constexpr):
    cols = tl.arange(0, BLOCK)
    for row in tl.range(tl.program_id(0), n_rows, tl.num_programs(0), num_stages=2):
        x = tl.load(in_ptr + row * stride + cols, mask=cols < n_cols, other=-float("inf"))
        num = tl.exp(x - tl.max(x, axis=0))
        tl.store(out_ptr + row * stride + cols, num / tl.sum(num, axis=0), mask=cols < n_cols)


@triton.jit
def layer_norm(x_ptr, y_ptr, w_ptr, b_ptr, mean_ptr, rstd_ptr, n, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    x_ptr += row * n
    y_ptr += row * n
    total = tl.zeros([BLOCK], dtype=tl.float32)
    for off in range(0, n, BLOCK):
        cols = off + tl.arange(0, BLOCK)
        total += tl.load(x_ptr + cols, mask=cols < n, other=0.0).to(tl.float32)
    mean = tl.sum(total, axis=0) / n
    square = tl.zeros([BLOCK], dtype=tl.float32)
    for off in range(0, n, BLOCK):
        cols = off + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + cols, mask=cols < n, other=0.0).to(tl.float32)
        x = tl.where(cols < n, x - mean, 0.0)
        square += x * x
    rstd = 1 / tl.sqrt(tl.sum(square, axis=0) / n + eps)
    tl.store(mean_ptr + row, mean)
    tl.store(rstd_ptr + row, rstd)
    for off in range(0, n, BLOCK):
        cols = off + tl.arange(0, BLOCK)
        mask = cols < n
        w = tl.load(w_ptr + cols, mask=mask)
        b = tl.load(b_ptr + cols, mask=mask)
        x = tl.load(x_ptr + cols, mask=mask, other=0.0).to(tl.float32)
        tl.store(y_ptr + cols, (x - mean) * rstd * w + b, mask=mask)


@triton.jit
def layer_norm_dx(dx_ptr, dy_ptr, x_ptr, w_ptr, mean_ptr, rstd_ptr, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    mask = cols < n
    x = tl.load(x_ptr + row * n + cols, mask=mask, other=0).to(tl.float32)
    dy = tl.load(dy_ptr + row * n + cols, mask=mask, other=0).to(tl.float32)
    w = tl.load(w_ptr + cols, mask=mask, other=0).to(tl.float32)
    rstd = tl.load(rstd_ptr + row)
    x_hat = tl.where(mask, (x - tl.load(mean_ptr + row)) * rstd, 0.0)
    wdy = tl.where(mask, w * dy, 0.0)
    c1 = tl.sum(x_hat * wdy, axis=0) / n
    c2 = tl.sum(wdy, axis=0) / n
    tl.store(dx_ptr + row * n + cols, (wdy - (x_hat * c1 + c2)) * rstd, mask=mask)


@triton.jit
def layer_norm_dwdb(
    dy_ptr, x_ptr, mean_ptr, rstd_ptr, dw_ptr, db_ptr, m, n, BM: tl.constexpr, BN: tl.constexpr
):
    cols = tl.program_id(0) * BN + tl.arange(0, BN)
    dw = tl.zeros((BM, BN), dtype=tl.float32)
    db = tl.zeros((BM, BN), dtype=tl.float32)
    for i in range(0, m, BM):
        rows = i + tl.arange(0, BM)
        mask = (rows[:, None] < m) & (cols[None, :] < n)
        offs = rows[:, None] * n + cols[None, :]
        dy = tl.load(dy_ptr + offs, mask=mask, other=0.0)
        x = tl.load(x_ptr + offs, mask=mask, other=0.0)
        mean = tl.load(mean_ptr + rows, mask=rows < m, other=0.0)
        rstd = tl.load(rstd_ptr + rows, mask=rows < m, other=0.0)
        dw += dy * (x - mean[:, None]) * rstd[:, None]
        db += dy
    tl.store(dw_ptr + cols, tl.sum(dw, axis=0), mask=cols < n)
    tl.store(db_ptr + cols, tl.sum(db, axis=0), mask=cols < n)


@triton.jit
def rms_norm(x_ptr, w_ptr, y_ptr, n, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    cols = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * n + cols, mask=cols < n, other=0.0).to(tl.float32)
    rstd = tl.rsqrt(tl.sum(x * x, 0) / n + eps)
    w = tl.load(w_ptr + cols, mask=cols < n)
    y = (x * rstd).to(w.dtype) * w
    tl.store(y_ptr + row * n + cols, y, mask=cols < n)


@triton.jit
def leaky_relu(x):
    return tl.where(x >= 0, x, 0.01 * x)


@triton.jit
def grouped_tile(pid, num_m, num_n, GROUP: tl.constexpr):
    per_group = GROUP * num_n
    first_m = (pid // per_group) * GROUP
    size = min(num_m - first_m, GROUP)
    return first_m + (pid % per_group) % size, (pid % per_group) // size


@triton.jit
def matmul(
    a_ptr, b_ptr, c_ptr, M, N, K, sam, sak, sbk, sbn, scm, scn,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr, ACT: tl.constexpr,
):  # fmt: skip
    pid_m, pid_n = grouped_tile(tl.program_id(0), tl.cdiv(M, BM), tl.cdiv(N, BN), GROUP)
    offs_m = (pid_m * BM + tl.arange(0, BM)) % M
    offs_n = (pid_n * BN + tl.arange(0, BN)) % N
    offs_k = tl.arange(0, BK)
    a_ptrs = a_ptr + offs_m[:, None] * sam + offs_k[None, :] * sak
    b_ptrs = b_ptr + offs_k[:, None] * sbk + offs_n[None, :] * sbn
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(tl.cdiv(K, BK)):
        a = tl.load(a_ptrs, mask=offs_k[None, :] < K - k * BK, other=0.0)
        b = tl.load(b_ptrs, mask=offs_k[:, None] < K - k * BK, other=0.0)
        acc = tl.dot(a, b, acc)
        a_ptrs += BK * sak
        b_ptrs += BK * sbk
    if ACT is not None:
        acc = ACT(acc)
    rows = pid_m * BM + tl.arange(0, BM)
    cols = pid_n * BN + tl.arange(0, BN)
    c_ptrs = c_ptr + scm * rows[:, None] + scn * cols[None, :]
    tl.store(c_ptrs, acc, mask=(rows[:, None] < M) & (cols[None, :] < N))


@triton.jit
def matmul_split_k(
    a_ptr, b_ptr, c_ptr, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    SPLIT: tl.constexpr,
):  # fmt: skip
    pid_m, pid_n = tl.program_id(0) // tl.cdiv(N, BN), tl.program_id(0) % tl.cdiv(N, BN)
    rows = pid_m * BM + tl.arange(0, BM)
    cols = pid_n * BN + tl.arange(0, BN)
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(tl.program_id(1) * BK, K, BK * SPLIT):
        inner = k + tl.arange(0, BK)
        inside = inner < K
        a = tl.load(a_ptr + rows[:, None] * K + inner, mask=(rows[:, None] < M) & inside, other=0)
        b = tl.load(b_ptr + inner[:, None] * N + cols, mask=inside[:, None] & (cols < N), other=0)
        acc += tl.dot(a, b)
    mask = (rows[:, None] < M) & (cols[None, :] < N)
    tl.atomic_add(c_ptr + rows[:, None] * N + cols[None, :], acc, mask=mask)


@triton.jit
def matmul_descriptors(a, b, c, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    row = tl.program_id(0) * BM
    col = tl.program_id(1) * BN
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(0, K, BK):
        acc = tl.dot(a.load([row, k]), b.load([col, k]).T, acc)
    c.store([row, col], acc.to(c.dtype))


@triton.jit
def matmul_block_pointers(
    a_ptr, b_ptr, c_ptr, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr
):
    row, col = tl.program_id(0) * BM, tl.program_id(1) * BN
    a = tl.make_block_ptr(a_ptr, (M, K), (K, 1), (row, 0), (BM, BK), (1, 0))
    b = tl.make_block_ptr(b_ptr, (K, N), (N, 1), (0, col), (BK, BN), (1, 0))
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for _ in range(0, K, BK):
        x = tl.load(a, boundary_check=(0, 1), padding_option="zero")
        y = tl.load(b, boundary_check=(0, 1), padding_option="zero")
        acc += tl.dot(x, y)
        a = tl.advance(a, (0, BK))
        b = tl.advance(b, [BK, 0])
    c = tl.make_block_ptr(c_ptr, (M, N), (N, 1), (row, col), (BM, BN), (1, 0))
    tl.store(c, acc.to(c_ptr.dtype.element_ty), boundary_check=(0, 1))


@triton.jit
def matmul_persistent(
    a_ptr, b_ptr, c_ptr, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    GROUP: tl.constexpr,
):  # fmt: skip
    a = tl.make_tensor_descriptor(a_ptr, [M, K], [K, 1], [BM, BK])
    b = tl.make_tensor_descriptor(b_ptr, [K, N], [N, 1], [BK, BN])
    c = tl.make_tensor_descriptor(c_ptr, [M, N], [N, 1], [BM, BN])
    num_m, num_n = tl.cdiv(M, BM), tl.cdiv(N, BN)
    for tile in tl.range(tl.program_id(0), num_m * num_n, tl.num_programs(0), flatten=True):
        pid_m, pid_n = grouped_tile(tile, num_m, num_n, GROUP)
        acc = tl.zeros((BM, BN), dtype=tl.float32)
        for k in range(tl.cdiv(K, BK)):
            acc = tl.dot(a.load([pid_m * BM, k * BK]), b.load([k * BK, pid_n * BN]), acc)
        c.store([pid_m * BM, pid_n * BN], acc.to(tl.float16))


@triton.jit
def grouped_gemm(
    a_ptrs, b_ptrs, c_ptrs, sizes_ptr, num_groups, PROGRAMS: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    tile = tl.program_id(0)
    last = 0
    for group in range(num_groups):
        m = tl.load(sizes_ptr + group * 3)
        n = tl.load(sizes_ptr + group * 3 + 1)
        k = tl.load(sizes_ptr + group * 3 + 2)
        tiles_n = tl.cdiv(n, BN)
        num_tiles = tl.cdiv(m, BM) * tiles_n
        while tile >= last and tile < last + num_tiles:
            a_ptr = tl.load(a_ptrs + group).to(tl.pointer_type(tl.float16))
            b_ptr = tl.load(b_ptrs + group).to(tl.pointer_type(tl.float16))
            c_ptr = tl.load(c_ptrs + group).to(tl.pointer_type(tl.float16))
            rows = (tile - last) // tiles_n * BM + tl.arange(0, BM)
            cols = (tile - last) % tiles_n * BN + tl.arange(0, BN)
            inner = tl.arange(0, BK)
            acc = tl.zeros((BM, BN), dtype=tl.float32)
            for start in range(0, k, BK):
                a = tl.load(a_ptr + rows[:, None] * k + start + inner[None, :])
                b = tl.load(b_ptr + (start + inner[:, None]) * n + cols[None, :])
                acc += tl.dot(a, b)
            tl.store(c_ptr + rows[:, None] * n + cols[None, :], acc.to(tl.float16))
            tile += PROGRAMS
        last += num_tiles


@triton.jit
def attention(
    q_ptr, k_ptr, v_ptr, o_ptr, lse_ptr, scale, T,
    BM: tl.constexpr, BN: tl.constexpr, D: tl.constexpr, CAUSAL: tl.constexpr,
):  # fmt: skip
    head = tl.program_id(1).to(tl.int64) * T * D
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    d = tl.arange(0, D)
    q = tl.load(q_ptr + head + rows[:, None] * D + d[None, :], mask=rows[:, None] < T, other=0.0)
    m = tl.full((BM,), -float("inf"), tl.float32)
    total = tl.zeros((BM,), tl.float32)
    acc = tl.zeros((BM, D), tl.float32)
    end = tl.minimum((tl.program_id(0) + 1) * BM, T) if CAUSAL else T
    for start in range(0, end, BN):
        cols = tl.multiple_of(start, BN) + tl.arange(0, BN)
        k = tl.load(k_ptr + head + cols[None, :] * D + d[:, None], mask=cols[None, :] < T, other=0)
        s = tl.dot(q, k) * (scale * 1.44269504)
        keep = cols[None, :] < T
        if CAUSAL:
            keep = keep & (rows[:, None] >= cols[None, :])
        s = tl.where(keep, s, -float("inf"))
        m_new = tl.maximum(m, tl.max(s, 1))
        p = tl.math.exp2(s - m_new[:, None])
        alpha = tl.math.exp2(m - m_new)
        v = tl.load(v_ptr + head + cols[:, None] * D + d[None, :], mask=cols[:, None] < T, other=0)
        acc = tl.dot(p.to(v.dtype), v, acc * alpha[:, None])
        total = total * alpha + tl.sum(p, 1)
        m = m_new
    out = acc / total[:, None]
    tl.store(o_ptr + head + rows[:, None] * D + d[None, :], out, mask=rows[:, None] < T)
    tl.store(lse_ptr + tl.program_id(1) * T + rows, m + tl.log2(total), mask=rows < T)


@triton.jit
def attention_dq(
    q_ptr, k_ptr, v_ptr, do_ptr, lse_ptr, delta_ptr, dq_ptr, scale, T,
    BM: tl.constexpr, BN: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    head = tl.program_id(1) * T * D
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    tile = head + rows[:, None] * D + tl.arange(0, D)[None, :]
    q, do = tl.load(q_ptr + tile), tl.load(do_ptr + tile)
    lse = tl.load(lse_ptr + tl.program_id(1) * T + rows)[:, None]
    delta = tl.load(delta_ptr + tl.program_id(1) * T + rows)[:, None]
    dq = tl.zeros((BM, D), tl.float32)
    for start in range(0, (tl.program_id(0) + 1) * BM, BN):
        cols = start + tl.arange(0, BN)
        other = head + cols[:, None] * D + tl.arange(0, D)[None, :]
        k, v = tl.load(k_ptr + other), tl.load(v_ptr + other)
        p = tl.exp2(tl.dot(q, k.T) * (scale * 1.44269504) - lse)
        p = tl.where(rows[:, None] >= cols[None, :], p, 0.0)
        ds = p * (tl.dot(do, tl.trans(v)) - delta)
        dq += tl.dot(ds.to(k.dtype), k) * scale
    tl.store(dq_ptr + tile, dq)


@triton.jit
def attention_dkdv(
    q_ptr, k_ptr, v_ptr, do_ptr, lse_ptr, delta_ptr, dk_ptr, dv_ptr, scale, T,
    BM: tl.constexpr, BN: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    head = tl.program_id(1) * T * D
    cols = tl.program_id(0) * BN + tl.arange(0, BN)
    tile = head + cols[:, None] * D + tl.arange(0, D)[None, :]
    k, v = tl.load(k_ptr + tile), tl.load(v_ptr + tile)
    dk = tl.zeros((BN, D), tl.float32)
    dv = tl.zeros((BN, D), tl.float32)
    for start in range(tl.program_id(0) * BN // BM * BM, T, BM):
        rows = start + tl.arange(0, BM)
        other = head + rows[:, None] * D + tl.arange(0, D)[None, :]
        q, do = tl.load(q_ptr + other), tl.load(do_ptr + other)
        lse = tl.load(lse_ptr + tl.program_id(1) * T + rows)[None, :]
        delta = tl.load(delta_ptr + tl.program_id(1) * T + rows)[None, :]
        p = tl.exp2(tl.dot(k, q.T) * (scale * 1.44269504) - lse)
        p = tl.where(rows[None, :] >= cols[:, None], p, 0.0)
        dv = tl.dot(p.to(do.dtype), do, dv)
        ds = p * (tl.dot(v, do.T) - delta)
        dk = tl.dot(ds.to(q.dtype), q, dk)
    tl.store(dk_ptr + tile, dk * scale)
    tl.store(dv_ptr + tile, dv)


@triton.jit
def dropout(x_ptr, out_ptr, n, p, seed, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    x = tl.load(x_ptr + offs, mask=mask)
    keep = tl.rand(seed, offs) > p
    tl.store(out_ptr + offs, tl.where(keep, x / (1 - p), 0.0), mask=mask)


@triton.jit
def row_histogram(x_ptr, out_ptr, n, BINS: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    found = tl.zeros((BINS,), tl.int32)
    for off in range(0, n, BLOCK):
        cols = off + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row * n + cols, mask=cols < n, other=0)
        found += tl.histogram(x, BINS, mask=cols < n)
    tl.store(out_ptr + row * BINS + tl.arange(0, BINS), found)


@triton.jit
def row_sort(x_ptr, out_ptr, top_ptr, n: tl.constexpr, k: tl.constexpr):
    row = tl.program_id(0)
    x = tl.load(x_ptr + row * n + tl.arange(0, n))
    tl.store(out_ptr + row * n + tl.arange(0, n), tl.sort(x, descending=False))
    tl.store(top_ptr + row * k + tl.arange(0, k), tl.topk(x, k))


@triton.jit
def first_order(a1, b1, a2, b2):
    return a1 * a2, b1 * a2 + b2


@triton.jit
def linear_recurrence(a_ptr, b_ptr, out_ptr, T, BLOCK: tl.constexpr):
    row = tl.program_id(0) * T
    state = 0.0
    for off in range(0, T, BLOCK):
        t = off + tl.arange(0, BLOCK)
        a = tl.load(a_ptr + row + t, mask=t < T, other=1.0)
        b = tl.load(b_ptr + row + t, mask=t < T, other=0.0)
        decay, found = tl.associative_scan((a, b), 0, first_order)
        found += decay * state
        state = tl.sum(tl.where(tl.arange(0, BLOCK) == BLOCK - 1, found, 0.0), 0)
        tl.store(out_ptr + row + t, found, mask=t < T)


@triton.jit
def cross_entropy(x_ptr, label_ptr, loss_ptr, n, ignored, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    label = tl.load(label_ptr + row)
    if label == ignored:
        tl.store(loss_ptr + row, 0.0)
        return
    m = float("-inf")
    d = 0.0
    for off in range(0, n, BLOCK):
        cols = off + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row * n + cols, mask=cols < n, other=float("-inf")).to(tl.float32)
        m_new = tl.maximum(m, tl.max(x))
        d = d * tl.exp(m - m_new) + tl.sum(tl.exp(x - m_new))
        m = m_new
    tl.store(loss_ptr + row, m + tl.log(d) - tl.load(x_ptr + row * n + label).to(tl.float32))


@triton.jit
def rope(x_ptr, cos_ptr, sin_ptr, T, H: tl.constexpr, HALF: tl.constexpr):
    t = tl.program_id(0)
    half = tl.arange(0, HALF)
    heads = tl.arange(0, H)
    cos = tl.load(cos_ptr + t % T * HALF + half)[None, :]
    sin = tl.load(sin_ptr + t % T * HALF + half)[None, :]
    low = x_ptr + t * H * HALF * 2 + heads[:, None] * HALF * 2 + half[None, :]
    x1, x2 = tl.load(low), tl.load(low + HALF)
    tl.store(low, x1 * cos - x2 * sin)
    tl.store(low + HALF, x2 * cos + x1 * sin)


@triton.jit
def embedding(index_ptr, table_ptr, out_ptr, n, D: tl.constexpr, BLOCK: tl.constexpr):
    rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    index = tl.load(index_ptr + rows, mask=rows < n, other=0)
    d = tl.arange(0, D)[None, :]
    values = tl.load(table_ptr + index[:, None] * D + d, mask=(rows < n)[:, None], other=0.0)
    tl.store(out_ptr + rows[:, None] * D + d, values, mask=rows[:, None] < n)


@triton.jit
def gelu_tanh(x):
    return 0.5 * x * (1 + libdevice.tanh(0.79788456 * (x + 0.044715 * x * x * x)))


@triton.jit
def gated_mlp(gate_ptr, up_ptr, out_ptr, n, KIND: tl.constexpr, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    gate = tl.load(gate_ptr + offs, mask=mask).to(tl.float32)
    up = tl.load(up_ptr + offs, mask=mask)
    if KIND == "silu":
        act = gate * tl.sigmoid(gate)
    elif KIND == "gelu":
        act = 0.5 * gate * (1 + tl.erf(gate * 0.70710678))
    else:
        tl.static_assert(KIND == "tanh", "an unknown activation")
        act = gelu_tanh(gate)
    tl.store(out_ptr + offs, act.to(up.dtype) * up, mask=mask)


@triton.jit
def scaled_matmul(
    a_ptr, b_ptr, a_scale_ptr, b_scale_ptr, c_ptr, N, K,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    cols = tl.program_id(1) * BN + tl.arange(0, BN)
    acc = tl.zeros((BM, BN), dtype=ACC)
    for k in range(0, K, BK):
        inner = k + tl.arange(0, BK)
        a = tl.load(a_ptr + rows[:, None] * K + inner[None, :])
        b = tl.load(b_ptr + cols[None, :] * K + inner[:, None])
        acc = tl.dot(a, b, acc)
    scale = tl.load(a_scale_ptr + rows)[:, None] * tl.load(b_scale_ptr + cols)[None, :]
    c = acc.to(tl.float32) * scale
    tl.store(c_ptr + rows[:, None] * N + cols[None, :], c.to(tl.bfloat16))


@triton.jit
def transpose(x_ptr, out_ptr, M, N, B: tl.constexpr):
    rows = tl.program_id(0) * B + tl.arange(0, B)
    cols = tl.program_id(1) * B + tl.arange(0, B)
    mask = (rows < M)[:, None] & (cols < N)[None, :]
    x = tl.load(x_ptr + rows[:, None] * N + cols[None, :], mask=mask)
    tl.store(out_ptr + cols[:, None] * M + rows[None, :], tl.trans(x), mask=tl.trans(mask))


@triton.jit
def conv1d(x_ptr, w_ptr, out_ptr, T, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    channel = tl.program_id(1)
    t = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    acc = tl.zeros((BLOCK,), tl.float32)
    for i in tl.static_range(WIDTH):
        at = t - (WIDTH - 1) + i
        x = tl.load(x_ptr + channel * T + at, mask=(at >= 0) & (at < T), other=0.0)
        acc += x * tl.load(w_ptr + channel * WIDTH + i)
    tl.store(out_ptr + channel * T + t, acc * tl.sigmoid(acc), mask=t < T)
