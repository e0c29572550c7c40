"""Work of one GPU: launches, copies, matrix products, attention."""

from __future__ import annotations

import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import torch

from simrank.validate.kit.script.machine import clean
from simrank.validate.kit.script.rows import REPEATS, size_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from simrank.validate.kit.script.rows import Body, Rows

NUM_LAUNCHES = 500
COLD_BYTES = 256 << 20  # More than a GPU's L2 cache holds.
MOST_COPIES = 128
MOST_FAILED = 3
AMPERE = 8  # The first that has TF32.
COPY_BYTES = tuple(1 << power for power in (12, 16, 20, 24, 28))
PRODUCTS = (
    (1, 4096, 4096), (16, 8192, 8192), (128, 4096, 14336), (512, 4096, 4096), (2048, 2048, 2048),
    (4096, 4096, 4096), (4096, 14336, 4096), (8192, 8192, 8192), (1000, 1000, 1000),
)  # fmt: skip
# Batch, heads, heads of keys, length, width of a head.
ATTENTIONS = ((1, 32, 32, 1024, 128), (1, 32, 8, 4096, 128), (4, 16, 16, 2048, 64))
WARM_US = 500_000.0
TARGET_US = 20_000.0  # Of one repetition: as many iterations as fill it.


@contextmanager
def surviving(rows: Rows, phase: str, name: str) -> Iterator[None]:
    """Note that an item fails, such as for want of memory, and go on; not after three in a row."""
    try:
        yield
    except Exception as error:  # Out of memory; an argument or a type that is too new.
        rows.num_failed += 1
        rows.add("note", phase, text=clean(f"{name}: {str(error).partition(chr(10))[0]}")[:200])
        torch.cuda.empty_cache()
        if rows.num_failed == MOST_FAILED:
            raise
    else:
        rows.num_failed = 0


def device_us(body: Body, number: int) -> list[float]:
    """Return the time of one of `number` iterations on the device, in microseconds, per repeat."""
    found = []
    for _ in range(REPEATS):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for index in range(number):
            body(index)
        end.record()
        torch.cuda.synchronize()
        found.append(start.elapsed_time(end) * 1e3 / number)
    return found


def timed(body: Body, most: int = 200) -> list[float]:
    """Return the time of an iteration after a warm-up; as many iterations as take 20 ms."""
    for index in range(3):
        body(index)
    torch.cuda.synchronize()
    about_us = max(device_us(body, 3))
    return device_us(body, max(3, min(most, int(TARGET_US / max(about_us, 1.0)))))


def graphed(body: Body, number: int, most: int = 200) -> tuple[list[float], bool]:
    """Return the time of an iteration in a CUDA graph; without one if it cannot be captured."""
    for index in range(3):
        body(index)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            for index in range(number):
                body(index)
    except RuntimeError:
        torch.cuda.synchronize()
        return timed(body, most), False
    replays = timed(lambda _: graph.replay(), most)
    return [each / number for each in replays], True


def warm() -> None:
    """Bring clocks up: half a second of products."""
    a = torch.ones(2048, 2048, device="cuda", dtype=torch.float16)
    about_us = max(device_us(lambda _: torch.mm(a, a), 3))
    device_us(lambda _: torch.mm(a, a), max(1, min(2000, int(WARM_US / REPEATS / about_us))))


def launches(rows: Rows) -> None:
    """Measure what a launch costs the host, and the device."""
    one = torch.zeros(1, device="cuda")
    many = [torch.zeros(1, device="cuda") for _ in range(NUM_LAUNCHES)]
    one.add_(1)
    torch.cuda.synchronize()
    host = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        for _ in range(NUM_LAUNCHES):
            one.add_(1)
        host.append((time.perf_counter() - start) * 1e6 / NUM_LAUNCHES)
        torch.cuda.synchronize()
    rows.times("launches", "add_ of one element, host", host)
    rows.times(
        "launches", "add_ of one element, back to back", device_us(lambda _: one.add_(1), 200)
    )
    in_graph, is_graph = graphed(lambda index: many[index % NUM_LAUNCHES].add_(1), 200)
    rows.times("launches", "add_ of one element, in a CUDA graph", in_graph, is_graph=is_graph)
    waits = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        for _ in range(50):
            one.add_(1)
            torch.cuda.synchronize()
        waits.append((time.perf_counter() - start) * 1e6 / 50)
    rows.times("launches", "add_ of one element and synchronize", waits)


def copies(rows: Rows) -> None:
    """Measure copies between host and device, and on the device."""
    for size in COPY_BYTES:
        if rows.is_over():
            rows.add("note", "copies", text=f"stopped before {size_text(size)}")
            return
        with surviving(rows, "copies", size_text(size)):
            copies_of(size, rows)


def copies_of(size: int, rows: Rows) -> None:
    """Measure copies of one size."""
    number = max(1, min(MOST_COPIES, COLD_BYTES // size))
    each, others = (
        [torch.zeros(size, dtype=torch.uint8, device="cuda") for _ in range(number)]
        for _ in range(2)
    )
    on_device = each[0]
    pinned = torch.zeros(size, dtype=torch.uint8, pin_memory=True)
    bodies: dict[str, Body] = {
        "pinned host to device": lambda _: on_device.copy_(pinned, non_blocking=True),
        "device to pinned host": lambda _: pinned.copy_(on_device, non_blocking=True),
        "on the device": lambda index: others[index % number].copy_(each[index % number]),
    }
    for name, body in bodies.items():
        rows.times("copies", f"{name}, {size_text(size)}", timed(body), bytes=size)


def product_dtypes() -> Iterator[tuple[str, torch.dtype, bool]]:
    """Yield a name, the type, and whether TensorFloat-32 is allowed."""
    yield "bfloat16", torch.bfloat16, False
    yield "float16", torch.float16, False
    yield "float32", torch.float32, False
    if torch.cuda.get_device_capability()[0] >= AMPERE and torch.version.hip is None:
        yield "float32 as TF32", torch.float32, True


def products(rows: Rows) -> None:
    """Measure matrix products with random numbers, the weights of several layers in turn."""
    before = torch.backends.cuda.matmul.allow_tf32
    for name, dtype, is_tf32 in product_dtypes():
        torch.backends.cuda.matmul.allow_tf32 = is_tf32
        with suppress(Exception):  # Noted: a GPU may lack a type.
            products_in(name, dtype, rows)
    torch.backends.cuda.matmul.allow_tf32 = before


def products_in(name: str, dtype: torch.dtype, rows: Rows) -> None:
    """Measure the products of one type."""
    rows.num_failed = 0
    for m, n, k in PRODUCTS:
        title = f"{name} {m}x{n}x{k}"
        if rows.is_over():
            rows.add("note", "products", text=f"stopped before {title}")
            return
        with surviving(rows, "products", title):
            times, is_graph = product_us(m, n, k, dtype)
            facts = {"m": m, "n": n, "k": k, "dtype": name, "is_graph": is_graph}
            rows.times("products", title, times, **facts)


def product_us(m: int, n: int, k: int, dtype: torch.dtype) -> tuple[list[float], bool]:
    """Return the time of a product, and whether it ran in a CUDA graph."""
    number = max(1, min(MOST_COPIES, -(-COLD_BYTES // (n * k * dtype.itemsize))))
    a = torch.randn(m, k, device="cuda").to(dtype)
    each = [torch.randn(k, n, device="cuda").to(dtype) for _ in range(number)]
    out = torch.empty(m, n, device="cuda", dtype=dtype)
    return graphed(lambda index: torch.mm(a, each[index % number], out=out), 2 * number)


def attentions(rows: Rows) -> None:
    """Measure causal attention in bfloat16, forward and backward."""
    for batch, heads, kv_heads, length, width in ATTENTIONS:
        title = f"batch {batch}, {heads} heads, {kv_heads} of keys, {length} tokens, width {width}"
        if rows.is_over():
            rows.add("note", "attention", text=f"stopped before {title}")
            return
        facts = {
            "batch": batch, "heads": heads, "kv_heads": kv_heads, "length": length, "width": width,
        }  # fmt: skip
        with surviving(rows, "attention", title):
            forward, backward = attention_us(**facts)
            rows.times("attention", f"forward: {title}", forward, **facts, part="forward")
            rows.times("attention", f"backward: {title}", backward, **facts, part="backward")


def attention_us(
    *, batch: int, heads: int, kv_heads: int, length: int, width: int
) -> tuple[list[float], list[float]]:
    """Return the times of a forward and of its backward."""
    attend = torch.nn.functional.scaled_dot_product_attention
    shapes = ((batch, number, length, width) for number in (heads, kv_heads, kv_heads))
    q, k, v = (torch.randn(s, device="cuda", dtype=torch.bfloat16) for s in shapes)
    grouped: dict[str, Any] = {"enable_gqa": True} if heads != kv_heads else {}
    with torch.no_grad():
        forward = timed(lambda _: attend(q, k, v, is_causal=True, **grouped))
    for each in (q, k, v):
        each.requires_grad_()
    out = attend(q, k, v, is_causal=True, **grouped)
    gradient = torch.randn_like(out)
    gradients = torch.autograd.grad  # `backward` would add to what is there.
    return forward, timed(lambda _: gradients(out, (q, k, v), gradient, retain_graph=True))
