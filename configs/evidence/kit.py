"""Measures this machine's GPUs beside what simrank 0.1.0 predicted of them.

    python kit.py

takes at most five minutes and writes kit.json. Please attach that file to an issue of simrank.

What it does: it times launches, copies, matrix products, attention, Triton kernels (if triton is
installed), collectives and messages of NCCL on 2, 4 and 8 GPUs, runs five small programs of
torch.distributed and two that hang, which it ends, and compares all that with the predictions
below.
What it does not do: it needs no network, sends nothing, installs nothing, changes no setting of a
GPU, and reads no file of yours. kit.json has the models and drivers of GPUs and CPU, versions,
settings of NCCL and times; no names of hosts, users or folders, no serial numbers.

Each phase runs in processes of its own, under a limit: what crashes or hangs ends that phase alone.
The predictions were made before; their hash is d31eede3f54fcde6c25b70c6a7c0eab75c183889c665c538b5d0b87d232c57d7.
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import json
import math
import os
import platform
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import warnings
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from statistics import median
from typing import Any

try:
    import torch
    import torch.distributed as dist
except (ImportError, OSError):  # Then `main` says so.
    torch = dist = None

# ---- Rows: one measured time each, written at once, so that what ends a run loses nothing. ----

REPEATS = 3
UNITS = ("B", "KiB", "MiB", "GiB")


class Rows:
    """The file to which a worker writes its measurements; ranks above 0 write nothing.

    Args:
        path: A file of JSON lines; None: rows are kept only.
        is_writing: Whether this rank writes.
        limit_s: Seconds after which no further item is begun.
    """

    def __init__(self, path: Path | None, limit_s: float, *, is_writing: bool = True) -> None:
        self.kept: list[dict[str, Any]] = []
        self.num_failed = 0  # Items in a row.
        self._path, self._is_writing = path, is_writing
        self._end = time.perf_counter() + limit_s

    def is_over(self) -> bool:
        """Return whether no further item is to be begun."""
        return time.perf_counter() > self._end

    def add(self, kind: str, phase: str, **facts: Any) -> None:
        """Write a row of one kind: time, fact, value, note."""
        if self._is_writing:
            self.add_of_each(kind, phase, **facts)

    def add_of_each(self, kind: str, phase: str, **facts: Any) -> None:
        """Write a row on each rank."""
        row = finite({"kind": kind, "phase": phase, **facts})
        self.kept.append(row)
        if self._path is not None:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")

    def times(self, phase: str, name: str, times_us: Iterable[float], **facts: Any) -> None:
        """Write the times of one item in microseconds: the median counts."""
        each = sorted(times_us)
        median = each[len(each) // 2]
        spread = {"min_us": round(each[0], 3), "max_us": round(each[-1], 3)}
        self.add("time", phase, name=name, time_us=round(median, 3), **spread, **facts)


def finite(value: Any) -> Any:
    """Return a value with texts for numbers that JSON does not have: `nan`, `inf`."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {key: finite(each) for key, each in value.items()}
    return [finite(each) for each in value] if isinstance(value, (list, tuple)) else value


def size_text(size_bytes: int) -> str:
    """Return `64 KiB`."""
    number, unit = float(size_bytes), 0
    while number >= 1024 and unit < len(UNITS) - 1:
        number, unit = number / 1024, unit + 1
    return f"{number:g} {UNITS[unit]}"


# ---- The machine, without names of hosts, users or folders. ----

QUERY = (
    "name", "driver_version", "power.limit", "power.max_limit", "clocks.max.sm", "clocks.max.mem",
    "clocks.sm", "clocks.mem", "temperature.gpu", "memory.used", "mig.mode.current",
    "pcie.link.gen.current", "pcie.link.width.current", "persistence_mode", "ecc.mode.current",
)
BUSY_S = 5.0
MANY = 6  # That every driver knows.
LINK = re.compile(r"^(X|NV\d+|PIX|PXB|PHB|NODE|SYS)$")
KEPT_VARIABLES = (
    "NCCL_", "CUDA_DEVICE", "CUDA_MODULE", "CUDA_LAUNCH", "TORCH_NCCL_", "TORCH_ALLOW_TF32",
    "NVIDIA_TF32", "PYTORCH_CUDA", "PYTORCH_ALLOC", "PYTORCH_NO_CUDA", "TRITON_INTERPRET",
    "CUBLAS_",
)
PLAIN_VALUE = re.compile(r"^[A-Za-z0-9,.^:_-]{1,24}$")
PRIVATE_VARIABLES = ("IFNAME", "HOSTID", "FILE", "COMM_ID", "HCA", "DEVICES", "ADDR")
# Paths in quotes, others, addresses, and the names of hosts before NCCL's process numbers.
PRIVATE = (
    re.compile(r"[^\s'\"=,;()\[\]]*/[^'\",;()\[\]|]*(?=['\"])"),
    re.compile(r"[^\s'\"=,;()\[\]]*/[^\s'\",;()\[\]]*"),
    re.compile(r"\b\d{1,3}(\.\d{1,3}){3}\b(<\d+>|:\d+)?"),
    re.compile(r"\b[\w.-]+:\d+:\d+(?= \[)"),
)


def command(*words: str, limit_s: float = 10) -> str:
    """Return the output of a program; "" where it is missing."""
    if shutil.which(words[0]) is None:
        return ""
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=limit_s, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""


def machine() -> dict[str, Any]:
    """Return facts of GPUs, links, drivers, host and libraries; None where one is not known."""
    makers: dict[str, Callable[[], Any]] = {
        "gpus": gpus,
        "links": lambda: links(command("nvidia-smi", "topo", "-m"), visible()),
        "other_processes": lambda: len(smi("--query-compute-apps=pid").split()),
        "system": platform.system,
        "cpu": cpu,
        "cores": os.cpu_count,
        "numa_nodes": numa_nodes,
        "python": platform.python_version,
        "torch": lambda: torch.__version__,
        "cuda": lambda: torch.version.cuda,
        "hip": lambda: torch.version.hip,
        "variables": variables,
        "nccl": lambda: list(torch.cuda.nccl.version()),
        "device": device if torch.cuda.is_available() else lambda: None,
    }
    found = {}
    for name, make in makers.items():
        try:
            found[name] = make()
        except Exception as error:  # The rest is worth having.
            found[name] = None
            found[f"{name} is not known"] = clean(f"{type(error).__name__}: {error}")[:200]
    return found


def device() -> dict[str, Any]:
    """Return facts of the first GPU."""
    properties = torch.cuda.get_device_properties(0)
    return {
        "name": properties.name,
        "count": torch.cuda.device_count(),
        "memory_bytes": properties.total_memory,
        "num_sms": properties.multi_processor_count,
        "capability": list(torch.cuda.get_device_capability(0)),
    }


def gpus() -> list[dict[str, str]]:
    """Return the facts of nvidia-smi about each GPU."""
    for names in (QUERY, QUERY[:MANY]):  # Old drivers do not know the last ones.
        text = smi(f"--query-gpu={','.join(names)}")
        lines = [line.split(", ") for line in text.splitlines() if line.strip()]
        if lines:
            return [dict(zip(names, line)) for line in lines]
    return []


def visible() -> list[str]:
    """Return the numbers or names of the GPUs that CUDA_VISIBLE_DEVICES leaves; none: all."""
    words = [each.strip() for each in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")]
    return words if all(each.isdigit() or each.startswith("GPU-") for each in words) else []


def smi(query: str) -> str:
    """Return the answer of nvidia-smi for the visible GPUs; for all where it does not know them."""
    words = ("nvidia-smi", query, "--format=csv,noheader")
    some = command(*words, f"--id={','.join(visible())}") if visible() else ""
    return some or command(*words)


def links(table: str, kept: Sequence[str] = ()) -> list[list[str]]:
    """Return the kinds of links between GPUs, of nvidia-smi's table; kept: numbers of some."""
    found = []
    for line in table.splitlines():
        words = re.sub(r"\x1b\[[0-9;]*m", "", line).split()
        if words and re.fullmatch(r"GPU\d+", words[0]) and len(words) > 1 and LINK.match(words[1]):
            found.append([word for word in words[1:] if LINK.match(word)])
    some = [int(each) for each in kept if each.isdigit() and int(each) < len(found)]
    numbers = some if some and len(some) == len(kept) else range(len(found))
    return [[found[row][column] for column in numbers] for row in numbers]


def cpu() -> str:
    """Return the model of the CPU."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            lines = [line for line in file if line.startswith("model name")]
    except OSError:
        lines = []
    return lines[0].partition(":")[2].strip() if lines else platform.machine()


def numa_nodes() -> int:
    """Return the number of NUMA nodes."""
    folder = "/sys/devices/system/node"
    if not os.path.isdir(folder):
        return 0
    return sum(bool(re.fullmatch(r"node\d+", name)) for name in os.listdir(folder))


def variables() -> dict[str, str]:
    """Return variables of NCCL and CUDA; values that may name something are left out."""
    found = {}
    for name, value in sorted(os.environ.items()):
        if name.startswith(KEPT_VARIABLES):
            is_private = any(word in name for word in PRIVATE_VARIABLES)
            found[name] = value if PLAIN_VALUE.match(value) and not is_private else "(set)"
    return found


def clean(text: str) -> str:
    """Return a text without folders, addresses, and names of host and user."""
    home = os.path.expanduser("~")
    node = platform.node()
    private = {node, node.split(".")[0], socket.gethostname(), home, os.path.basename(home)}
    private |= {os.getcwd(), sys.prefix, tempfile.gettempdir()}
    private |= {os.environ.get(name, "") for name in ("USER", "LOGNAME")}
    for word in sorted(private, key=len, reverse=True):
        if len(word) > 2:
            text = text.replace(word, "(private)")
    for pattern in PRIVATE:
        text = pattern.sub("(private)", text)
    return text


def clocks(rows: Rows) -> None:
    """Note the clocks and the power of GPUs while the first one is busy."""
    if shutil.which("nvidia-smi") is None:
        return
    names = ("clocks.sm", "clocks.mem", "power.draw", "temperature.gpu")
    words = ["nvidia-smi", f"--query-gpu={','.join(names)}", "--format=csv,noheader"]
    a = torch.ones(4096, 4096, device="cuda", dtype=torch.float16)
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as asked:
        last = time.monotonic() + BUSY_S
        while asked.poll() is None and time.monotonic() < last:
            torch.mm(a, a)
            torch.cuda.synchronize()
        asked.kill()
        text = asked.stdout.read() if asked.stdout is not None else ""
    rows.add("fact", "clocks", values=[line.split(", ") for line in text.splitlines()])


# ---- Work of one GPU: launches, copies, matrix products, attention. ----

NUM_LAUNCHES = 500
COLD_BYTES = 256 << 20  # More than a GPU's L2 cache holds.
MOST_COPIES = 128
MOST_FAILED = 3
AMPERE = 8  # The first that has TF32.
COPY_BYTES = tuple(1 << power for power in (12, 16, 20, 24, 28))
PRODUCTS = (
    (1, 4096, 4096), (16, 8192, 8192), (128, 4096, 14336), (512, 4096, 4096), (2048, 2048, 2048),
    (4096, 4096, 4096), (4096, 14336, 4096), (8192, 8192, 8192), (1000, 1000, 1000),
)
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
        }
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


# ---- Collectives and messages of NCCL over sizes, in nccl-tests' way but from torch. ----

SIZES = tuple(1 << power for power in range(10, 31, 2))  # 1 KiB to 1 GiB.
LARGE_BYTES = 32 << 20
PAIR_SIZES = (8, 64 << 20)
MEMORY_SHARE = 4  # No buffer has more than this part of the free memory.


def collectives(rows: Rows) -> None:
    """Measure the collectives of all ranks, and messages around a ring of them, size by size."""
    ranks = dist.get_world_size()
    for size in SIZES:
        for name, make in CALLS.items():
            if not agreed(not rows.is_over() and fits(size)):
                text = f"stopped before {name}, {size_text(size)}: {why(rows)}"
                rows.add("note", "collectives", text=text)
                return
            times = host_us(make(size), 20 if size < LARGE_BYTES else 5)
            title = f"{name} of {ranks} ranks, {size_text(size)}"
            facts = {"collective": name, "bytes": size, "ranks": ranks, "dtype": "float32"}
            rows.times("collectives", title, times, **facts)


def pairs(rows: Rows) -> None:
    """Measure a message from one GPU to another, of each pair in turn; the others wait."""
    ranks = dist.get_world_size()
    every = [(giver, taker) for giver in range(ranks) for taker in range(giver + 1, ranks)]
    for size in PAIR_SIZES:
        each_us = {}
        for giver, taker in every:
            if not agreed(not rows.is_over() and fits(size)):
                text = f"stopped before {giver} to {taker}, {size_text(size)}: {why(rows)}"
                rows.add("note", "pairs", text=text)
                return
            body = message(size, giver, taker)
            times = host_us(body, 20 if size < LARGE_BYTES else 5, is_longest=True)
            each_us[f"{giver} to {taker}"] = round(sorted(times)[len(times) // 2], 3)
        title = f"{size_text(size)} between 2 of {ranks} GPUs"
        rows.times("pairs", title, each_us.values(), bytes=size, ranks=ranks, each_us=each_us)


def fits(size: int) -> bool:
    """Return whether buffers of a size are a small part of the free memory."""
    free, _ = torch.cuda.mem_get_info()
    return size * 2 < free // MEMORY_SHARE


def why(rows: Rows) -> str:
    """Return the reason why a phase stops."""
    return "its share of --limit is used up" if rows.is_over() else "too little free memory"


def agreed(is_going_on: bool) -> bool:
    """Return whether all ranks go on, so that all do the same."""
    said = torch.tensor([is_going_on], dtype=torch.int32, device="cuda")
    dist.all_reduce(said, op=dist.ReduceOp.MIN)
    return bool(said.item())


def host_us(
    body: Callable[[], object], number: int, *, warm_ups: int = 5, is_longest: bool = False
) -> list[float]:
    """Return the time of one of `number` calls, launched back to back, per repeat.

    It is the mean over ranks, as nccl-tests has it, or the longest.
    """
    for _ in range(warm_ups):
        body()
    torch.cuda.synchronize()
    found = []
    for _ in range(REPEATS):
        dist.barrier()
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(number):
            body()
        torch.cuda.synchronize()
        spent = torch.tensor([(time.perf_counter() - start) * 1e6 / number], device="cuda")
        dist.all_reduce(spent, op=dist.ReduceOp.MAX if is_longest else dist.ReduceOp.SUM)
        found.append(spent.item() / (1 if is_longest else dist.get_world_size()))
    return found


def buffers(send_bytes: int, take_bytes: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return two buffers of float32."""
    return torch.zeros(send_bytes // 4, device="cuda"), torch.zeros(take_bytes // 4, device="cuda")


def all_reduce(size: int) -> Callable[[], Any]:
    """Sum `size` bytes of each rank, in place."""
    data, _ = buffers(size, 4)
    return lambda: dist.all_reduce(data)


def all_gather(size: int) -> Callable[[], Any]:
    """Gather `size` bytes in all; each rank gives its part."""
    ranks = dist.get_world_size()
    part = size // ranks // 4 * 4
    give, take = buffers(part, part * ranks)
    return lambda: dist.all_gather_into_tensor(take, give)


def reduce_scatter(size: int) -> Callable[[], Any]:
    """Sum `size` bytes, and give each rank a part."""
    ranks = dist.get_world_size()
    part = size // ranks // 4 * 4
    give, take = buffers(part * ranks, part)
    return lambda: dist.reduce_scatter_tensor(take, give)


def broadcast(size: int) -> Callable[[], Any]:
    """Send `size` bytes of rank 0 to all."""
    data, _ = buffers(size, 4)
    return lambda: dist.broadcast(data, 0)


def alltoall(size: int) -> Callable[[], Any]:
    """Exchange `size` bytes of each rank."""
    ranks = dist.get_world_size()
    part = size // ranks // 4 * 4
    give, take = buffers(part * ranks, part * ranks)
    return lambda: dist.all_to_all_single(take, give)


def sendrecv(size: int) -> Callable[[], Any]:
    """Send `size` bytes to the next rank, and take those of the previous one."""
    ranks, rank = dist.get_world_size(), dist.get_rank()
    give, take = buffers(size, size)

    def body() -> None:
        send = dist.P2POp(dist.isend, give, (rank + 1) % ranks)
        take_op = dist.P2POp(dist.irecv, take, (rank - 1) % ranks)
        for work in dist.batch_isend_irecv([send, take_op]):
            work.wait()

    return body


def message(size: int, giver: int, taker: int) -> Callable[[], Any]:
    """Send `size` bytes from one rank to another; the other ranks do nothing."""
    rank = dist.get_rank()
    data, _ = buffers(size, 4)

    def body() -> None:
        operation, other = (dist.isend, taker) if rank == giver else (dist.irecv, giver)
        if rank in (giver, taker):  # In a batch of one: of the communicator of all.
            for work in dist.batch_isend_irecv([dist.P2POp(operation, data, other)]):
                work.wait()

    return body


CALLS = {
    "all_reduce": all_reduce,
    "all_gather": all_gather,
    "reduce_scatter": reduce_scatter,
    "broadcast": broadcast,
    "alltoall": alltoall,
    "sendrecv": sendrecv,
}


# ---- Programs of torch.distributed: values, orders of calls, and hangs. ----

SHOWN = 6  # Values of a rank that are written, and the weighted sum of all.


class Calls:
    """torch.distributed, with the calls of this rank noted in their order.

    Args:
        note: Takes the name of a call and the number of its elements, before it is made.
    """

    def __init__(self, note: Callable[[str], None]) -> None:
        self._note = note

    def __getattr__(self, name: str) -> Any:
        return partial(self._call, name)

    def _call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        tensors = [each for each in args if isinstance(each, torch.Tensor)]
        size = f" of {tensors[0].numel()}" if tensors else ""
        self._note(f"{name}{size}")
        return getattr(dist, name)(*args, **kwargs)


def whole(*shape: int, start: int = 0) -> torch.Tensor:
    """Return whole numbers from -3 to 3 on the device."""
    count = torch.Size(shape).numel()
    return ((torch.arange(count, device="cuda") * 5 + start) % 7 - 3).float().view(shape)


def tensor_parallel(calls: Any, rank: int, ranks: int) -> list[torch.Tensor]:
    """A layer split over its columns, then over its rows, with the sums of both passes."""
    x = whole(4, 8).requires_grad_()
    up = whole(2 * ranks, 8, start=1).chunk(ranks)[rank].clone().requires_grad_()
    down = whole(8, 2 * ranks, start=2).chunk(ranks, 1)[rank].clone().requires_grad_()
    out = (x @ up.T).relu() @ down.T
    total = out.detach().clone()
    calls.all_reduce(total)
    out.backward(total.sign())
    assert x.grad is not None
    calls.all_reduce(x.grad)
    return [total, x.grad]


def ring(calls: Any, rank: int, ranks: int) -> list[torch.Tensor]:
    """Each rank's part goes around; each rank adds what passes, weighted by the turn."""
    own, total = whole(16, start=rank), torch.zeros(16, device="cuda")
    for turn in range(ranks):
        total += (turn + 1) * own
        taken = torch.empty_like(own)
        works = calls.batch_isend_irecv(
            [
                dist.P2POp(dist.isend, own, (rank + 1) % ranks),
                dist.P2POp(dist.irecv, taken, (rank - 1) % ranks),
            ]
        )
        for work in works:
            work.wait()
        own = taken
    return [total]


def experts(calls: Any, rank: int, ranks: int) -> list[torch.Tensor]:
    """Rows go to the ranks of their experts in uneven parts, and come back."""
    give = [1 + (rank + other) % 3 for other in range(ranks)]
    counts = torch.tensor(give, device="cuda")
    taken = torch.empty_like(counts)
    calls.all_to_all_single(taken, counts)
    take = taken.tolist()
    rows = whole(sum(give), 4, start=rank)
    there = torch.empty(sum(take), 4, device="cuda")
    calls.all_to_all_single(there, rows, take, give)
    there *= rank + 1
    back = torch.empty_like(rows)
    calls.all_to_all_single(back, there, give, take)
    return [back]


def sharded(calls: Any, rank: int, ranks: int) -> list[torch.Tensor]:
    """Parameters in shards: gathered, used, gradients reduced to shards, updated."""
    shard = whole(6 * ranks).chunk(ranks)[rank].clone()
    for step in range(2):
        full = torch.empty(6 * ranks, device="cuda")
        calls.all_gather_into_tensor(full, shard)
        gradient = full * (rank + 1 + step)
        part = torch.empty_like(shard)
        calls.reduce_scatter_tensor(part, gradient)
        shard -= part
    return [shard]


def groups(calls: Any, rank: int, ranks: int) -> list[torch.Tensor]:
    """Two groups, handles that are waited for in another order, and a broadcast."""
    halves = [calls.new_group([r for r in range(ranks) if r % 2 == side]) for side in (0, 1)]
    own = halves[rank % 2]
    first, second = whole(8, start=rank), whole(8, start=rank + 1)
    works = [calls.all_reduce(each, group=own, async_op=True) for each in (first, second)]
    works[1].wait()
    second += 1
    works[0].wait()
    last = whole(8, start=rank)
    calls.broadcast(last, ranks - 1)
    calls.barrier()
    return [first, second, last]


def one_leaves_out(calls: Any, rank: int, ranks: int) -> list[torch.Tensor]:
    """The last rank leaves out a sum: the others wait for it."""
    x = whole(8, start=rank)
    calls.all_reduce(x)
    if rank < ranks - 1:
        calls.all_reduce(x)
        torch.cuda.synchronize()
    return [x]


def all_receive_first(calls: Any, rank: int, ranks: int) -> list[torch.Tensor]:
    """Each rank takes from its neighbour before it sends."""
    x = whole(8, start=rank)
    calls.recv(torch.empty_like(x), (rank + 1) % ranks)
    torch.cuda.synchronize()
    calls.send(x, (rank - 1) % ranks)
    return [x]


PROGRAMS = {
    "tensor parallel": tensor_parallel,
    "ring": ring,
    "experts": experts,
    "sharded": sharded,
    "groups": groups,
}
HANGS = {"one leaves out": one_leaves_out, "all receive first": all_receive_first}


def programs(rows: Rows) -> None:
    """Run the programs, and note values and calls of every rank."""
    for name, program in PROGRAMS.items():
        noted: list[str] = []
        values = program(Calls(noted.append), dist.get_rank(), dist.get_world_size())
        flat = [int(each) for each in torch.cat([each.flatten() for each in values]).tolist()]
        weighted = sum((place + 1) * each for place, each in enumerate(flat))
        facts = {"values": [*flat[:SHOWN], weighted], "calls": noted}
        title = f"{name} on {dist.get_world_size()} ranks"
        rows.add_of_each("part", "programs", name=title, rank=dist.get_rank(), **facts)


def hang(name: str, note: Callable[[str], None]) -> None:
    """Run a program that waits forever on some ranks."""
    HANGS[name](Calls(note), dist.get_rank(), dist.get_world_size())
    torch.cuda.synchronize()


# ---- Triton kernels: values, and times. ----

triton: Any = None  # Where it is missing, or does not start.
if {"kernels", "own kernels"} & set(sys.argv):
    with suppress(Exception):
        import triton
        import triton.language as tl

if triton is not None:

    @triton.jit
    def add_kernel(x, y, out, size, BLOCK: tl.constexpr):
        """Add vectors."""
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(out + at, tl.load(x + at, at < size) + tl.load(y + at, at < size), at < size)

    @triton.jit
    def softmax_kernel(x, out, width, BLOCK: tl.constexpr):
        """Compute a row's softmax."""
        at = tl.program_id(0) * width + tl.arange(0, BLOCK)
        is_in = tl.arange(0, BLOCK) < width
        row = tl.load(x + at, is_in, float("-inf"))
        row = tl.exp(row - tl.max(row, 0))
        tl.store(out + at, row / tl.sum(row, 0), is_in)

    @triton.jit
    def norm_kernel(x, scale, out, width, BLOCK: tl.constexpr):
        """Normalise a row by its mean square."""
        columns = tl.arange(0, BLOCK)
        is_in = columns < width
        row = tl.load(x + tl.program_id(0) * width + columns, is_in, 0.0)
        mean = tl.sum(row * row, 0) / width
        scaled = row / tl.sqrt(mean + 1e-6) * tl.load(scale + columns, is_in, 0.0)
        tl.store(out + tl.program_id(0) * width + columns, scaled, is_in)

    @triton.jit
    def product_kernel(a, b, out, n, k, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
        """Compute a block of a matrix product."""
        rows = tl.program_id(0) * M + tl.arange(0, M)
        columns = tl.program_id(1) * N + tl.arange(0, N)
        total = tl.zeros((M, N), tl.float32)
        for start in range(0, k, K):
            inner = start + tl.arange(0, K)
            left = tl.load(a + rows[:, None] * k + inner[None, :])
            right = tl.load(b + inner[:, None] * n + columns[None, :])
            total += tl.dot(left, right)
        tl.store(out + rows[:, None] * n + columns[None, :], total)


def kernels(rows: Rows) -> None:
    """Run the kernels on small inputs."""
    if triton is None:
        rows.add("note", "kernels", text="triton is not installed")
        return
    draw = torch.Generator().manual_seed(7)

    def drawn(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=draw).cuda()

    x, y, out = drawn(1 << 16), drawn(1 << 16), torch.empty(1 << 16, device="cuda")
    wide, scale = drawn(64, 1000), drawn(1000)
    shown, normed = torch.empty_like(wide), torch.empty_like(wide)
    a, b = drawn(128, 256).half(), drawn(256, 128).half()
    product = torch.empty(128, 128, device="cuda")
    cases: dict[str, tuple[Any, torch.Tensor, torch.Tensor]] = {
        "add": (
            lambda _: add_kernel[(64,)](x, y, out, len(out), BLOCK=1024), out, x + y,
        ),
        "softmax": (
            lambda _: softmax_kernel[(64,)](wide, shown, 1000, BLOCK=1024), shown, wide.softmax(1),
        ),
        "norm": (
            lambda _: norm_kernel[(64,)](wide, scale, normed, 1000, BLOCK=1024), normed,
            wide * (wide.square().mean(1, keepdim=True) + 1e-6).rsqrt() * scale,
        ),
        "product": (
            lambda _: product_kernel[(2, 2)](a, b, product, 128, 256, M=64, N=64, K=32), product,
            (a.double() @ b.double()).float(),
        ),
    }
    for name, (body, got, want) in cases.items():
        if rows.is_over():
            rows.add("note", "kernels", text=f"stopped before {name}")
            return
        with surviving(rows, "kernels", name):
            one_kernel(rows, name, body, got, want)


def one_kernel(rows: Rows, name: str, body: Body, got: torch.Tensor, want: torch.Tensor) -> None:
    """Run a kernel, compare what it gives with torch's, and time it in a CUDA graph."""
    body(0)
    error = ((got - want).abs().max() / want.abs().max()).item()
    sample = [round(each, 4) for each in got.flatten()[:: got.numel() // 8].tolist()]
    facts = {"error": float(f"{error:.2g}"), "is_right": error < 1e-2}
    rows.add("value", "kernels", name=name, sample=sample, **facts)
    rows.times("kernels", f"kernel {name}", graphed(body, 10, most=3)[0])


# ---- Processes of a phase: started together, and ended together in any case. ----

PEERS_S = 5.0  # For which the others go on after one rank has failed.
LAST_LINES = 3
START_S = 8.0  # Of a worker's limit, which its start takes.
END_S = 10.0  # To wait for a process that was killed: one in the driver may never end.
READY = "ready"  # A row that a rank writes before its program.
PR_SET_PDEATHSIG = 1
HOME = "KIT_HOME"  # The folder of a phase.


@dataclass
class Done:
    """The result of a phase.

    Attributes:
        rows: Those that its ranks wrote.
        failure: Why it failed; "" if it did not.
        is_late: Whether it was ended at its limit.
    """

    rows: list[dict[str, Any]] = field(default_factory=list)
    failure: str = ""
    is_late: bool = False


def run_phase(phase: str, ranks: int, limit_s: float, done: Done, after_ready_s: float = 0) -> None:
    """Run a phase on some ranks, each in a process of its own, and end them at the limit.

    Args:
        phase: Its name.
        ranks: Their number.
        limit_s: Seconds until they are ended.
        done: Gets the result, also if this is interrupted.
        after_ready_s: Seconds until they are ended once all have written that they are ready;
            0: that changes nothing.
    """
    home, port = Path(tempfile.mkdtemp(prefix="kit_")), free_port()
    started: list[subprocess.Popen[bytes]] = []
    try:
        for rank in range(ranks):  # One by one: those that were started are ended.
            with held():
                started.append(start(phase, rank, ranks, port, limit_s, home))
        wait_for(started, limit_s, home, done, after_ready_s)
    finally:
        end(started)
        done.rows += [row for rank in range(ranks) for row in rows_of(home, rank)]
        shutil.rmtree(home, ignore_errors=True)


@contextmanager
def held() -> Iterator[None]:
    """Keep signals that end the run until the end of a block: a child would be lost."""
    seen: list[int] = []
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {each: signal.signal(each, lambda number, _: seen.append(number)) for each in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if seen:
        raise KeyboardInterrupt


def start(
    phase: str, rank: int, ranks: int, port: int, limit_s: float, home: Path
) -> subprocess.Popen[bytes]:
    """Start one rank in a session of its own; its output goes to a file."""
    env = dict(os.environ, RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(ranks))
    env.update({"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), HOME: str(home)})
    least = max(1.0, 0.85 * limit_s - START_S)
    words = ["--worker", phase, "--to", str(home / f"rows.{rank}"), "--limit", f"{least:g}"]
    words += ["--parent", str(os.getpid()), "--alarm", f"{int(limit_s + 20)}"]
    with (home / f"output.{rank}").open("wb") as output:
        return subprocess.Popen(
            [sys.executable, os.path.abspath(__file__), *words],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=env,
            start_new_session=True,
        )


def end_with_parent(parent: int, alarm_s: int) -> None:
    """Make a worker end with its parent, even a killed one, and at its alarm at the latest."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(alarm_s)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def wait_for(
    started: list[subprocess.Popen[bytes]],
    limit_s: float,
    home: Path,
    done: Done,
    after_ready_s: float,
) -> None:
    """Wait until all ranks end, one fails, or the limit."""
    last = time.monotonic() + limit_s
    is_ready = not after_ready_s
    while True:
        codes = [each.poll() for each in started]
        failed = [rank for rank, code in enumerate(codes) if code]
        if failed and not done.failure:
            done.failure = reason(failed[0], codes[failed[0]] or 0, home)
            last = min(last, time.monotonic() + PEERS_S)
        if None not in codes:
            return
        if not is_ready and all(has_row(home, rank, READY) for rank in range(len(started))):
            is_ready, last = True, time.monotonic() + after_ready_s
        if time.monotonic() > last:
            if not done.failure:
                done.failure = f"did not end within {limit_s:g} s"
                done.is_late = is_ready
            return
        time.sleep(0.05)


def reason(rank: int, code: int, home: Path) -> str:
    """Return the last lines of a rank that failed, and its status."""
    text = (home / f"output.{rank}").read_text("utf-8", errors="replace")
    lines = [line.strip() for line in text.splitlines() if line.strip()][-LAST_LINES:]
    how = f"status {code}"
    if code < 0:
        known = {each.value: each.name for each in signal.Signals}
        how = f"signal {known.get(-code, str(-code))}"
    return clean(f"rank {rank}, {how}: {' | '.join(lines)}")[:600]


def end(started: list[subprocess.Popen[bytes]]) -> None:
    """Kill ranks and the processes that they have started, all at once."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # A second one would leave some.
    for each in started:
        with suppress(ProcessLookupError, PermissionError):  # It has ended, with its session.
            os.killpg(each.pid, signal.SIGKILL)
    for each in started:
        with suppress(subprocess.TimeoutExpired):
            each.wait(END_S)
    signal.signal(signal.SIGINT, before)


def rows_of(home: Path, rank: int) -> list[dict[str, Any]]:
    """Return the rows of a rank's file, whose last line may be incomplete."""
    path = home / f"rows.{rank}"
    found: list[dict[str, Any]] = []
    for line in path.read_text("utf-8").splitlines() if path.exists() else []:
        with suppress(json.JSONDecodeError):
            found.append(json.loads(line))
    return found


def has_row(home: Path, rank: int, kind: str) -> bool:
    """Return whether a rank has written a row of a kind."""
    return any(row["kind"] == kind for row in rows_of(home, rank))


def free_port() -> int:
    """Return a port that is free now."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


# ---- A program and kernel cases of the kit's author, if it has any. ----

OWN: dict[str, str] = {}  # What `simrank compare --kit` writes: texts, and a function's name.
SAMPLE = 16  # Values of a result that are written, spread evenly.
SEED = 7


def own_module(kind: str, rank: int) -> Any:
    """Return a module of the author's text, in a file of its own: Triton reads the source."""
    folder = os.environ.get(HOME) or tempfile.mkdtemp(prefix="kit_")
    path = Path(folder) / f"own_{kind}_{rank}.py"
    path.write_text(OWN[kind], encoding="utf-8")
    spec = spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def sampled(value: object) -> list[float]:
    """Return numbers of a result, spread evenly, and the norm of all."""
    parts = torch.utils._pytree.tree_leaves(value)
    leaves = [each for each in parts if isinstance(each, (torch.Tensor, int, float))]
    flat = [torch.as_tensor(each).detach().double().flatten().cpu() for each in leaves]
    every = torch.cat(flat) if flat else torch.zeros(0, dtype=torch.float64)
    step = max(1, len(every) // SAMPLE)
    found = [*every[::step][:SAMPLE].tolist(), every.norm().item()]
    return [float(f"{each:.6g}") for each in found]


def own_program(rows: Rows) -> None:
    """Run the author's function on all ranks: once for its values, then for its time."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    function = getattr(own_module("program", rank), OWN["function"])
    value = function(rank, ranks)
    title, facts = f"{OWN['function']} on {ranks} ranks", {"values": sampled(value), "calls": []}
    rows.add_of_each("part", "own program", name=title, rank=rank, **facts)
    rows.times("own program", title, host_us(lambda: function(rank, ranks), 1, warm_ups=0))


class Bench:
    """The interface of a kernel case: it makes inputs, launches kernels and keeps outputs."""

    def __init__(self) -> None:
        import numpy as np

        self.np = np
        self.rng = np.random.default_rng(SEED)
        self.results: list[tuple[torch.Tensor, Any, float]] = []
        self.launches: list[Any] = []

    def normal(self, *shape: int, dtype: Any = "float32") -> Any:
        """Return normal random numbers."""
        return self.rng.standard_normal(shape).astype(dtype)

    def integers(self, high: int, *shape: int, low: int = 0, dtype: Any = "int32") -> Any:
        """Return random integers from `low` to below `high`."""
        return self.rng.integers(low, high, shape).astype(dtype)

    def out(self, *shape: int, dtype: Any = "float32") -> Any:
        """Return zeros on the device."""
        return self.put(self.np.zeros(shape, dtype))

    def put(self, *arrays: Any) -> Any:
        """Return arrays as tensors of the device: one, or a list."""
        found = [torch.from_numpy(self.np.ascontiguousarray(each)).cuda() for each in arrays]
        return found[0] if len(found) == 1 else found

    def expect(self, tensor: Any, wanted: Any = None, tolerance: float = 1e-5) -> None:
        """Save a copy of an output, and what it should be."""
        self.results.append((tensor.clone(), wanted, tolerance))

    def launch(self, kernel: Any, grid: Any, *args: Any, **constants: Any) -> None:
        """Launch a kernel, and remember it."""
        kernel[grid](*args, **constants)
        self.launches.append(lambda: kernel[grid](*args, **constants))

    def again(self, _: int) -> None:
        """Launch all kernels once more."""
        for launch in self.launches:
            launch()

    def are_right(self) -> bool:
        """Return whether outputs are within their tolerances, where something is expected."""
        for got, wanted, tolerance in self.results:
            if wanted is not None:
                want = torch.as_tensor(wanted).double()
                rest = (got.double().cpu() - want).abs()
                if not bool((rest <= tolerance * (1 + want.abs())).all()):
                    return False
        return True


def own_kernels(rows: Rows) -> None:
    """Run the author's kernel cases: values, and the time of all launches of a case."""
    try:
        cases = own_module("kernels", 0).RUNS
    except ImportError as error:
        rows.add("note", "own kernels", text=clean(str(error)))
        return
    for name, case in cases.items():
        if rows.is_over():
            rows.add("note", "own kernels", text=f"stopped before {name}")
            return
        with surviving(rows, "own kernels", name):
            bench = Bench()
            case(bench)
            sample = sampled([each[0] for each in bench.results])
            facts = {"sample": sample, "is_right": bench.are_right(), "error": 0.0}
            rows.add("value", "own kernels", name=name, **facts)
            rows.times("own kernels", name, graphed(bench.again, 10, most=3)[0])


# ---- A worker: one rank of one phase, in a process of its own, or a rank that torchrun started. ----

SINGLE: dict[str, Callable[[Rows], None]] = {
    "launches": launches,
    "copies": copies,
    "products": products,
    "attention": attentions,
    "kernels": kernels,
    "own kernels": own_kernels,
}
TOGETHER: dict[str, Callable[[Rows], None]] = {
    "collectives": collectives,
    "pairs": pairs,
    "programs": programs,
    "own program": own_program,
}


def work(phase: str, to: Path | None, limit_s: float, *, is_cold: bool = False) -> Rows:
    """Run a phase on this rank, and return its rows; cold: without a warm-up of its clocks."""
    rank = int(os.environ.get("RANK", "0"))
    rows = Rows(to, limit_s, is_writing=rank == 0)
    if phase == "machine":
        rows.add("fact", phase, values=machine())
        return rows
    warnings.simplefilter("ignore", FutureWarning)  # Newer torch has newer names as well.
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    torch.cuda.set_device(device)
    torch.manual_seed(0)
    if phase in SINGLE:
        if not is_cold:
            with surviving(rows, phase, "warm-up"):
                warm()
        SINGLE[phase](rows)
        clocks(rows)
        return rows
    dist.init_process_group("nccl", device_id=device)
    if phase in TOGETHER:
        TOGETHER[phase](rows)
        if rank == 0:
            clocks(rows)
        dist.destroy_process_group()
        return rows
    dist.barrier()
    rows.add_of_each(READY, phase, rank=rank)
    hang(phase, lambda call: rows.add_of_each("call", phase, rank=rank, call=call))
    rows.add_of_each("end", phase, rank=rank)
    time.sleep(2 * limit_s)  # The end of its process would wake the others with an error.
    return rows


# ---- The result: what was measured beside what was predicted. ----

FORMAT = "simrank kit result"
VALUES = "values"  # The part of the predictions that no device changes.
OTHERS = ("MIG", "PCIE", "NVL", "MAX")  # In names of devices that are no modules.
SAME_SMS = 0.05
SLOW = 1.5  # Times the median pair.
CLOSE = 1e-3  # Of values of kernels, whose order of sums differs.


def sha256(text: str) -> str:
    """Return the hash of a text."""
    return hashlib.sha256(text.encode()).hexdigest()


def hash_of_parts(hashes: Mapping[str, str]) -> str:
    """Return the hash over the hashes of the parts of predictions."""
    return sha256("\n".join(f"{name} {hashes[name]}" for name in sorted(hashes)))


def text_of(document: object) -> str:
    """Return a document as the text that is hashed."""
    return json.dumps(document, sort_keys=True, separators=(",", ":"))


def chosen(predictions: Mapping[str, Any], device: str, num_sms: int = 0) -> str:
    """Return the cluster of predictions whose device this is; "" if there is none.

    A part of a GPU (MIG), and a card where the cluster has modules, are other devices.
    """
    words = device.upper().replace("-", " ").split()
    if set(words) & set(OTHERS):
        return ""
    for name, each in predictions.items():
        if name != VALUES and f" {each['models'][0]} " in f" {' '.join(words)} ":
            is_same = not num_sms or abs(num_sms - each["num_sms"]) <= SAME_SMS * each["num_sms"]
            return name if is_same else ""
    return ""


def merged(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return rows with the parts of ranks as one row, in the order of ranks."""
    found: list[dict[str, Any]] = []
    whole: dict[tuple[str, str], dict[str, Any]] = {}
    for row in sorted(rows, key=lambda row: row.get("rank", 0)):
        if row["kind"] != "part":
            found.append(dict(row))
            continue
        key = row["phase"], row["name"]
        if key not in whole:
            whole[key] = {"kind": "value", "phase": key[0], "name": key[1], "ranks": []}
            found.append(whole[key])
        whole[key]["ranks"].append({"values": row["values"], "calls": row["calls"]})
    return found


def differences(values: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the values, orders of calls and endings that are not those of the predictions."""
    found = []
    for row in rows:
        known = values.get(f"{row['phase']}: {row.get('name')}")
        if row["kind"] != "value" or known is None:
            continue
        if "sample" in row:
            if not row["is_right"]:
                found.append(f"kernel {row['name']}: wrong by {row['error']} of its largest value")
            elif not alike(row["sample"], known["sample"]):
                found.append(f"kernel {row['name']}: other values than predicted")
            continue
        for rank, (mine, theirs) in enumerate(zip(row["ranks"], known["ranks"])):
            is_close = row["phase"] == "own program" and alike(mine["values"], theirs["values"])
            if mine != theirs and not is_close:
                what = "values" if mine["values"] != theirs["values"] else "calls"
                found.append(f"{row['phase']}, {row['name']}: other {what} on rank {rank}")
                break
    return found


def other_hangs(values: Mapping[str, Any], hangs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the programs that ended, or that hang elsewhere than predicted."""
    found = []
    for each in hangs:
        known = values.get(f"hangs: {each['name']}")
        if not each["hung"]:
            found.append(f"{each['name']}: ended without an error")
        elif known is not None and any(each[key] != known[key] for key in ("calls", "ended")):
            found.append(f"{each['name']}: other calls, or other ranks wait")
    return found


def notes_of(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the items that were left out, with the reason."""
    return [f"{row['phase']}: {row['text']}" for row in rows if row["kind"] == "note"]


def alike(mine: Sequence[Any], theirs: Sequence[Any]) -> bool:
    """Return whether samples are equal but for rounding."""
    texts = [[each for each in both if isinstance(each, str)] for both in (mine, theirs)]
    if len(mine) != len(theirs) or any(texts):  # With `nan` or `inf`: the same ones.
        return list(mine) == list(theirs)
    large = max(map(abs, theirs), default=0.0) or 1.0
    return all(abs(a - b) <= CLOSE * large for a, b in zip(mine, theirs))


def hang_of(rows: Sequence[Mapping[str, Any]], ranks: int) -> dict[str, Any]:
    """Return the calls of each rank of a program that hangs, and the ranks that ended."""
    calls = [
        [r["call"] for r in rows if r["kind"] == "call" and r["rank"] == k] for k in range(ranks)
    ]
    ended = sorted(row["rank"] for row in rows if row["kind"] == "end")
    return {"calls": calls, "ended": ended}


def flat(times: Mapping[str, Any]) -> dict[str, list[float]]:
    """Return predicted times by phase and name, of which those of several sizes share a line."""
    found = {}
    for name, each in times.items():
        many = each.items() if isinstance(each, dict) else [("", each)]
        found.update({f"{name}, {size}" if size else name: known for size, known in many})
    return found


def slow_pairs(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the pairs of GPUs whose messages take much longer than those of most."""
    return [
        f"GPU {pair}, {row['name']}: {time_us / row['time_us']:.2g} times the median"
        for row in rows
        if row["kind"] == "time" and row["phase"] == "pairs"
        for pair, time_us in row["each_us"].items()
        if time_us > SLOW * row["time_us"]
    ]


def summary(times: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a line per phase: rows, measured over predicted, and the share in the intervals."""
    by_phase: dict[str, list[tuple[float, bool | None]]] = {}
    for row in rows:
        known = times.get(f"{row['phase']}: {row['name']}") if row["kind"] == "time" else None
        if known is not None:
            inside = known[1] <= row["time_us"] <= known[2] if len(known) > 1 else None
            by_phase.setdefault(row["phase"], []).append((row["time_us"] / known[0], inside))
    lines = []
    for phase, found in by_phase.items():
        ratios = sorted(ratio for ratio, _ in found)
        known_ones = [inside for _, inside in found if inside is not None]
        share = ""
        if known_ones:
            share = f"; {sum(known_ones)} of the {len(known_ones)} with an interval are inside"
        lines.append(
            f"{phase}: {len(found)} items, measured / predicted: median {median(ratios):.3g}, "
            f"{ratios[0]:.3g} to {ratios[-1]:.3g}{share}"
        )
    return lines + slow_pairs(rows)


# ---- nccl-tests, where it is installed: its own times beside those of torch. ----

NCCL_TESTS = "nccl-tests"
BINARIES = {
    "all_reduce": "all_reduce_perf",
    "all_gather": "all_gather_perf",
    "reduce_scatter": "reduce_scatter_perf",
    "alltoall": "alltoall_perf",
    "sendrecv": "sendrecv_perf",
}
SIZES_ASKED = ("-b", "1K", "-e", "256M", "-f", "4")
# Size, count, type, redop, root; time, two bandwidths and errors out of place; time in place.
LINE = re.compile(
    r"^\s*(\d+)\s+\d+\s+\w+\s+\w+\s+-?\d+\s+([\d.e+]+)\s+\S+\s+\S+\s+\S+\s+([\d.e+]+)\s"
)
IN_PLACE = ("all_reduce",)  # As torch does.
EACH_S = 15.0


def nccl_tests(ranks: int, end: float) -> tuple[list[dict[str, Any]], list[str]]:
    """Run the binaries that are in PATH, on as many GPUs of one process.

    Args:
        ranks: GPUs.
        end: On the clock of `time.monotonic`, when no further one is begun.

    Returns:
        Rows, and the binaries that gave none.
    """
    found: list[dict[str, Any]] = []
    failed = []
    for collective, binary in BINARIES.items():
        left_s = end - time.monotonic()
        if shutil.which(binary) is None or left_s < 1:
            continue
        text = command(binary, *SIZES_ASKED, "-g", str(ranks), limit_s=min(EACH_S, left_s))
        matches = [each for each in map(LINE.match, text.splitlines()) if each is not None]
        failed += [] if matches else [binary]
        for match in matches:
            size, time_us = int(match[1]), float(match[3 if collective in IN_PLACE else 2])
            name = f"{collective} of {ranks} ranks, {size_text(size)}"
            row = {"kind": "time", "phase": NCCL_TESTS, "name": name, "time_us": time_us}
            facts = {"collective": collective, "bytes": size, "ranks": ranks, "processes": 1}
            found.append({**row, **facts})
    return found, failed


# ---- The run: phases one after the other, each in processes of its own. ----

KIT = {'simrank': '0.1.0', 'predictions_sha256': 'd31eede3f54fcde6c25b70c6a7c0eab75c183889c665c538b5d0b87d232c57d7'}
PARTS = {
    'hgx_a100': r"""{"device":"A100 SXM 80GB",
"models":["A100"],
"num_sms":108,
"times":{
"launches: add_ of one element":{"back to back":[2.009],"host":[2],"in a CUDA graph":[1.74]},
"launches: add_ of one element and synchronize":[3.742],
"copies: pinned host to device":{"1 MiB":[43.701],"16 MiB":[699.12],"256 MiB":[11185],"4 KiB":[5.01],"64 KiB":[5.01]},
"copies: device to pinned host":{"1 MiB":[43.701],"16 MiB":[699.12],"256 MiB":[11185],"4 KiB":[5.01],"64 KiB":[5.01]},
"copies: on the device":{"1 MiB":[4.161],"16 MiB":[23.384],"256 MiB":[312.67],"4 KiB":[2.009],"64 KiB":[2.009]},
"products: bfloat16 1x4096x4096":[28.207,24.133,32.969],
"products: bfloat16 16x8192x8192":[103.26,88.343,120.69],
"products: bfloat16 128x4096x14336":[103.04,89.045,119.24],
"products: bfloat16 512x4096x4096":[101.71,87.893,117.7],
"products: bfloat16 2048x2048x2048":[113.45,106.41,120.95],
"products: bfloat16 4096x4096x4096":[545.88,512.04,581.96],
"products: bfloat16 4096x14336x4096":[1957,1835.7,2086.4],
"products: bfloat16 8192x8192x8192":[4241.2,3978.3,4521.6],
"products: bfloat16 1000x1000x1000":[20.461,17.682,23.677],
"products: float16 1x4096x4096":[28.207,24.133,32.969],
"products: float16 16x8192x8192":[103.26,88.343,120.69],
"products: float16 128x4096x14336":[103.04,89.045,119.24],
"products: float16 512x4096x4096":[101.71,87.893,117.7],
"products: float16 2048x2048x2048":[113.45,106.41,120.95],
"products: float16 4096x4096x4096":[545.88,512.04,581.96],
"products: float16 4096x14336x4096":[1957,1835.7,2086.4],
"products: float16 8192x8192x8192":[4241.2,3978.3,4521.6],
"products: float16 1000x1000x1000":[20.461,17.682,23.677],
"products: float32 1x4096x4096":[38.591],
"products: float32 16x8192x8192":[154.89],
"products: float32 128x4096x14336":[770.98],
"products: float32 512x4096x4096":[881.1],
"products: float32 2048x2048x2048":[881.04],
"products: float32 4096x4096x4096":[7048.2],
"products: float32 4096x14336x4096":[24669],
"products: float32 8192x8192x8192":[56386],
"products: float32 1000x1000x1000":[102.57],
"products: float32 as TF32 1x4096x4096":[50.82],
"products: float32 as TF32 16x8192x8192":[187.51],
"products: float32 as TF32 128x4096x14336":[184.59],
"products: float32 as TF32 512x4096x4096":[171.05],
"products: float32 as TF32 2048x2048x2048":[193.84],
"products: float32 as TF32 4096x4096x4096":[1125.6],
"products: float32 as TF32 4096x14336x4096":[3955.2],
"products: float32 as TF32 8192x8192x8192":[8210.9],
"products: float32 as TF32 1000x1000x1000":[32.847],
"attention: forward: batch 1, 32 heads, 32 of keys, 1024 tokens, width 128":[101.5],
"attention: backward: batch 1, 32 heads, 32 of keys, 1024 tokens, width 128":[272.77],
"attention: forward: batch 1, 32 heads, 8 of keys, 4096 tokens, width 128":[811.38],
"attention: backward: batch 1, 32 heads, 8 of keys, 4096 tokens, width 128":[2238.6],
"attention: forward: batch 4, 16 heads, 16 of keys, 2048 tokens, width 64":[246.7],
"attention: backward: batch 4, 16 heads, 16 of keys, 2048 tokens, width 64":[674.87],
"kernels: kernel add":[5.067],
"kernels: kernel softmax":[5.067],
"kernels: kernel norm":[5.067],
"kernels: kernel product":[11.834],
"collectives: all_reduce of 2 ranks":{"1 GiB":[5020.3,4356.8,5784.9],"1 KiB":[11.115,8.9309,13.833],"1 MiB":[23.173,17.887,30.021],"16 KiB":[11.291,9.0959,14.016],"16 MiB":[103.62,86.411,124.27],"256 KiB":[14.12,11.212,17.783],"256 MiB":[1300.5,1126.6,1501.4],"4 KiB":[11.15,8.9639,13.869],"4 MiB":[43.794,35.93,53.379],"64 KiB":[11.857,9.3265,15.074],"64 MiB":[343.26,285,413.43]},
"collectives: all_gather of 2 ranks":{"1 GiB":[2864.8,2446.5,3354.7],"1 KiB":[9.785,7.8994,12.121],"1 MiB":[17.625,13.404,23.174],"16 KiB":[9.9,8.0066,12.241],"16 MiB":[65.839,54.826,79.064],"256 KiB":[11.739,9.2919,14.831],"256 MiB":[748.48,639.23,876.39],"4 KiB":[9.808,7.921,12.145],"4 MiB":[31.723,26.307,38.254],"64 KiB":[10.267,8.088,13.033],"64 MiB":[202.62,166.88,246.01]},
"collectives: reduce_scatter of 2 ranks":{"1 GiB":[3165.4,2746.9,3647.6],"1 KiB":[9.536,7.8235,11.623],"1 MiB":[17.85,14.025,22.719],"16 KiB":[9.658,7.9376,11.751],"16 MiB":[70.319,58.898,83.955],"256 KiB":[11.608,9.3345,14.435],"256 MiB":[821.71,711.98,948.35],"4 KiB":[9.56,7.8461,11.648],"4 MiB":[32.766,27.255,39.391],"64 KiB":[10.048,8.0263,12.579],"64 MiB":[220.85,183.62,265.62]},
"collectives: broadcast of 2 ranks":{"1 GiB":[5481.7,4527.9,6636.3],"1 KiB":[11.571,8.784,15.242],"1 MiB":[25.355,18.359,35.016],"16 KiB":[11.773,8.9723,15.448],"16 MiB":[110.35,89.961,135.37],"256 KiB":[15.007,11.407,19.743],"256 MiB":[1394.7,1162.3,1673.5],"4 KiB":[11.611,8.8215,15.283],"4 MiB":[46.152,37.165,57.312],"64 KiB":[12.419,9.3227,16.544],"64 MiB":[367.47,296.49,455.43]},
"collectives: alltoall of 2 ranks":{"1 GiB":[2930.8,2534.6,3388.8],"1 KiB":[10.258,7.1244,14.77],"1 MiB":[20.692,14.763,29.001],"16 KiB":[11.054,7.8299,15.606],"16 MiB":[83.95,63.037,111.8],"256 KiB":[14.697,10.496,20.58],"256 MiB":[805.15,686.45,944.38],"4 KiB":[10.518,7.3591,15.033],"4 MiB":[36.58,26.428,50.632],"64 KiB":[12.187,8.5997,17.271],"64 MiB":[241.39,190.98,305.1]},
"collectives: sendrecv of 2 ranks":{"1 GiB":[5182.5,4329.5,6203.6],"1 KiB":[9.766,6.6914,14.253],"1 MiB":[19.439,13.973,27.043],"16 KiB":[10.273,7.1337,14.794],"16 MiB":[111.64,87.159,143],"256 KiB":[13.221,9.3021,18.791],"256 MiB":[1421.8,1186.6,1703.6],"4 KiB":[9.925,6.8326,14.417],"4 MiB":[39.717,29.79,52.951],"64 KiB":[11.093,7.6651,16.054],"64 MiB":[381.28,304.37,477.62]},
"pairs: 8 B between 2 of 2 GPUs":[9.63],
"pairs: 64 MiB between 2 of 2 GPUs":[381.28],
"collectives: all_reduce of 4 ranks":{"1 GiB":[6823.4,5950.7,7824],"1 KiB":[15.224,11.937,19.417],"1 MiB":[33.141,27.365,40.136],"16 KiB":[15.487,12.182,19.689],"16 MiB":[147.51,121.61,178.93],"256 KiB":[19.69,15.593,24.863],"256 MiB":[1799.1,1564.3,2069.2],"4 KiB":[15.276,11.985,19.47],"4 MiB":[64.945,50.258,83.924],"64 KiB":[16.327,12.605,21.148],"64 MiB":[478.08,397.64,574.81]},
"collectives: all_gather of 4 ranks":{"1 GiB":[3972.8,3461.1,4560.1],"1 KiB":[11.939,9.651,14.769],"1 MiB":[21.991,17.116,28.254],"16 KiB":[12.086,9.7882,14.923],"16 MiB":[91.576,75.791,110.65],"256 KiB":[14.445,11.49,18.16],"256 MiB":[1043.7,906.34,1201.8],"4 KiB":[11.968,9.6782,14.8],"4 MiB":[43.987,34.781,55.629],"64 KiB":[12.558,9.9086,15.916],"64 MiB":[282.25,234.79,339.3]},
"collectives: reduce_scatter of 4 ranks":{"1 GiB":[4058.7,3392.2,4856],"1 KiB":[11.575,9.4107,14.237],"1 MiB":[20.866,15.776,27.599],"16 KiB":[11.711,9.5369,14.381],"16 MiB":[92.384,75.408,113.18],"256 KiB":[13.891,11.026,17.5],"256 MiB":[1056,887.47,1256.5],"4 KiB":[11.602,9.4359,14.265],"4 MiB":[44.219,34.784,56.213],"64 KiB":[12.147,9.6216,15.335],"64 MiB":[285.36,232.06,350.9]},
"collectives: broadcast of 4 ranks":{"1 GiB":[5305.9,4391.6,6410.5],"1 KiB":[13.478,10.237,17.745],"1 MiB":[25.423,20.589,31.391],"16 KiB":[13.653,10.4,17.923],"16 MiB":[108.68,88.022,134.19],"256 KiB":[16.456,12.659,21.392],"256 MiB":[1354.4,1132.2,1620.1],"4 KiB":[13.513,10.27,17.781],"4 MiB":[44.165,34.047,57.291],"64 KiB":[14.214,10.654,18.964],"64 MiB":[359.99,291.27,444.91]},
"collectives: alltoall of 4 ranks":{"1 GiB":[4183.7,3643.5,4804],"1 KiB":[11.199,7.9628,15.751],"1 MiB":[23.371,16.872,32.373],"16 KiB":[12.064,8.7246,16.681],"16 MiB":[106.37,81.9,138.14],"256 KiB":[16.197,11.713,22.398],"256 MiB":[1123.5,970.1,1301.1],"4 KiB":[11.48,8.2153,16.042],"4 MiB":[43.427,31.99,58.954],"64 KiB":[13.323,9.5582,18.571],"64 MiB":[323.87,261.2,401.58]},
"collectives: sendrecv of 4 ranks":{"1 GiB":[5003.1,4189.7,5974.5],"1 KiB":[9.798,6.6786,14.374],"1 MiB":[24.478,18.293,32.755],"16 KiB":[10.385,7.192,14.996],"16 MiB":[190.98,152.88,238.59],"256 KiB":[14.518,10.398,20.271],"256 MiB":[1364.1,1142.5,1628.7],"4 KiB":[9.974,6.8347,14.555],"4 MiB":[59.647,46.765,76.077],"64 KiB":[11.445,7.9338,16.51],"64 MiB":[697.97,562.13,866.65]},
"pairs: 8 B between 2 of 4 GPUs":[9.655],
"pairs: 64 MiB between 2 of 4 GPUs":[697.97],
"collectives: all_reduce of 8 ranks":{"1 GiB":[8598.2,7555.4,9785],"1 KiB":[24.474,18.225,32.866],"1 MiB":[45.377,36.415,56.544],"16 KiB":[24.781,18.51,33.176],"16 MiB":[196.12,160.9,239.05],"256 KiB":[29.685,22.489,39.183],"256 MiB":[2218.7,1954.6,2518.6],"4 KiB":[24.535,18.281,32.928],"4 MiB":[84.17,66.671,106.26],"64 KiB":[25.761,18.974,34.977],"64 MiB":[600.89,503.85,716.63]},
"collectives: all_gather of 8 ranks":{"1 GiB":[4294.4,3765.9,4897],"1 KiB":[16.538,12.92,21.169],"1 MiB":[26.989,21.837,33.357],"16 KiB":[16.691,13.063,21.327],"16 MiB":[109.8,89.942,134.05],"256 KiB":[19.143,14.906,24.584],"256 MiB":[1135.6,997.16,1293.3],"4 KiB":[16.568,12.948,21.2],"4 MiB":[57.056,43.54,74.769],"64 KiB":[17.181,13.157,22.436],"64 MiB":[321.1,268.35,384.23]},
"collectives: reduce_scatter of 8 ranks":{"1 GiB":[4293.7,3767.7,4893.2],"1 KiB":[15.96,12.518,20.349],"1 MiB":[26.411,21.43,32.55],"16 KiB":[16.113,12.66,20.507],"16 MiB":[114.24,92.73,140.74],"256 KiB":[18.565,14.507,23.757],"256 MiB":[1135.9,996.84,1294.4],"4 KiB":[15.99,12.546,20.38],"4 MiB":[57.797,49.286,67.778],"64 KiB":[16.603,12.76,21.604],"64 MiB":[324.68,271.23,388.67]},
"collectives: broadcast of 8 ranks":{"1 GiB":[5123.4,4272.2,6144.2],"1 KiB":[17.544,13.047,23.591],"1 MiB":[29.488,23.41,37.145],"16 KiB":[17.719,13.21,23.767],"16 MiB":[109.68,86.771,138.63],"256 KiB":[20.521,15.428,27.296],"256 MiB":[1327.7,1118,1576.8],"4 KiB":[17.579,13.079,23.627],"4 MiB":[42.059,35.66,49.606],"64 KiB":[18.279,13.417,24.902],"64 MiB":[359.25,291.85,442.22]},
"collectives: alltoall of 8 ranks":{"1 GiB":[4491.5,3918.4,5148.5],"1 KiB":[11.862,8.7644,16.054],"1 MiB":[21.387,15.746,29.049],"16 KiB":[12.439,9.2572,16.714],"16 MiB":[100.92,79.828,127.59],"256 KiB":[15.486,11.377,21.078],"256 MiB":[1175.9,1022.4,1352.4],"4 KiB":[12.046,8.9244,16.26],"4 MiB":[39.493,29.9,52.163],"64 KiB":[13.323,9.7486,18.208],"64 MiB":[324.96,266.16,396.75]},
"collectives: sendrecv of 8 ranks":{"1 GiB":[4891.6,4286.4,5582.2],"1 KiB":[8.701,5.9899,12.639],"1 MiB":[34.615,27.253,43.966],"16 KiB":[9.577,6.7555,13.577],"16 MiB":[351.78,293.19,422.06],"256 KiB":[16.576,12.397,22.164],"256 MiB":[1332.1,1168,1519.4],"4 KiB":[8.954,6.2135,12.903],"4 MiB":[100.54,82.797,122.08],"64 KiB":[11.288,8.0484,15.832],"64 MiB":[1332.1,1112.5,1595.1]},
"pairs: 8 B between 2 of 8 GPUs":[8.505],
"pairs: 64 MiB between 2 of 8 GPUs":[1332.1]}}""",
    'hgx_h100': r"""{"device":"H100 SXM",
"models":["H100"],
"num_sms":132,
"times":{
"launches: add_ of one element":{"back to back":[2.009],"host":[2],"in a CUDA graph":[1.74]},
"launches: add_ of one element and synchronize":[3.742],
"copies: pinned host to device":{"1 MiB":[21.855],"16 MiB":[349.56],"256 MiB":[5593.1],"4 KiB":[5],"64 KiB":[5]},
"copies: device to pinned host":{"1 MiB":[21.855],"16 MiB":[349.56],"256 MiB":[5593.1],"4 KiB":[5],"64 KiB":[5]},
"copies: on the device":{"1 MiB":[3.196],"16 MiB":[15.67],"256 MiB":[189.24],"4 KiB":[2.009],"64 KiB":[2.009]},
"products: bfloat16 1x4096x4096":[17.337,16.262,18.483],
"products: bfloat16 16x8192x8192":[53.068,49.778,56.575],
"products: bfloat16 128x4096x14336":[52.845,47.483,58.813],
"products: bfloat16 512x4096x4096":[26.384,23.707,29.364],
"products: bfloat16 2048x2048x2048":[27.115,25.08,29.315],
"products: bfloat16 4096x4096x4096":[181.82,168.18,196.57],
"products: bfloat16 4096x14336x4096":[622.51,575.8,673.01],
"products: bfloat16 8192x8192x8192":[1518.7,1404.7,1641.9],
"products: bfloat16 1000x1000x1000":[8.216,7.3823,9.1439],
"products: float16 1x4096x4096":[17.337,16.262,18.483],
"products: float16 16x8192x8192":[53.068,49.778,56.575],
"products: float16 128x4096x14336":[52.845,47.483,58.813],
"products: float16 512x4096x4096":[26.384,23.707,29.364],
"products: float16 2048x2048x2048":[27.115,25.08,29.315],
"products: float16 4096x4096x4096":[181.82,168.18,196.57],
"products: float16 4096x14336x4096":[622.51,575.8,673.01],
"products: float16 8192x8192x8192":[1518.7,1404.7,1641.9],
"products: float16 1000x1000x1000":[8.216,7.3823,9.1439],
"products: float32 1x4096x4096":[42.178],
"products: float32 16x8192x8192":[168.71],
"products: float32 128x4096x14336":[295.25],
"products: float32 512x4096x4096":[337.43],
"products: float32 2048x2048x2048":[337.41],
"products: float32 4096x4096x4096":[2699.2],
"products: float32 4096x14336x4096":[9447.1],
"products: float32 8192x8192x8192":[21593],
"products: float32 1000x1000x1000":[39.282],
"products: float32 as TF32 1x4096x4096":[29.656],
"products: float32 as TF32 16x8192x8192":[99.893],
"products: float32 as TF32 128x4096x14336":[95.762],
"products: float32 as TF32 512x4096x4096":[48.44],
"products: float32 as TF32 2048x2048x2048":[46.819],
"products: float32 as TF32 4096x4096x4096":[355.19],
"products: float32 as TF32 4096x14336x4096":[1299.1],
"products: float32 as TF32 8192x8192x8192":[3037.6],
"products: float32 as TF32 1000x1000x1000":[10.979],
"attention: forward: batch 1, 32 heads, 32 of keys, 1024 tokens, width 128":[26.036],
"attention: backward: batch 1, 32 heads, 32 of keys, 1024 tokens, width 128":[70.271],
"attention: forward: batch 1, 32 heads, 8 of keys, 4096 tokens, width 128":[260.64],
"attention: backward: batch 1, 32 heads, 8 of keys, 4096 tokens, width 128":[769.28],
"attention: forward: batch 4, 16 heads, 16 of keys, 2048 tokens, width 64":[112.11],
"attention: backward: batch 4, 16 heads, 16 of keys, 2048 tokens, width 64":[265.94],
"kernels: kernel add":[5.057],
"kernels: kernel softmax":[5.057],
"kernels: kernel norm":[5.057],
"kernels: kernel product":[10.158],
"collectives: all_reduce of 2 ranks":{"1 GiB":[3195.3,2792.4,3656.3],"1 KiB":[8.366,7.2496,9.6544],"1 MiB":[15.795,13.319,18.731],"16 KiB":[8.475,7.3488,9.7737],"16 MiB":[69.873,58.781,83.059],"256 KiB":[10.218,8.5466,12.216],"256 MiB":[840.86,733.47,963.97],"4 KiB":[8.388,7.2696,9.6785],"4 MiB":[31.34,26.316,37.324],"64 KiB":[8.823,7.3458,10.597],"64 MiB":[224.32,187.32,268.63]},
"collectives: all_gather of 2 ranks":{"1 GiB":[1824.8,1568,2123.6],"1 KiB":[7.753,6.7936,8.848],"1 MiB":[11.691,9.3423,14.63],"16 KiB":[7.811,6.846,8.9121],"16 MiB":[46.07,38.749,54.775],"256 KiB":[8.735,7.2909,10.465],"256 MiB":[485.83,417.55,565.29],"4 KiB":[7.765,6.8044,8.8612],"4 MiB":[23.515,16.949,32.624],"64 KiB":[7.996,6.7025,9.5392],"64 MiB":[134.28,111.28,162.03]},
"collectives: reduce_scatter of 2 ranks":{"1 GiB":[2014.4,1762.7,2302.1],"1 KiB":[7.678,6.7456,8.7393],"1 MiB":[11.853,9.6856,14.505],"16 KiB":[7.74,6.8017,8.8077],"16 MiB":[49.02,41.454,57.967],"256 KiB":[8.719,7.3104,10.399],"256 MiB":[533.07,465.96,609.83],"4 KiB":[7.691,6.7574,8.7536],"4 MiB":[24.39,18.742,31.74],"64 KiB":[7.935,6.6656,9.4462],"64 MiB":[146.08,122.33,174.44]},
"collectives: broadcast of 2 ranks":{"1 GiB":[3476.9,2894.5,4176.6],"1 KiB":[8.451,7.2234,9.8872],"1 MiB":[15.88,13.345,18.896],"16 KiB":[8.56,7.3234,10.005],"16 MiB":[73.939,60.869,89.815],"256 KiB":[10.303,8.5524,12.412],"256 MiB":[901.22,754.84,1076],"4 KiB":[8.473,7.2436,9.9111],"4 MiB":[32.591,27.021,39.309],"64 KiB":[8.908,7.3438,10.805],"64 MiB":[239.65,194.35,295.49]},
"collectives: alltoall of 2 ranks":{"1 GiB":[1904,1656.9,2188.1],"1 KiB":[7.039,5.9311,8.3538],"1 MiB":[14.242,10.632,19.077],"16 KiB":[7.598,6.398,9.0231],"16 MiB":[56.479,42.594,74.891],"256 KiB":[10.132,7.9105,12.977],"256 MiB":[527.06,450.95,616.02],"4 KiB":[7.222,6.0908,8.5632],"4 MiB":[24.973,18.359,33.97],"64 KiB":[8.391,6.7465,10.436],"64 MiB":[159.98,126.73,201.96]},
"collectives: sendrecv of 2 ranks":{"1 GiB":[3347.2,2807.3,3991],"1 KiB":[6.884,5.7957,8.1766],"1 MiB":[14.347,10.758,19.134],"16 KiB":[7.275,6.1059,8.668],"16 MiB":[85.461,66.936,109.11],"256 KiB":[9.55,7.4173,12.296],"256 MiB":[1095.9,917.95,1308.3],"4 KiB":[7.007,5.8989,8.3233],"4 MiB":[29.989,22.747,39.537],"64 KiB":[7.908,6.3304,9.8788],"64 MiB":[293.48,234.89,366.67]},
"pairs: 8 B between 2 of 2 GPUs":[6.779],
"pairs: 64 MiB between 2 of 2 GPUs":[293.48],
"collectives: all_reduce of 4 ranks":{"1 GiB":[4139.9,3611.6,4745.4],"1 KiB":[11.384,9.3908,13.8],"1 MiB":[22.528,18.782,27.022],"16 KiB":[11.547,9.5421,13.973],"16 MiB":[94.762,78.561,114.3],"256 KiB":[14.162,11.527,17.399],"256 MiB":[1096.5,955.64,1258.1],"4 KiB":[11.417,9.4214,13.835],"4 MiB":[44.512,35.269,56.178],"64 KiB":[12.07,9.6909,15.033],"64 MiB":[296.07,246.61,355.45]},
"collectives: all_gather of 4 ranks":{"1 GiB":[2410.1,2102.5,2762.8],"1 KiB":[9.46,8.0594,11.104],"1 MiB":[15.159,12.177,18.871],"16 KiB":[9.544,8.137,11.194],"16 MiB":[60.806,50.716,72.903],"256 KiB":[10.881,8.9519,13.226],"256 MiB":[640.39,557.31,735.84],"4 KiB":[9.477,8.0751,11.122],"4 MiB":[31.843,25.835,39.248],"64 KiB":[9.811,8.0603,11.942],"64 MiB":[176.97,147.65,212.12]},
"collectives: reduce_scatter of 4 ranks":{"1 GiB":[2460.2,2059.7,2938.5],"1 KiB":[9.281,7.9311,10.861],"1 MiB":[14.853,12.438,17.737],"16 KiB":[9.362,8.0055,10.948],"16 MiB":[61.336,50.522,74.465],"256 KiB":[10.67,8.8331,12.889],"256 MiB":[647.92,545.42,769.69],"4 KiB":[9.297,7.9458,10.878],"4 MiB":[31.585,27.15,36.744],"64 KiB":[9.624,7.9257,11.686],"64 MiB":[178.91,145.98,219.25]},
"collectives: broadcast of 4 ranks":{"1 GiB":[3211,2664.4,3869.8],"1 KiB":[10.229,8.4025,12.453],"1 MiB":[17.659,14.626,21.321],"16 KiB":[10.338,8.5037,12.568],"16 MiB":[70.89,57.91,86.779],"256 KiB":[12.081,9.7664,14.944],"256 MiB":[829.28,694.26,990.54],"4 KiB":[10.251,8.4229,12.476],"4 MiB":[31.438,24.925,39.652],"64 KiB":[10.687,8.5391,13.375],"64 MiB":[224.07,181.83,276.12]},
"collectives: alltoall of 4 ranks":{"1 GiB":[2553.8,2228.2,2927],"1 KiB":[8.248,6.6534,10.225],"1 MiB":[15.84,11.974,20.954],"16 KiB":[8.793,7.1315,10.842],"16 MiB":[66.92,52.047,86.044],"256 KiB":[11.379,8.8311,14.662],"256 MiB":[688.35,595.84,795.21],"4 KiB":[8.425,6.8132,10.418],"4 MiB":[28.236,21.319,37.398],"64 KiB":[9.583,7.5322,12.192],"64 MiB":[200.18,162.05,247.27]},
"collectives: sendrecv of 4 ranks":{"1 GiB":[3058.3,2561.9,3650.9],"1 KiB":[7.508,5.973,9.4374],"1 MiB":[18.489,14.156,24.149],"16 KiB":[7.963,6.3596,9.9706],"16 MiB":[140.7,112.52,175.94],"256 KiB":[11.085,8.5271,14.41],"256 MiB":[997.77,835.7,1191.3],"4 KiB":[7.645,6.0933,9.5919],"4 MiB":[44.409,34.886,56.531],"64 KiB":[8.772,6.801,11.314],"64 MiB":[511.39,411.77,635.12]},
"pairs: 8 B between 2 of 4 GPUs":[7.396],
"pairs: 64 MiB between 2 of 4 GPUs":[511.39],
"collectives: all_reduce of 8 ranks":{"1 GiB":[4160.7,3656.4,4734.5],"1 KiB":[19.098,14.777,24.682],"1 MiB":[32.099,25.929,39.738],"16 KiB":[19.288,14.955,24.877],"16 MiB":[123.55,93.093,163.98],"256 KiB":[22.338,17.298,28.847],"256 MiB":[1141,986.07,1320.2],"4 KiB":[19.136,14.813,24.721],"4 MiB":[58.006,41.224,81.62],"64 KiB":[19.898,15.119,26.187],"64 MiB":[344.08,274.67,431.04]},
"collectives: all_gather of 8 ranks":{"1 GiB":[2701.7,2372.6,3076.5],"1 KiB":[13.673,11.056,16.909],"1 MiB":[20.174,16.451,24.74],"16 KiB":[13.769,11.146,17.01],"16 MiB":[75.152,61.759,91.449],"256 KiB":[15.294,12.163,19.232],"256 MiB":[724.71,636.19,825.54],"4 KiB":[13.692,11.074,16.929],"4 MiB":[39.695,33.819,46.591],"64 KiB":[14.074,11.082,17.874],"64 MiB":[206.55,172.93,246.7]},
"collectives: reduce_scatter of 8 ranks":{"1 GiB":[2707.6,2377.1,3084],"1 KiB":[13.252,10.759,16.322],"1 MiB":[19.752,16.149,24.159],"16 KiB":[13.347,10.848,16.422],"16 MiB":[78.118,63.622,95.916],"256 KiB":[14.872,11.867,18.639],"256 MiB":[727.92,637.41,831.28],"4 KiB":[13.271,10.777,16.342],"4 MiB":[39.274,33.497,46.048],"64 KiB":[13.652,10.787,17.277],"64 MiB":[208.98,174.83,249.8]},
"collectives: broadcast of 8 ranks":{"1 GiB":[3221.4,2705.3,3835.8],"1 KiB":[14.474,11.166,18.762],"1 MiB":[21.904,17.493,27.427],"16 KiB":[14.583,11.268,18.874],"16 MiB":[74.783,59.352,94.226],"256 KiB":[16.326,12.543,21.25],"256 MiB":[832.3,701.59,987.38],"4 KiB":[14.496,11.186,18.785],"4 MiB":[29.354,24.857,34.665],"64 KiB":[14.932,11.296,19.738],"64 MiB":[230.5,187.62,283.18]},
"collectives: alltoall of 8 ranks":{"1 GiB":[2852.7,2486.8,3272.5],"1 KiB":[10.638,7.9283,14.274],"1 MiB":[18.341,13.426,25.056],"16 KiB":[11.17,8.3874,14.876],"16 MiB":[73.281,56.349,95.301],"256 KiB":[13.753,10.149,18.637],"256 MiB":[763.34,659.32,883.77],"4 KiB":[10.81,8.0797,14.463],"4 MiB":[31.432,23.259,42.478],"64 KiB":[11.949,8.8108,16.205],"64 MiB":[219.96,177.22,273]},
"collectives: sendrecv of 8 ranks":{"1 GiB":[3089.9,2699.2,3537.1],"1 KiB":[8.491,5.9992,12.018],"1 MiB":[30.651,23.48,40.012],"16 KiB":[9.422,6.7958,13.063],"16 MiB":[275.5,227.67,333.39],"256 KiB":[15.745,11.628,21.32],"256 MiB":[1016.7,887.27,1165.1],"4 KiB":[8.773,6.2453,12.324],"4 MiB":[82.666,66.687,102.47],"64 KiB":[11.067,7.9684,15.37],"64 MiB":[1016.7,846.2,1221.6]},
"pairs: 8 B between 2 of 8 GPUs":[8.26],
"pairs: 64 MiB between 2 of 8 GPUs":[1016.7]}}""",
    'hgx_h200': r"""{"device":"H200 SXM",
"models":["H200"],
"num_sms":132,
"times":{
"launches: add_ of one element":{"back to back":[2.009],"host":[2],"in a CUDA graph":[1.74]},
"launches: add_ of one element and synchronize":[3.742],
"copies: pinned host to device":{"1 MiB":[19.075],"16 MiB":[305.07],"256 MiB":[4881.1],"4 KiB":[5],"64 KiB":[5]},
"copies: device to pinned host":{"1 MiB":[19.075],"16 MiB":[305.07],"256 MiB":[4881.1],"4 KiB":[5],"64 KiB":[5]},
"copies: on the device":{"1 MiB":[2.749],"16 MiB":[12.089],"256 MiB":[131.93],"4 KiB":[2.009],"64 KiB":[2.009]},
"products: bfloat16 1x4096x4096":[13.908,11.947,16.191],
"products: bfloat16 16x8192x8192":[38.404,32.989,44.708],
"products: bfloat16 128x4096x14336":[40.496,34.647,47.333],
"products: bfloat16 512x4096x4096":[25.66,21.954,29.992],
"products: bfloat16 2048x2048x2048":[27,22.802,31.971],
"products: bfloat16 4096x4096x4096":[181.76,153.5,215.23],
"products: bfloat16 4096x14336x4096":[622.44,525.66,737.05],
"products: bfloat16 8192x8192x8192":[1518.6,1282.5,1798.3],
"products: bfloat16 1000x1000x1000":[8.057,6.8932,9.4172],
"products: float16 1x4096x4096":[13.908,11.947,16.191],
"products: float16 16x8192x8192":[38.404,32.989,44.708],
"products: float16 128x4096x14336":[40.496,34.647,47.333],
"products: float16 512x4096x4096":[25.66,21.954,29.992],
"products: float16 2048x2048x2048":[27,22.802,31.971],
"products: float16 4096x4096x4096":[181.76,153.5,215.23],
"products: float16 4096x14336x4096":[622.44,525.66,737.05],
"products: float16 8192x8192x8192":[1518.6,1282.5,1798.3],
"products: float16 1000x1000x1000":[8.057,6.8932,9.4172],
"products: float32 1x4096x4096":[42.178],
"products: float32 16x8192x8192":[168.71],
"products: float32 128x4096x14336":[295.25],
"products: float32 512x4096x4096":[337.43],
"products: float32 2048x2048x2048":[337.41],
"products: float32 4096x4096x4096":[2699.2],
"products: float32 4096x14336x4096":[9447.1],
"products: float32 8192x8192x8192":[21593],
"products: float32 1000x1000x1000":[39.282],
"products: float32 as TF32 1x4096x4096":[22.788],
"products: float32 as TF32 16x8192x8192":[70.933],
"products: float32 as TF32 128x4096x14336":[71.43],
"products: float32 as TF32 512x4096x4096":[47.221],
"products: float32 as TF32 2048x2048x2048":[46.714],
"products: float32 as TF32 4096x4096x4096":[355.14],
"products: float32 as TF32 4096x14336x4096":[1299.1],
"products: float32 as TF32 8192x8192x8192":[3037.6],
"products: float32 as TF32 1000x1000x1000":[10.815],
"attention: forward: batch 1, 32 heads, 32 of keys, 1024 tokens, width 128":[26.036],
"attention: backward: batch 1, 32 heads, 32 of keys, 1024 tokens, width 128":[70.271],
"attention: forward: batch 1, 32 heads, 8 of keys, 4096 tokens, width 128":[260.64],
"attention: backward: batch 1, 32 heads, 8 of keys, 4096 tokens, width 128":[769.28],
"attention: forward: batch 4, 16 heads, 16 of keys, 2048 tokens, width 64":[112.11],
"attention: backward: batch 4, 16 heads, 16 of keys, 2048 tokens, width 64":[265.94],
"kernels: kernel add":[5.057],
"kernels: kernel softmax":[5.057],
"kernels: kernel norm":[5.057],
"kernels: kernel product":[10.158],
"collectives: all_reduce of 2 ranks":{"1 GiB":[3195.3,2792.4,3656.3],"1 KiB":[8.366,7.2496,9.6544],"1 MiB":[15.795,13.319,18.731],"16 KiB":[8.475,7.3488,9.7737],"16 MiB":[69.873,58.781,83.059],"256 KiB":[10.218,8.5466,12.216],"256 MiB":[840.86,733.47,963.97],"4 KiB":[8.388,7.2696,9.6785],"4 MiB":[31.34,26.316,37.324],"64 KiB":[8.823,7.3458,10.597],"64 MiB":[224.32,187.32,268.63]},
"collectives: all_gather of 2 ranks":{"1 GiB":[1824.8,1568,2123.6],"1 KiB":[7.753,6.7936,8.848],"1 MiB":[11.691,9.3423,14.63],"16 KiB":[7.811,6.846,8.9121],"16 MiB":[46.07,38.749,54.775],"256 KiB":[8.735,7.2909,10.465],"256 MiB":[485.83,417.55,565.29],"4 KiB":[7.765,6.8044,8.8612],"4 MiB":[23.515,16.949,32.624],"64 KiB":[7.996,6.7025,9.5392],"64 MiB":[134.28,111.28,162.03]},
"collectives: reduce_scatter of 2 ranks":{"1 GiB":[2014.4,1762.7,2302.1],"1 KiB":[7.678,6.7456,8.7393],"1 MiB":[11.853,9.6856,14.505],"16 KiB":[7.74,6.8017,8.8077],"16 MiB":[49.02,41.454,57.967],"256 KiB":[8.719,7.3104,10.399],"256 MiB":[533.07,465.96,609.83],"4 KiB":[7.691,6.7574,8.7536],"4 MiB":[24.39,18.742,31.74],"64 KiB":[7.935,6.6656,9.4462],"64 MiB":[146.08,122.33,174.44]},
"collectives: broadcast of 2 ranks":{"1 GiB":[3476.9,2894.5,4176.6],"1 KiB":[8.451,7.2234,9.8872],"1 MiB":[15.88,13.345,18.896],"16 KiB":[8.56,7.3234,10.005],"16 MiB":[73.939,60.869,89.815],"256 KiB":[10.303,8.5524,12.412],"256 MiB":[901.22,754.84,1076],"4 KiB":[8.473,7.2436,9.9111],"4 MiB":[32.591,27.021,39.309],"64 KiB":[8.908,7.3438,10.805],"64 MiB":[239.65,194.35,295.49]},
"collectives: alltoall of 2 ranks":{"1 GiB":[1904,1656.9,2188.1],"1 KiB":[7.039,5.9311,8.3538],"1 MiB":[14.242,10.632,19.077],"16 KiB":[7.598,6.398,9.0231],"16 MiB":[56.479,42.594,74.891],"256 KiB":[10.132,7.9105,12.977],"256 MiB":[527.06,450.95,616.02],"4 KiB":[7.222,6.0908,8.5632],"4 MiB":[24.973,18.359,33.97],"64 KiB":[8.391,6.7465,10.436],"64 MiB":[159.98,126.73,201.96]},
"collectives: sendrecv of 2 ranks":{"1 GiB":[3347.2,2807.3,3991],"1 KiB":[6.884,5.7957,8.1766],"1 MiB":[14.347,10.758,19.134],"16 KiB":[7.275,6.1059,8.668],"16 MiB":[85.461,66.936,109.11],"256 KiB":[9.55,7.4173,12.296],"256 MiB":[1095.9,917.95,1308.3],"4 KiB":[7.007,5.8989,8.3233],"4 MiB":[29.989,22.747,39.537],"64 KiB":[7.908,6.3304,9.8788],"64 MiB":[293.48,234.89,366.67]},
"pairs: 8 B between 2 of 2 GPUs":[6.779],
"pairs: 64 MiB between 2 of 2 GPUs":[293.48],
"collectives: all_reduce of 4 ranks":{"1 GiB":[4139.9,3611.6,4745.4],"1 KiB":[11.384,9.3908,13.8],"1 MiB":[22.528,18.782,27.022],"16 KiB":[11.547,9.5421,13.973],"16 MiB":[94.762,78.561,114.3],"256 KiB":[14.162,11.527,17.399],"256 MiB":[1096.5,955.64,1258.1],"4 KiB":[11.417,9.4214,13.835],"4 MiB":[44.512,35.269,56.178],"64 KiB":[12.07,9.6909,15.033],"64 MiB":[296.07,246.61,355.45]},
"collectives: all_gather of 4 ranks":{"1 GiB":[2410.1,2102.5,2762.8],"1 KiB":[9.46,8.0594,11.104],"1 MiB":[15.159,12.177,18.871],"16 KiB":[9.544,8.137,11.194],"16 MiB":[60.806,50.716,72.903],"256 KiB":[10.881,8.9519,13.226],"256 MiB":[640.39,557.31,735.84],"4 KiB":[9.477,8.0751,11.122],"4 MiB":[31.843,25.835,39.248],"64 KiB":[9.811,8.0603,11.942],"64 MiB":[176.97,147.65,212.12]},
"collectives: reduce_scatter of 4 ranks":{"1 GiB":[2460.2,2059.7,2938.5],"1 KiB":[9.281,7.9311,10.861],"1 MiB":[14.853,12.438,17.737],"16 KiB":[9.362,8.0055,10.948],"16 MiB":[61.336,50.522,74.465],"256 KiB":[10.67,8.8331,12.889],"256 MiB":[647.92,545.42,769.69],"4 KiB":[9.297,7.9458,10.878],"4 MiB":[31.585,27.15,36.744],"64 KiB":[9.624,7.9257,11.686],"64 MiB":[178.91,145.98,219.25]},
"collectives: broadcast of 4 ranks":{"1 GiB":[3211,2664.4,3869.8],"1 KiB":[10.229,8.4025,12.453],"1 MiB":[17.659,14.626,21.321],"16 KiB":[10.338,8.5037,12.568],"16 MiB":[70.89,57.91,86.779],"256 KiB":[12.081,9.7664,14.944],"256 MiB":[829.28,694.26,990.54],"4 KiB":[10.251,8.4229,12.476],"4 MiB":[31.438,24.925,39.652],"64 KiB":[10.687,8.5391,13.375],"64 MiB":[224.07,181.83,276.12]},
"collectives: alltoall of 4 ranks":{"1 GiB":[2553.8,2228.2,2927],"1 KiB":[8.248,6.6534,10.225],"1 MiB":[15.84,11.974,20.954],"16 KiB":[8.793,7.1315,10.842],"16 MiB":[66.92,52.047,86.044],"256 KiB":[11.379,8.8311,14.662],"256 MiB":[688.35,595.84,795.21],"4 KiB":[8.425,6.8132,10.418],"4 MiB":[28.236,21.319,37.398],"64 KiB":[9.583,7.5322,12.192],"64 MiB":[200.18,162.05,247.27]},
"collectives: sendrecv of 4 ranks":{"1 GiB":[3058.3,2561.9,3650.9],"1 KiB":[7.508,5.973,9.4374],"1 MiB":[18.489,14.156,24.149],"16 KiB":[7.963,6.3596,9.9706],"16 MiB":[140.7,112.52,175.94],"256 KiB":[11.085,8.5271,14.41],"256 MiB":[997.77,835.7,1191.3],"4 KiB":[7.645,6.0933,9.5919],"4 MiB":[44.409,34.886,56.531],"64 KiB":[8.772,6.801,11.314],"64 MiB":[511.39,411.77,635.12]},
"pairs: 8 B between 2 of 4 GPUs":[7.396],
"pairs: 64 MiB between 2 of 4 GPUs":[511.39],
"collectives: all_reduce of 8 ranks":{"1 GiB":[4160.7,3656.4,4734.5],"1 KiB":[19.098,14.777,24.682],"1 MiB":[32.099,25.929,39.738],"16 KiB":[19.288,14.955,24.877],"16 MiB":[123.55,93.093,163.98],"256 KiB":[22.338,17.298,28.847],"256 MiB":[1141,986.07,1320.2],"4 KiB":[19.136,14.813,24.721],"4 MiB":[58.006,41.224,81.62],"64 KiB":[19.898,15.119,26.187],"64 MiB":[344.08,274.67,431.04]},
"collectives: all_gather of 8 ranks":{"1 GiB":[2701.7,2372.6,3076.5],"1 KiB":[13.673,11.056,16.909],"1 MiB":[20.174,16.451,24.74],"16 KiB":[13.769,11.146,17.01],"16 MiB":[75.152,61.759,91.449],"256 KiB":[15.294,12.163,19.232],"256 MiB":[724.71,636.19,825.54],"4 KiB":[13.692,11.074,16.929],"4 MiB":[39.695,33.819,46.591],"64 KiB":[14.074,11.082,17.874],"64 MiB":[206.55,172.93,246.7]},
"collectives: reduce_scatter of 8 ranks":{"1 GiB":[2707.6,2377.1,3084],"1 KiB":[13.252,10.759,16.322],"1 MiB":[19.752,16.149,24.159],"16 KiB":[13.347,10.848,16.422],"16 MiB":[78.118,63.622,95.916],"256 KiB":[14.872,11.867,18.639],"256 MiB":[727.92,637.41,831.28],"4 KiB":[13.271,10.777,16.342],"4 MiB":[39.274,33.497,46.048],"64 KiB":[13.652,10.787,17.277],"64 MiB":[208.98,174.83,249.8]},
"collectives: broadcast of 8 ranks":{"1 GiB":[3221.4,2705.3,3835.8],"1 KiB":[14.474,11.166,18.762],"1 MiB":[21.904,17.493,27.427],"16 KiB":[14.583,11.268,18.874],"16 MiB":[74.783,59.352,94.226],"256 KiB":[16.326,12.543,21.25],"256 MiB":[832.3,701.59,987.38],"4 KiB":[14.496,11.186,18.785],"4 MiB":[29.354,24.857,34.665],"64 KiB":[14.932,11.296,19.738],"64 MiB":[230.5,187.62,283.18]},
"collectives: alltoall of 8 ranks":{"1 GiB":[2852.7,2486.8,3272.5],"1 KiB":[10.638,7.9283,14.274],"1 MiB":[18.341,13.426,25.056],"16 KiB":[11.17,8.3874,14.876],"16 MiB":[73.281,56.349,95.301],"256 KiB":[13.753,10.149,18.637],"256 MiB":[763.34,659.32,883.77],"4 KiB":[10.81,8.0797,14.463],"4 MiB":[31.432,23.259,42.478],"64 KiB":[11.949,8.8108,16.205],"64 MiB":[219.96,177.22,273]},
"collectives: sendrecv of 8 ranks":{"1 GiB":[3089.9,2699.2,3537.1],"1 KiB":[8.491,5.9992,12.018],"1 MiB":[30.651,23.48,40.012],"16 KiB":[9.422,6.7958,13.063],"16 MiB":[275.5,227.67,333.39],"256 KiB":[15.745,11.628,21.32],"256 MiB":[1016.7,887.27,1165.1],"4 KiB":[8.773,6.2453,12.324],"4 MiB":[82.666,66.687,102.47],"64 KiB":[11.067,7.9684,15.37],"64 MiB":[1016.7,846.2,1221.6]},
"pairs: 8 B between 2 of 8 GPUs":[8.26],
"pairs: 64 MiB between 2 of 8 GPUs":[1016.7]}}""",
    'hgx_b200': r"""{"device":"B200 SXM",
"models":["B200"],
"num_sms":148,
"times":{
"launches: add_ of one element":{"back to back":[2.009],"host":[2],"in a CUDA graph":[1.74]},
"launches: add_ of one element and synchronize":[3.742],
"copies: pinned host to device":{"1 MiB":[21.855],"16 MiB":[349.56],"256 MiB":[5593.1],"4 KiB":[4.86],"64 KiB":[4.86]},
"copies: device to pinned host":{"1 MiB":[21.855],"16 MiB":[349.56],"256 MiB":[5593.1],"4 KiB":[4.86],"64 KiB":[4.86]},
"copies: on the device":{"1 MiB":[2.358],"16 MiB":[8.963],"256 MiB":[81.907],"4 KiB":[2.009],"64 KiB":[2.009]},
"products: bfloat16 1x4096x4096":[12.583,10.83,14.619],
"products: bfloat16 16x8192x8192":[27.086,23.313,31.469],
"products: bfloat16 128x4096x14336":[30.685,27.27,34.528],
"products: bfloat16 512x4096x4096":[16.61,14.761,18.69],
"products: bfloat16 2048x2048x2048":[16.107,14.765,17.571],
"products: bfloat16 4096x4096x4096":[90.773,83.21,99.024],
"products: bfloat16 4096x14336x4096":[314.41,288.21,342.98],
"products: bfloat16 8192x8192x8192":[726.9,666.33,792.97],
"products: bfloat16 1000x1000x1000":[6.373,5.6637,7.1712],
"products: float16 1x4096x4096":[12.583,10.83,14.619],
"products: float16 16x8192x8192":[27.086,23.313,31.469],
"products: float16 128x4096x14336":[30.685,27.27,34.528],
"products: float16 512x4096x4096":[16.61,14.761,18.69],
"products: float16 2048x2048x2048":[16.107,14.765,17.571],
"products: float16 4096x4096x4096":[90.773,83.21,99.024],
"products: float16 4096x14336x4096":[314.41,288.21,342.98],
"products: float16 8192x8192x8192":[726.9,666.33,792.97],
"products: float16 1000x1000x1000":[6.373,5.6637,7.1712],
"products: float32 1x4096x4096":[9.732],
"products: float32 16x8192x8192":[39.061],
"products: float32 128x4096x14336":[200.45],
"products: float32 512x4096x4096":[229.09],
"products: float32 2048x2048x2048":[229.09],
"products: float32 4096x4096x4096":[1832.6],
"products: float32 4096x14336x4096":[6414],
"products: float32 8192x8192x8192":[14660],
"products: float32 1000x1000x1000":[26.67],
"products: float32 as TF32 1x4096x4096":[17.387],
"products: float32 as TF32 16x8192x8192":[47.927],
"products: float32 as TF32 128x4096x14336":[49.896],
"products: float32 as TF32 512x4096x4096":[29.389],
"products: float32 as TF32 2048x2048x2048":[26.603],
"products: float32 as TF32 4096x4096x4096":[185.84],
"products: float32 as TF32 4096x14336x4096":[646.93],
"products: float32 as TF32 8192x8192x8192":[1462.9],
"products: float32 as TF32 1000x1000x1000":[8.101],
"attention: forward: batch 1, 32 heads, 32 of keys, 1024 tokens, width 128":[16.727],
"attention: backward: batch 1, 32 heads, 32 of keys, 1024 tokens, width 128":[42.289],
"attention: forward: batch 1, 32 heads, 8 of keys, 4096 tokens, width 128":[130.89],
"attention: backward: batch 1, 32 heads, 8 of keys, 4096 tokens, width 128":[388.17],
"attention: forward: batch 4, 16 heads, 16 of keys, 2048 tokens, width 64":[58.356],
"attention: backward: batch 4, 16 heads, 16 of keys, 2048 tokens, width 64":[135.14],
"kernels: kernel add":[4.917],
"kernels: kernel softmax":[4.917],
"kernels: kernel norm":[4.917],
"kernels: kernel product":[9.372],
"collectives: all_reduce of 2 ranks":{"1 GiB":[1961.8,1725.2,2231],"1 KiB":[10.113,8.3505,12.248],"1 MiB":[14.579,11.781,18.042],"16 KiB":[10.179,8.412,12.317],"16 MiB":[52.019,43.731,61.878],"256 KiB":[11.226,9.0466,13.93],"256 MiB":[513.99,452.44,583.9],"4 KiB":[10.126,8.3626,12.261],"4 MiB":[27.988,22.008,35.592],"64 KiB":[10.388,8.321,12.968],"64 MiB":[144.66,121.65,172.03]},
"collectives: all_gather of 2 ranks":{"1 GiB":[1122.1,974.75,1291.6],"1 KiB":[9.191,7.5887,11.132],"1 MiB":[12.094,9.6736,15.12],"16 KiB":[9.233,7.6278,11.176],"16 MiB":[36.348,30.658,43.094],"256 KiB":[9.914,7.9641,12.341],"256 MiB":[299.9,261.57,343.86],"4 KiB":[9.199,7.5962,11.14],"4 MiB":[20.814,15.753,27.501],"64 KiB":[9.369,7.4978,11.707],"64 MiB":[89.311,74.899,106.5]},
"collectives: reduce_scatter of 2 ranks":{"1 GiB":[1239.6,1090.1,1409.6],"1 KiB":[8.981,7.5296,10.712],"1 MiB":[12.059,9.8356,14.785],"16 KiB":[9.026,7.5714,10.76],"16 MiB":[38.003,32.143,44.932],"256 KiB":[9.748,7.9327,11.979],"256 MiB":[328.08,288.85,372.65],"4 KiB":[8.99,7.538,10.722],"4 MiB":[21.305,17.018,26.672],"64 KiB":[9.17,7.4327,11.313],"64 MiB":[96.271,81.124,114.25]},
"collectives: broadcast of 2 ranks":{"1 GiB":[2135.9,1794.6,2542],"1 KiB":[10.547,8.2276,13.52],"1 MiB":[15.652,12.035,20.356],"16 KiB":[10.622,8.2976,13.598],"16 MiB":[55.003,45.373,66.676],"256 KiB":[11.819,9.1121,15.33],"256 MiB":[550.69,464.5,652.87],"4 KiB":[10.562,8.2416,13.536],"4 MiB":[30.235,24.441,37.403],"64 KiB":[10.861,8.2923,14.225],"64 MiB":[154.39,126.28,188.76]},
"collectives: alltoall of 2 ranks":{"1 GiB":[1200.4,1042.4,1382.3],"1 KiB":[9.797,7.1875,13.354],"1 MiB":[15.751,11.699,21.206],"16 KiB":[10.291,7.6365,13.868],"16 MiB":[46.131,34.623,61.464],"256 KiB":[12.443,9.2226,16.788],"256 MiB":[348.46,294.65,412.1],"4 KiB":[9.959,7.3366,13.519],"4 MiB":[23.872,17.75,32.106],"64 KiB":[10.977,8.0483,14.971],"64 MiB":[115.03,89.747,147.44]},
"collectives: sendrecv of 2 ranks":{"1 GiB":[2105.3,1772.6,2500.3],"1 KiB":[9.416,6.7944,13.049],"1 MiB":[17.244,12.591,23.617],"16 KiB":[9.852,7.1766,13.525],"16 MiB":[88.091,68.686,112.98],"256 KiB":[12.286,8.9125,16.936],"256 MiB":[1076.4,904.72,1280.6],"4 KiB":[9.553,6.917,13.193],"4 MiB":[33.031,24.812,43.972],"64 KiB":[10.541,7.5816,14.656],"64 MiB":[292.47,234.15,365.32]},
"pairs: 8 B between 2 of 2 GPUs":[9.297],
"pairs: 64 MiB between 2 of 2 GPUs":[292.47],
"collectives: all_reduce of 4 ranks":{"1 GiB":[2291.7,2018.3,2602.2],"1 KiB":[15.03,12.098,18.672],"1 MiB":[20.602,16.664,25.47],"16 KiB":[15.112,12.174,18.758],"16 MiB":[74.524,58.941,94.226],"256 KiB":[16.419,12.976,20.775],"256 MiB":[614.88,541.17,698.63],"4 KiB":[15.046,12.113,18.689],"4 MiB":[37.335,31.644,44.05],"64 KiB":[15.373,12.048,19.615],"64 MiB":[182.85,152.28,219.56]},
"collectives: all_gather of 4 ranks":{"1 GiB":[1343.1,1180,1528.6],"1 KiB":[11.741,9.7176,14.186],"1 MiB":[15.18,12.305,18.727],"16 KiB":[11.792,9.765,14.24],"16 MiB":[49.42,39.744,61.452],"256 KiB":[12.598,10.147,15.641],"256 MiB":[361.01,317.23,410.83],"4 KiB":[11.751,9.7269,14.196],"4 MiB":[25.507,20.453,31.81],"64 KiB":[11.953,9.5846,14.907],"64 MiB":[111.99,93.456,134.2]},
"collectives: reduce_scatter of 4 ranks":{"1 GiB":[1373.2,1160.2,1625.4],"1 KiB":[11.399,9.4708,13.72],"1 MiB":[14.577,11.692,18.173],"16 KiB":[11.445,9.5135,13.769],"16 MiB":[49.749,39.734,62.288],"256 KiB":[12.191,9.8332,15.114],"256 MiB":[365.11,310.4,429.46],"4 KiB":[11.408,9.4792,13.729],"4 MiB":[24.122,18.24,31.901],"64 KiB":[11.595,9.3251,14.417],"64 MiB":[113.07,92.763,137.83]},
"collectives: broadcast of 4 ranks":{"1 GiB":[1762.6,1481.1,2097.6],"1 KiB":[13.195,10.31,16.887],"1 MiB":[17.244,13.34,22.29],"16 KiB":[13.254,10.365,16.948],"16 MiB":[56.453,44.283,71.968],"256 KiB":[14.204,10.921,18.474],"256 MiB":[464.89,392.79,550.21],"4 KiB":[13.207,10.321,16.9],"4 MiB":[29.402,21.686,39.863],"64 KiB":[13.444,10.262,17.613],"64 MiB":[139.56,113.68,171.33]},
"collectives: alltoall of 4 ranks":{"1 GiB":[1432.2,1255.4,1633.9],"1 KiB":[10.57,7.948,14.057],"1 MiB":[16.273,12.258,21.603],"16 KiB":[11.02,8.356,14.533],"16 MiB":[48.75,37.428,63.497],"256 KiB":[13.038,9.8048,17.337],"256 MiB":[402.94,346.76,468.22],"4 KiB":[10.718,8.0837,14.211],"4 MiB":[24.611,18.629,32.514],"64 KiB":[11.654,8.6935,15.623],"64 MiB":[127.21,101.44,159.52]},
"collectives: sendrecv of 4 ranks":{"1 GiB":[1716.6,1445.6,2038.4],"1 KiB":[9.293,6.7253,12.841],"1 MiB":[19.085,14.437,25.229],"16 KiB":[9.712,7.0972,13.29],"16 MiB":[126.23,101.29,157.32],"256 KiB":[12.519,9.2285,16.983],"256 MiB":[874.49,736.17,1038.8],"4 KiB":[9.42,6.8397,12.974],"4 MiB":[41.895,32.94,53.284],"64 KiB":[10.446,7.5573,14.439],"64 MiB":[450.08,363.85,556.75]},
"pairs: 8 B between 2 of 4 GPUs":[9.189],
"pairs: 64 MiB between 2 of 4 GPUs":[450.08],
"collectives: all_reduce of 8 ranks":{"1 GiB":[2433.1,2119.2,2793.4],"1 KiB":[25.806,19.585,34.004],"1 MiB":[32.306,24.934,41.857],"16 KiB":[25.901,19.673,34.1],"16 MiB":[96.695,76.724,121.86],"256 KiB":[27.426,20.573,36.562],"256 MiB":[706.37,595.07,838.49],"4 KiB":[25.825,19.602,34.023],"4 MiB":[51.828,42.711,62.891],"64 KiB":[26.206,19.479,35.255],"64 MiB":[235.19,193.45,285.94]},
"collectives: all_gather of 8 ranks":{"1 GiB":[1429.6,1259.8,1622.3],"1 KiB":[17.381,13.759,21.956],"1 MiB":[20.632,16.273,26.159],"16 KiB":[17.429,13.804,22.006],"16 MiB":[63.655,49.273,82.235],"256 KiB":[18.192,14.104,23.464],"256 MiB":[396.6,349.27,450.34],"4 KiB":[17.391,13.769,21.966],"4 MiB":[30.392,25.182,36.68],"64 KiB":[17.582,13.561,22.796],"64 MiB":[130.5,107.77,158.01]},
"collectives: reduce_scatter of 8 ranks":{"1 GiB":[1437.1,1264.3,1633.6],"1 KiB":[16.742,13.295,21.083],"1 MiB":[20.158,15.894,25.565],"16 KiB":[16.792,13.342,21.134],"16 MiB":[66.908,50.274,89.045],"256 KiB":[17.593,13.681,22.624],"256 MiB":[400.17,352.49,454.31],"4 KiB":[16.752,13.304,21.093],"4 MiB":[30.416,24.372,37.959],"64 KiB":[16.952,13.113,21.915],"64 MiB":[135.15,111.07,164.47]},
"collectives: broadcast of 8 ranks":{"1 GiB":[1665.1,1404,1974.7],"1 KiB":[18.558,13.926,24.731],"1 MiB":[22.344,16.837,29.653],"16 KiB":[18.613,13.977,24.786],"16 MiB":[64.627,47.087,88.701],"256 KiB":[19.502,14.445,26.33],"256 MiB":[452.61,383.45,534.24],"4 KiB":[18.569,13.936,24.742],"4 MiB":[23.302,17.528,30.978],"64 KiB":[18.791,13.816,25.557],"64 MiB":[146.63,117.02,183.74]},
"collectives: alltoall of 8 ranks":{"1 GiB":[1530.9,1332.8,1758.5],"1 KiB":[12.794,9.6795,16.911],"1 MiB":[18.992,14.092,25.595],"16 KiB":[13.285,10.106,17.464],"16 MiB":[53.96,40.312,72.228],"256 KiB":[15.482,11.57,20.717],"256 MiB":[432.68,367.33,509.66],"4 KiB":[12.955,9.8214,17.088],"4 MiB":[27.998,20.677,37.912],"64 KiB":[13.976,10.422,18.742],"64 MiB":[138,107.83,176.62]},
"collectives: sendrecv of 8 ranks":{"1 GiB":[1655.8,1451.5,1888.8],"1 KiB":[9.447,6.8119,13.101],"1 MiB":[29.124,22.435,37.807],"16 KiB":[10.353,7.6148,14.076],"16 MiB":[235.03,194.28,284.32],"256 KiB":[16.115,12.073,21.511],"256 MiB":[850.81,744.6,972.17],"4 KiB":[9.725,7.0631,13.39],"4 MiB":[73.407,59.193,91.034],"64 KiB":[11.893,8.7146,16.231],"64 MiB":[850.81,709.61,1020.1]},
"pairs: 8 B between 2 of 8 GPUs":[9.215],
"pairs: 64 MiB between 2 of 8 GPUs":[850.81]}}""",
    'hgx_h20': r"""{"device":"H20 SXM",
"models":["H20"],
"num_sms":78,
"times":{
"launches: add_ of one element":{"back to back":[2.009],"host":[2],"in a CUDA graph":[1.74]},
"launches: add_ of one element and synchronize":[3.742],
"copies: pinned host to device":{"1 MiB":[21.855],"16 MiB":[349.56],"256 MiB":[5593.1],"4 KiB":[5],"64 KiB":[5]},
"copies: device to pinned host":{"1 MiB":[21.855],"16 MiB":[349.56],"256 MiB":[5593.1],"4 KiB":[5],"64 KiB":[5]},
"copies: on the device":{"1 MiB":[2.969],"16 MiB":[13.854],"256 MiB":[160.17],"4 KiB":[2.009],"64 KiB":[2.009]},
"products: bfloat16 1x4096x4096":[27.3,17.165,43.419],
"products: bfloat16 16x8192x8192":[84.832,53.339,134.92],
"products: bfloat16 128x4096x14336":[140.27,103.31,242.15],
"products: bfloat16 512x4096x4096":[157.99,117.85,272.75],
"products: bfloat16 2048x2048x2048":[157.99,117.84,234.28],
"products: bfloat16 4096x4096x4096":[1179.1,930.53,1748.5],
"products: bfloat16 4096x14336x4096":[4058.2,3252.2,6017.9],
"products: bfloat16 8192x8192x8192":[9329.9,7431.1,13835],
"products: bfloat16 1000x1000x1000":[24.677,14.938,42.601],
"products: float16 1x4096x4096":[27.3,17.165,43.419],
"products: float16 16x8192x8192":[84.832,53.339,134.92],
"products: float16 128x4096x14336":[140.27,103.31,242.15],
"products: float16 512x4096x4096":[157.99,117.85,272.75],
"products: float16 2048x2048x2048":[157.99,117.84,234.28],
"products: float16 4096x4096x4096":[1179.1,930.53,1748.5],
"products: float16 4096x14336x4096":[4058.2,3252.2,6017.9],
"products: float16 8192x8192x8192":[9329.9,7431.1,13835],
"products: float16 1000x1000x1000":[24.677,14.938,42.601],
"products: float32 1x4096x4096":[64.226],
"products: float32 16x8192x8192":[256.9],
"products: float32 128x4096x14336":[449.58],
"products: float32 512x4096x4096":[513.82],
"products: float32 2048x2048x2048":[513.77],
"products: float32 4096x4096x4096":[4110.1],
"products: float32 4096x14336x4096":[14385],
"products: float32 8192x8192x8192":[32880],
"products: float32 1000x1000x1000":[59.814],
"products: float32 as TF32 1x4096x4096":[46.929],
"products: float32 as TF32 16x8192x8192":[161],
"products: float32 as TF32 128x4096x14336":[271.08],
"products: float32 as TF32 512x4096x4096":[304.5],
"products: float32 as TF32 2048x2048x2048":[304.49],
"products: float32 as TF32 4096x4096x4096":[2349.1],
"products: float32 as TF32 4096x14336x4096":[8110.4],
"products: float32 as TF32 8192x8192x8192":[18608],
"products: float32 as TF32 1000x1000x1000":[44.094],
"attention: forward: batch 1, 32 heads, 32 of keys, 1024 tokens, width 128":[173.14],
"attention: backward: batch 1, 32 heads, 32 of keys, 1024 tokens, width 128":[522.52],
"attention: forward: batch 1, 32 heads, 8 of keys, 4096 tokens, width 128":[1773.3],
"attention: backward: batch 1, 32 heads, 8 of keys, 4096 tokens, width 128":[5288.3],
"attention: forward: batch 4, 16 heads, 16 of keys, 2048 tokens, width 64":[746.91],
"attention: backward: batch 4, 16 heads, 16 of keys, 2048 tokens, width 64":[1810],
"kernels: kernel add":[5.057],
"kernels: kernel softmax":[5.057],
"kernels: kernel norm":[5.057],
"kernels: kernel product":[6.257],
"collectives: all_reduce of 2 ranks":{"1 GiB":[3195.3,2792.4,3656.3],"1 KiB":[8.366,7.2496,9.6544],"1 MiB":[15.795,13.319,18.731],"16 KiB":[8.475,7.3488,9.7737],"16 MiB":[69.873,58.781,83.059],"256 KiB":[10.218,8.5466,12.216],"256 MiB":[840.86,733.47,963.97],"4 KiB":[8.388,7.2696,9.6785],"4 MiB":[31.34,26.316,37.324],"64 KiB":[8.823,7.3458,10.597],"64 MiB":[224.32,187.32,268.63]},
"collectives: all_gather of 2 ranks":{"1 GiB":[1824.8,1568,2123.6],"1 KiB":[7.753,6.7936,8.848],"1 MiB":[11.691,9.3423,14.63],"16 KiB":[7.811,6.846,8.9121],"16 MiB":[46.07,38.749,54.775],"256 KiB":[8.735,7.2909,10.465],"256 MiB":[485.83,417.55,565.29],"4 KiB":[7.765,6.8044,8.8612],"4 MiB":[23.515,16.949,32.624],"64 KiB":[7.996,6.7025,9.5392],"64 MiB":[134.28,111.28,162.03]},
"collectives: reduce_scatter of 2 ranks":{"1 GiB":[2014.4,1762.7,2302.1],"1 KiB":[7.678,6.7456,8.7393],"1 MiB":[11.853,9.6856,14.505],"16 KiB":[7.74,6.8017,8.8077],"16 MiB":[49.02,41.454,57.967],"256 KiB":[8.719,7.3104,10.399],"256 MiB":[533.07,465.96,609.83],"4 KiB":[7.691,6.7574,8.7536],"4 MiB":[24.39,18.742,31.74],"64 KiB":[7.935,6.6656,9.4462],"64 MiB":[146.08,122.33,174.44]},
"collectives: broadcast of 2 ranks":{"1 GiB":[3476.9,2894.5,4176.6],"1 KiB":[8.451,7.2234,9.8872],"1 MiB":[15.88,13.345,18.896],"16 KiB":[8.56,7.3234,10.005],"16 MiB":[73.939,60.869,89.815],"256 KiB":[10.303,8.5524,12.412],"256 MiB":[901.22,754.84,1076],"4 KiB":[8.473,7.2436,9.9111],"4 MiB":[32.591,27.021,39.309],"64 KiB":[8.908,7.3438,10.805],"64 MiB":[239.65,194.35,295.49]},
"collectives: alltoall of 2 ranks":{"1 GiB":[1904,1656.9,2188.1],"1 KiB":[7.039,5.9311,8.3538],"1 MiB":[14.242,10.632,19.077],"16 KiB":[7.598,6.398,9.0231],"16 MiB":[56.479,42.594,74.891],"256 KiB":[10.132,7.9105,12.977],"256 MiB":[527.06,450.95,616.02],"4 KiB":[7.222,6.0908,8.5632],"4 MiB":[24.973,18.359,33.97],"64 KiB":[8.391,6.7465,10.436],"64 MiB":[159.98,126.73,201.96]},
"collectives: sendrecv of 2 ranks":{"1 GiB":[3347.2,2807.3,3991],"1 KiB":[6.884,5.7957,8.1766],"1 MiB":[14.347,10.758,19.134],"16 KiB":[7.275,6.1059,8.668],"16 MiB":[85.461,66.936,109.11],"256 KiB":[9.55,7.4173,12.296],"256 MiB":[1095.9,917.95,1308.3],"4 KiB":[7.007,5.8989,8.3233],"4 MiB":[29.989,22.747,39.537],"64 KiB":[7.908,6.3304,9.8788],"64 MiB":[293.48,234.89,366.67]},
"pairs: 8 B between 2 of 2 GPUs":[6.779],
"pairs: 64 MiB between 2 of 2 GPUs":[293.48],
"collectives: all_reduce of 4 ranks":{"1 GiB":[4139.9,3611.6,4745.4],"1 KiB":[11.384,9.3908,13.8],"1 MiB":[22.528,18.782,27.022],"16 KiB":[11.547,9.5421,13.973],"16 MiB":[94.762,78.561,114.3],"256 KiB":[14.162,11.527,17.399],"256 MiB":[1096.5,955.64,1258.1],"4 KiB":[11.417,9.4214,13.835],"4 MiB":[44.512,35.269,56.178],"64 KiB":[12.07,9.6909,15.033],"64 MiB":[296.07,246.61,355.45]},
"collectives: all_gather of 4 ranks":{"1 GiB":[2410.1,2102.5,2762.8],"1 KiB":[9.46,8.0594,11.104],"1 MiB":[15.159,12.177,18.871],"16 KiB":[9.544,8.137,11.194],"16 MiB":[60.806,50.716,72.903],"256 KiB":[10.881,8.9519,13.226],"256 MiB":[640.39,557.31,735.84],"4 KiB":[9.477,8.0751,11.122],"4 MiB":[31.843,25.835,39.248],"64 KiB":[9.811,8.0603,11.942],"64 MiB":[176.97,147.65,212.12]},
"collectives: reduce_scatter of 4 ranks":{"1 GiB":[2460.2,2059.7,2938.5],"1 KiB":[9.281,7.9311,10.861],"1 MiB":[14.853,12.438,17.737],"16 KiB":[9.362,8.0055,10.948],"16 MiB":[61.336,50.522,74.465],"256 KiB":[10.67,8.8331,12.889],"256 MiB":[647.92,545.42,769.69],"4 KiB":[9.297,7.9458,10.878],"4 MiB":[31.585,27.15,36.744],"64 KiB":[9.624,7.9257,11.686],"64 MiB":[178.91,145.98,219.25]},
"collectives: broadcast of 4 ranks":{"1 GiB":[3211,2664.4,3869.8],"1 KiB":[10.229,8.4025,12.453],"1 MiB":[17.659,14.626,21.321],"16 KiB":[10.338,8.5037,12.568],"16 MiB":[70.89,57.91,86.779],"256 KiB":[12.081,9.7664,14.944],"256 MiB":[829.28,694.26,990.54],"4 KiB":[10.251,8.4229,12.476],"4 MiB":[31.438,24.925,39.652],"64 KiB":[10.687,8.5391,13.375],"64 MiB":[224.07,181.83,276.12]},
"collectives: alltoall of 4 ranks":{"1 GiB":[2553.8,2228.2,2927],"1 KiB":[8.248,6.6534,10.225],"1 MiB":[15.84,11.974,20.954],"16 KiB":[8.793,7.1315,10.842],"16 MiB":[66.92,52.047,86.044],"256 KiB":[11.379,8.8311,14.662],"256 MiB":[688.35,595.84,795.21],"4 KiB":[8.425,6.8132,10.418],"4 MiB":[28.236,21.319,37.398],"64 KiB":[9.583,7.5322,12.192],"64 MiB":[200.18,162.05,247.27]},
"collectives: sendrecv of 4 ranks":{"1 GiB":[3058.3,2561.9,3650.9],"1 KiB":[7.508,5.973,9.4374],"1 MiB":[18.489,14.156,24.149],"16 KiB":[7.963,6.3596,9.9706],"16 MiB":[140.7,112.52,175.94],"256 KiB":[11.085,8.5271,14.41],"256 MiB":[997.77,835.7,1191.3],"4 KiB":[7.645,6.0933,9.5919],"4 MiB":[44.409,34.886,56.531],"64 KiB":[8.772,6.801,11.314],"64 MiB":[511.39,411.77,635.12]},
"pairs: 8 B between 2 of 4 GPUs":[7.396],
"pairs: 64 MiB between 2 of 4 GPUs":[511.39],
"collectives: all_reduce of 8 ranks":{"1 GiB":[4160.7,3656.4,4734.5],"1 KiB":[19.098,14.777,24.682],"1 MiB":[32.099,25.929,39.738],"16 KiB":[19.288,14.955,24.877],"16 MiB":[123.55,93.093,163.98],"256 KiB":[22.338,17.298,28.847],"256 MiB":[1141,986.07,1320.2],"4 KiB":[19.136,14.813,24.721],"4 MiB":[58.006,41.224,81.62],"64 KiB":[19.898,15.119,26.187],"64 MiB":[344.08,274.67,431.04]},
"collectives: all_gather of 8 ranks":{"1 GiB":[2701.7,2372.6,3076.5],"1 KiB":[13.673,11.056,16.909],"1 MiB":[20.174,16.451,24.74],"16 KiB":[13.769,11.146,17.01],"16 MiB":[75.152,61.759,91.449],"256 KiB":[15.294,12.163,19.232],"256 MiB":[724.71,636.19,825.54],"4 KiB":[13.692,11.074,16.929],"4 MiB":[39.695,33.819,46.591],"64 KiB":[14.074,11.082,17.874],"64 MiB":[206.55,172.93,246.7]},
"collectives: reduce_scatter of 8 ranks":{"1 GiB":[2707.6,2377.1,3084],"1 KiB":[13.252,10.759,16.322],"1 MiB":[19.752,16.149,24.159],"16 KiB":[13.347,10.848,16.422],"16 MiB":[78.118,63.622,95.916],"256 KiB":[14.872,11.867,18.639],"256 MiB":[727.92,637.41,831.28],"4 KiB":[13.271,10.777,16.342],"4 MiB":[39.274,33.497,46.048],"64 KiB":[13.652,10.787,17.277],"64 MiB":[208.98,174.83,249.8]},
"collectives: broadcast of 8 ranks":{"1 GiB":[3221.4,2705.3,3835.8],"1 KiB":[14.474,11.166,18.762],"1 MiB":[21.904,17.493,27.427],"16 KiB":[14.583,11.268,18.874],"16 MiB":[74.783,59.352,94.226],"256 KiB":[16.326,12.543,21.25],"256 MiB":[832.3,701.59,987.38],"4 KiB":[14.496,11.186,18.785],"4 MiB":[29.354,24.857,34.665],"64 KiB":[14.932,11.296,19.738],"64 MiB":[230.5,187.62,283.18]},
"collectives: alltoall of 8 ranks":{"1 GiB":[2852.7,2486.8,3272.5],"1 KiB":[10.638,7.9283,14.274],"1 MiB":[18.341,13.426,25.056],"16 KiB":[11.17,8.3874,14.876],"16 MiB":[73.281,56.349,95.301],"256 KiB":[13.753,10.149,18.637],"256 MiB":[763.34,659.32,883.77],"4 KiB":[10.81,8.0797,14.463],"4 MiB":[31.432,23.259,42.478],"64 KiB":[11.949,8.8108,16.205],"64 MiB":[219.96,177.22,273]},
"collectives: sendrecv of 8 ranks":{"1 GiB":[3089.9,2699.2,3537.1],"1 KiB":[8.491,5.9992,12.018],"1 MiB":[30.651,23.48,40.012],"16 KiB":[9.422,6.7958,13.063],"16 MiB":[275.5,227.67,333.39],"256 KiB":[15.745,11.628,21.32],"256 MiB":[1016.7,887.27,1165.1],"4 KiB":[8.773,6.2453,12.324],"4 MiB":[82.666,66.687,102.47],"64 KiB":[11.067,7.9684,15.37],"64 MiB":[1016.7,846.2,1221.6]},
"pairs: 8 B between 2 of 8 GPUs":[8.26],
"pairs: 64 MiB between 2 of 8 GPUs":[1016.7]}}""",
    'l40s_pcie': r"""{"device":"L40S",
"models":["L40S"],
"num_sms":142,
"times":{
"launches: add_ of one element":{"back to back":[2.009],"host":[2],"in a CUDA graph":[1.74]},
"launches: add_ of one element and synchronize":[3.742],
"copies: pinned host to device":{"1 MiB":[43.701],"16 MiB":[699.12],"256 MiB":[11185],"4 KiB":[5.01],"64 KiB":[5.01]},
"copies: device to pinned host":{"1 MiB":[43.701],"16 MiB":[699.12],"256 MiB":[11185],"4 KiB":[5.01],"64 KiB":[5.01]},
"copies: on the device":{"1 MiB":[6.923],"16 MiB":[49.261],"256 MiB":[726.74],"4 KiB":[2.009],"64 KiB":[2.103]},
"products: bfloat16 1x4096x4096":[50.895,39.716,65.22],
"products: bfloat16 16x8192x8192":[203.11,158.5,260.28],
"products: bfloat16 128x4096x14336":[199.61,164.9,241.62],
"products: bfloat16 512x4096x4096":[79.929,66.032,96.751],
"products: bfloat16 2048x2048x2048":[79.864,70.691,90.227],
"products: bfloat16 4096x4096x4096":[603.28,533.99,681.56],
"products: bfloat16 4096x14336x4096":[2238.3,1981.3,2528.8],
"products: bfloat16 8192x8192x8192":[5481,4851.5,6192.2],
"products: bfloat16 1000x1000x1000":[14.249,11.772,17.248],
"products: float16 1x4096x4096":[50.895,39.716,65.22],
"products: float16 16x8192x8192":[203.11,158.5,260.28],
"products: float16 128x4096x14336":[199.61,164.9,241.62],
"products: float16 512x4096x4096":[79.929,66.032,96.751],
"products: float16 2048x2048x2048":[79.864,70.691,90.227],
"products: float16 4096x4096x4096":[603.28,533.99,681.56],
"products: float16 4096x14336x4096":[2238.3,1981.3,2528.8],
"products: float16 8192x8192x8192":[5481,4851.5,6192.2],
"products: float16 1000x1000x1000":[14.249,11.772,17.248],
"products: float32 1x4096x4096":[90.375],
"products: float32 16x8192x8192":[362.73],
"products: float32 128x4096x14336":[328.86],
"products: float32 512x4096x4096":[187.57],
"products: float32 2048x2048x2048":[187.57],
"products: float32 4096x4096x4096":[1500.5],
"products: float32 4096x14336x4096":[5251.7],
"products: float32 8192x8192x8192":[12004],
"products: float32 1000x1000x1000":[21.837],
"products: float32 as TF32 1x4096x4096":[93.662],
"products: float32 as TF32 16x8192x8192":[391.25],
"products: float32 as TF32 128x4096x14336":[388.48],
"products: float32 as TF32 512x4096x4096":[165.88],
"products: float32 as TF32 2048x2048x2048":[144.55],
"products: float32 as TF32 4096x4096x4096":[1283.3],
"products: float32 as TF32 4096x14336x4096":[4603.2],
"products: float32 as TF32 8192x8192x8192":[10919],
"products: float32 as TF32 1000x1000x1000":[23.72],
"attention: forward: batch 1, 32 heads, 32 of keys, 1024 tokens, width 128":[77.834],
"attention: backward: batch 1, 32 heads, 32 of keys, 1024 tokens, width 128":[207.22],
"attention: forward: batch 1, 32 heads, 8 of keys, 4096 tokens, width 128":[736.01],
"attention: backward: batch 1, 32 heads, 8 of keys, 4096 tokens, width 128":[2029.9],
"attention: forward: batch 4, 16 heads, 16 of keys, 2048 tokens, width 64":[224.09],
"attention: backward: batch 4, 16 heads, 16 of keys, 2048 tokens, width 64":[612.25],
"kernels: kernel add":[5.067],
"kernels: kernel softmax":[5.067],
"kernels: kernel norm":[5.067],
"kernels: kernel product":[9.963],
"collectives: all_reduce of 2 ranks":{"1 GiB":[47702,35899,63384],"1 KiB":[8.767,7.5147,10.228],"1 MiB":[74.459,55.821,99.321],"16 KiB":[9.973,8.548,11.636],"16 MiB":[804.35,595.76,1086],"256 KiB":[29.267,20.859,41.063],"256 MiB":[12037,9072.2,15970],"4 KiB":[9.008,7.7334,10.493],"4 MiB":[225.4,168.56,301.4],"64 KiB":[13.832,10.945,17.48],"64 MiB":[3070.9,2262.2,4168.7]},
"collectives: all_gather of 2 ranks":{"1 GiB":[27201,20308,36434],"1 KiB":[7.993,6.9559,9.1847],"1 MiB":[46.428,34.909,61.748],"16 KiB":[8.777,7.6094,10.124],"16 MiB":[462.28,340.45,627.72],"256 KiB":[21.323,14.904,30.507],"256 MiB":[6865.9,5134.4,9181.3],"4 KiB":[8.15,7.0959,9.3607],"4 MiB":[132.38,98.719,177.52],"64 KiB":[11.287,8.9817,14.184],"64 MiB":[1754.4,1283.6,2397.8]},
"collectives: reduce_scatter of 2 ranks":{"1 GiB":[29960,22565,39778],"1 KiB":[7.909,6.9066,9.0569],"1 MiB":[49.45,37.442,65.31],"16 KiB":[8.74,7.6135,10.033],"16 MiB":[509.11,377.7,686.22],"256 KiB":[22.043,15.994,30.38],"256 MiB":[7565.6,5707.3,10029],"4 KiB":[8.075,7.0554,9.2419],"4 MiB":[144.7,108.6,192.79],"64 KiB":[11.401,9.1859,14.15],"64 MiB":[1933.9,1426.1,2622.5]},
"collectives: broadcast of 2 ranks":{"1 GiB":[51311,37783,69682],"1 KiB":[8.868,7.4816,10.511],"1 MiB":[82.636,58.063,117.61],"16 KiB":[10.247,8.6107,12.194],"16 MiB":[877.7,633.97,1215.1],"256 KiB":[32.302,21.239,49.127],"256 MiB":[12978,9569.5,17600],"4 KiB":[9.144,7.7289,10.818],"4 MiB":[248.55,178.83,345.46],"64 KiB":[14.658,11.104,19.35],"64 MiB":[3325.6,2398.7,4610.6]},
"collectives: alltoall of 2 ranks":{"1 GiB":[27368,20631,36305],"1 KiB":[7.94,6.6117,9.5351],"1 MiB":[51.183,36.815,71.159],"16 KiB":[9.979,8.0698,12.34],"16 MiB":[496.66,367.35,671.47],"256 KiB":[22.731,16.408,31.49],"256 MiB":[6989.1,5281.3,9249],"4 KiB":[8.569,7.0995,10.343],"4 MiB":[147.34,108.33,200.4],"64 KiB":[13.412,10.071,17.862],"64 MiB":[1823.6,1346.8,2469.2]},
"collectives: sendrecv of 2 ranks":{"1 GiB":[50960,37567,69128],"1 KiB":[7.616,6.3385,9.151],"1 MiB":[66.434,48.23,91.51],"16 KiB":[9.251,7.5314,11.363],"16 MiB":[837.4,605.91,1157.3],"256 KiB":[24.485,18.046,33.222],"256 MiB":[12823,9461.8,17379],"4 KiB":[8.064,6.685,9.7275],"4 MiB":[224.51,163.19,308.89],"64 KiB":[12.783,9.744,16.77],"64 MiB":[3250.4,2345.2,4504.9]},
"pairs: 8 B between 2 of 2 GPUs":[7.291],
"pairs: 64 MiB between 2 of 2 GPUs":[3250.4]}}""",
    'gb200_nvl72': r"""{"device":"GB200",
"models":["GB200"],
"num_sms":148,
"times":{
"launches: add_ of one element":{"back to back":[2.009],"host":[2],"in a CUDA graph":[1.74]},
"launches: add_ of one element and synchronize":[3.742],
"copies: pinned host to device":{"1 MiB":[4.86],"16 MiB":[74.575],"256 MiB":[1193.2],"4 KiB":[4.86],"64 KiB":[4.86]},
"copies: device to pinned host":{"1 MiB":[4.86],"16 MiB":[74.575],"256 MiB":[1193.2],"4 KiB":[4.86],"64 KiB":[4.86]},
"copies: on the device":{"1 MiB":[2.358],"16 MiB":[8.963],"256 MiB":[81.907],"4 KiB":[2.009],"64 KiB":[2.009]},
"products: bfloat16 1x4096x4096":[12.557,10.808,14.589],
"products: bfloat16 16x8192x8192":[26.308,22.644,30.566],
"products: bfloat16 128x4096x14336":[28.525,25.098,32.42],
"products: bfloat16 512x4096x4096":[15.885,13.976,18.054],
"products: bfloat16 2048x2048x2048":[15.007,13.444,16.752],
"products: bfloat16 4096x4096x4096":[81.954,73.417,91.483],
"products: bfloat16 4096x14336x4096":[289.4,259.25,323.05],
"products: bfloat16 8192x8192x8192":[712,637.84,794.79],
"products: bfloat16 1000x1000x1000":[6.277,5.5228,7.1341],
"products: float16 1x4096x4096":[12.557,10.808,14.589],
"products: float16 16x8192x8192":[26.308,22.644,30.566],
"products: float16 128x4096x14336":[28.525,25.098,32.42],
"products: float16 512x4096x4096":[15.885,13.976,18.054],
"products: float16 2048x2048x2048":[15.007,13.444,16.752],
"products: float16 4096x4096x4096":[81.954,73.417,91.483],
"products: float16 4096x14336x4096":[289.4,259.25,323.05],
"products: float16 8192x8192x8192":[712,637.84,794.79],
"products: float16 1000x1000x1000":[6.277,5.5228,7.1341],
"products: float32 1x4096x4096":[9.732],
"products: float32 16x8192x8192":[39.061],
"products: float32 128x4096x14336":[187.92],
"products: float32 512x4096x4096":[214.77],
"products: float32 2048x2048x2048":[214.77],
"products: float32 4096x4096x4096":[1718.1],
"products: float32 4096x14336x4096":[6013.1],
"products: float32 8192x8192x8192":[13744],
"products: float32 1000x1000x1000":[25.003],
"products: float32 as TF32 1x4096x4096":[16.752],
"products: float32 as TF32 16x8192x8192":[48.806],
"products: float32 as TF32 128x4096x14336":[48.294],
"products: float32 as TF32 512x4096x4096":[27.866],
"products: float32 as TF32 2048x2048x2048":[25.178],
"products: float32 as TF32 4096x4096x4096":[165.65],
"products: float32 as TF32 4096x14336x4096":[627.73],
"products: float32 as TF32 8192x8192x8192":[1315.2],
"products: float32 as TF32 1000x1000x1000":[7.863],
"attention: forward: batch 1, 32 heads, 32 of keys, 1024 tokens, width 128":[15.525],
"attention: backward: batch 1, 32 heads, 32 of keys, 1024 tokens, width 128":[38.531],
"attention: forward: batch 1, 32 heads, 8 of keys, 4096 tokens, width 128":[118.27],
"attention: backward: batch 1, 32 heads, 8 of keys, 4096 tokens, width 128":[349.82],
"attention: forward: batch 4, 16 heads, 16 of keys, 2048 tokens, width 64":[52.991],
"attention: backward: batch 4, 16 heads, 16 of keys, 2048 tokens, width 64":[122.1],
"kernels: kernel add":[4.917],
"kernels: kernel softmax":[4.917],
"kernels: kernel norm":[4.917],
"kernels: kernel product":[9.382],
"collectives: all_reduce of 2 ranks":{"1 GiB":[1961.8,1725.2,2231],"1 KiB":[10.113,8.3505,12.248],"1 MiB":[14.579,11.781,18.042],"16 KiB":[10.179,8.412,12.317],"16 MiB":[52.019,43.731,61.878],"256 KiB":[11.226,9.0466,13.93],"256 MiB":[513.99,452.44,583.9],"4 KiB":[10.126,8.3626,12.261],"4 MiB":[27.988,22.008,35.592],"64 KiB":[10.388,8.321,12.968],"64 MiB":[144.66,121.65,172.03]},
"collectives: all_gather of 2 ranks":{"1 GiB":[1122.1,974.75,1291.6],"1 KiB":[9.191,7.5887,11.132],"1 MiB":[12.094,9.6736,15.12],"16 KiB":[9.233,7.6278,11.176],"16 MiB":[36.348,30.658,43.094],"256 KiB":[9.914,7.9641,12.341],"256 MiB":[299.9,261.57,343.86],"4 KiB":[9.199,7.5962,11.14],"4 MiB":[20.814,15.753,27.501],"64 KiB":[9.369,7.4978,11.707],"64 MiB":[89.311,74.899,106.5]},
"collectives: reduce_scatter of 2 ranks":{"1 GiB":[1239.6,1090.1,1409.6],"1 KiB":[8.981,7.5296,10.712],"1 MiB":[12.059,9.8356,14.785],"16 KiB":[9.026,7.5714,10.76],"16 MiB":[38.003,32.143,44.932],"256 KiB":[9.748,7.9327,11.979],"256 MiB":[328.08,288.85,372.65],"4 KiB":[8.99,7.538,10.722],"4 MiB":[21.305,17.018,26.672],"64 KiB":[9.17,7.4327,11.313],"64 MiB":[96.271,81.124,114.25]},
"collectives: broadcast of 2 ranks":{"1 GiB":[2135.9,1794.6,2542],"1 KiB":[10.547,8.2276,13.52],"1 MiB":[15.652,12.035,20.356],"16 KiB":[10.622,8.2976,13.598],"16 MiB":[55.003,45.373,66.676],"256 KiB":[11.819,9.1121,15.33],"256 MiB":[550.69,464.5,652.87],"4 KiB":[10.562,8.2416,13.536],"4 MiB":[30.235,24.441,37.403],"64 KiB":[10.861,8.2923,14.225],"64 MiB":[154.39,126.28,188.76]},
"collectives: alltoall of 2 ranks":{"1 GiB":[1200.4,1042.4,1382.3],"1 KiB":[9.797,7.1875,13.354],"1 MiB":[15.751,11.699,21.206],"16 KiB":[10.291,7.6365,13.868],"16 MiB":[46.131,34.623,61.464],"256 KiB":[12.443,9.2226,16.788],"256 MiB":[348.46,294.65,412.1],"4 KiB":[9.959,7.3366,13.519],"4 MiB":[23.872,17.75,32.106],"64 KiB":[10.977,8.0483,14.971],"64 MiB":[115.03,89.747,147.44]},
"collectives: sendrecv of 2 ranks":{"1 GiB":[2105.3,1772.6,2500.3],"1 KiB":[9.416,6.7944,13.049],"1 MiB":[17.244,12.591,23.617],"16 KiB":[9.852,7.1766,13.525],"16 MiB":[88.091,68.686,112.98],"256 KiB":[12.286,8.9125,16.936],"256 MiB":[1076.4,904.72,1280.6],"4 KiB":[9.553,6.917,13.193],"4 MiB":[33.031,24.812,43.972],"64 KiB":[10.541,7.5816,14.656],"64 MiB":[292.47,234.15,365.32]},
"pairs: 8 B between 2 of 2 GPUs":[9.297],
"pairs: 64 MiB between 2 of 2 GPUs":[292.47],
"collectives: all_reduce of 4 ranks":{"1 GiB":[2291.7,2018.3,2602.2],"1 KiB":[15.03,12.098,18.672],"1 MiB":[20.602,16.664,25.47],"16 KiB":[15.112,12.174,18.758],"16 MiB":[74.524,58.941,94.226],"256 KiB":[16.419,12.976,20.775],"256 MiB":[614.88,541.17,698.63],"4 KiB":[15.046,12.113,18.689],"4 MiB":[37.335,31.644,44.05],"64 KiB":[15.373,12.048,19.615],"64 MiB":[182.85,152.28,219.56]},
"collectives: all_gather of 4 ranks":{"1 GiB":[1343.1,1180,1528.6],"1 KiB":[11.741,9.7176,14.186],"1 MiB":[15.18,12.305,18.727],"16 KiB":[11.792,9.765,14.24],"16 MiB":[49.42,39.744,61.452],"256 KiB":[12.598,10.147,15.641],"256 MiB":[361.01,317.23,410.83],"4 KiB":[11.751,9.7269,14.196],"4 MiB":[25.507,20.453,31.81],"64 KiB":[11.953,9.5846,14.907],"64 MiB":[111.99,93.456,134.2]},
"collectives: reduce_scatter of 4 ranks":{"1 GiB":[1373.2,1160.2,1625.4],"1 KiB":[11.399,9.4708,13.72],"1 MiB":[14.577,11.692,18.173],"16 KiB":[11.445,9.5135,13.769],"16 MiB":[49.749,39.734,62.288],"256 KiB":[12.191,9.8332,15.114],"256 MiB":[365.11,310.4,429.46],"4 KiB":[11.408,9.4792,13.729],"4 MiB":[24.122,18.24,31.901],"64 KiB":[11.595,9.3251,14.417],"64 MiB":[113.07,92.763,137.83]},
"collectives: broadcast of 4 ranks":{"1 GiB":[1762.6,1481.1,2097.6],"1 KiB":[13.195,10.31,16.887],"1 MiB":[17.244,13.34,22.29],"16 KiB":[13.254,10.365,16.948],"16 MiB":[56.471,44.297,71.991],"256 KiB":[14.204,10.921,18.474],"256 MiB":[464.89,392.79,550.22],"4 KiB":[13.207,10.321,16.9],"4 MiB":[29.402,21.686,39.863],"64 KiB":[13.444,10.262,17.613],"64 MiB":[139.56,113.68,171.34]},
"collectives: alltoall of 4 ranks":{"1 GiB":[1432.2,1255.4,1633.9],"1 KiB":[10.57,7.948,14.057],"1 MiB":[16.273,12.258,21.603],"16 KiB":[11.02,8.356,14.533],"16 MiB":[48.75,37.428,63.497],"256 KiB":[13.038,9.8048,17.337],"256 MiB":[402.94,346.76,468.22],"4 KiB":[10.718,8.0837,14.211],"4 MiB":[24.611,18.629,32.514],"64 KiB":[11.654,8.6935,15.623],"64 MiB":[127.21,101.44,159.52]},
"collectives: sendrecv of 4 ranks":{"1 GiB":[1716.6,1445.6,2038.4],"1 KiB":[9.293,6.7253,12.841],"1 MiB":[19.085,14.437,25.229],"16 KiB":[9.712,7.0972,13.29],"16 MiB":[126.23,101.29,157.32],"256 KiB":[12.519,9.2285,16.983],"256 MiB":[874.49,736.17,1038.8],"4 KiB":[9.42,6.8397,12.974],"4 MiB":[41.895,32.94,53.284],"64 KiB":[10.446,7.5573,14.439],"64 MiB":[450.08,363.85,556.75]},
"pairs: 8 B between 2 of 4 GPUs":[9.189],
"pairs: 64 MiB between 2 of 4 GPUs":[450.08],
"collectives: all_reduce of 8 ranks":{"1 GiB":[2433.1,2119.2,2793.4],"1 KiB":[25.806,19.585,34.004],"1 MiB":[32.306,24.934,41.857],"16 KiB":[25.901,19.673,34.1],"16 MiB":[96.695,76.724,121.86],"256 KiB":[27.426,20.573,36.562],"256 MiB":[706.37,595.07,838.49],"4 KiB":[25.825,19.602,34.023],"4 MiB":[51.828,42.711,62.891],"64 KiB":[26.206,19.479,35.255],"64 MiB":[235.19,193.45,285.94]},
"collectives: all_gather of 8 ranks":{"1 GiB":[1429.6,1259.8,1622.3],"1 KiB":[17.381,13.759,21.956],"1 MiB":[20.632,16.273,26.159],"16 KiB":[17.429,13.804,22.006],"16 MiB":[63.655,49.273,82.235],"256 KiB":[18.192,14.104,23.464],"256 MiB":[396.6,349.27,450.34],"4 KiB":[17.391,13.769,21.966],"4 MiB":[30.392,25.182,36.68],"64 KiB":[17.582,13.561,22.796],"64 MiB":[130.5,107.77,158.01]},
"collectives: reduce_scatter of 8 ranks":{"1 GiB":[1437.1,1264.3,1633.6],"1 KiB":[16.742,13.295,21.083],"1 MiB":[20.158,15.894,25.565],"16 KiB":[16.792,13.342,21.134],"16 MiB":[66.908,50.274,89.045],"256 KiB":[17.593,13.681,22.624],"256 MiB":[400.17,352.49,454.31],"4 KiB":[16.752,13.304,21.093],"4 MiB":[30.416,24.372,37.959],"64 KiB":[16.952,13.113,21.915],"64 MiB":[135.15,111.07,164.47]},
"collectives: broadcast of 8 ranks":{"1 GiB":[1665.1,1404.1,1974.8],"1 KiB":[18.558,13.926,24.731],"1 MiB":[22.344,16.837,29.653],"16 KiB":[18.613,13.977,24.786],"16 MiB":[64.685,47.129,88.781],"256 KiB":[19.502,14.445,26.33],"256 MiB":[452.62,383.46,534.25],"4 KiB":[18.569,13.936,24.742],"4 MiB":[23.435,17.628,31.155],"64 KiB":[18.791,13.816,25.557],"64 MiB":[146.64,117.03,183.75]},
"collectives: alltoall of 8 ranks":{"1 GiB":[1530.9,1332.8,1758.5],"1 KiB":[12.794,9.6795,16.911],"1 MiB":[18.992,14.092,25.595],"16 KiB":[13.285,10.106,17.464],"16 MiB":[53.96,40.312,72.228],"256 KiB":[15.482,11.57,20.717],"256 MiB":[432.68,367.33,509.66],"4 KiB":[12.955,9.8214,17.088],"4 MiB":[27.998,20.677,37.912],"64 KiB":[13.976,10.422,18.742],"64 MiB":[138,107.83,176.62]},
"collectives: sendrecv of 8 ranks":{"1 GiB":[1655.8,1451.5,1888.8],"1 KiB":[9.447,6.8119,13.101],"1 MiB":[29.124,22.435,37.807],"16 KiB":[10.353,7.6148,14.076],"16 MiB":[235.03,194.28,284.32],"256 KiB":[16.115,12.073,21.511],"256 MiB":[850.81,744.6,972.17],"4 KiB":[9.725,7.0631,13.39],"4 MiB":[73.407,59.193,91.034],"64 KiB":[11.893,8.7146,16.231],"64 MiB":[850.81,709.61,1020.1]},
"pairs: 8 B between 2 of 8 GPUs":[9.215],
"pairs: 64 MiB between 2 of 8 GPUs":[850.81]}}""",
    'rtx_pro_6000_pcie': r"""{"device":"RTX PRO 6000 Server",
"models":["RTX PRO 6000"],
"num_sms":188,
"times":{
"launches: add_ of one element":{"back to back":[2.009],"host":[2],"in a CUDA graph":[1.74]},
"launches: add_ of one element and synchronize":[3.742],
"copies: pinned host to device":{"1 MiB":[21.855],"16 MiB":[349.56],"256 MiB":[5593.1],"4 KiB":[5.01],"64 KiB":[5.01]},
"copies: device to pinned host":{"1 MiB":[21.855],"16 MiB":[349.56],"256 MiB":[5593.1],"4 KiB":[5.01],"64 KiB":[5.01]},
"copies: on the device":{"1 MiB":[4.812],"16 MiB":[28.592],"256 MiB":[396.01],"4 KiB":[2.009],"64 KiB":[2.01]},
"products: bfloat16 1x4096x4096":[29.893,18.796,47.543],
"products: bfloat16 16x8192x8192":[112.59,70.792,179.07],
"products: bfloat16 128x4096x14336":[119.72,69.349,206.67],
"products: bfloat16 512x4096x4096":[68.223,39.519,117.78],
"products: bfloat16 2048x2048x2048":[73.65,49.666,109.22],
"products: bfloat16 4096x4096x4096":[457.49,308.51,678.42],
"products: bfloat16 4096x14336x4096":[1703.3,1148.6,2525.8],
"products: bfloat16 8192x8192x8192":[4073.7,2747.1,6041],
"products: bfloat16 1000x1000x1000":[13.921,8.0639,24.032],
"products: float16 1x4096x4096":[29.893,18.796,47.543],
"products: float16 16x8192x8192":[112.59,70.792,179.07],
"products: float16 128x4096x14336":[119.72,69.349,206.67],
"products: float16 512x4096x4096":[68.223,39.519,117.78],
"products: float16 2048x2048x2048":[73.65,49.666,109.22],
"products: float16 4096x4096x4096":[457.49,308.51,678.42],
"products: float16 4096x14336x4096":[1703.3,1148.6,2525.8],
"products: float16 8192x8192x8192":[4073.7,2747.1,6041],
"products: float16 1000x1000x1000":[13.921,8.0639,24.032],
"products: float32 1x4096x4096":[49.013],
"products: float32 16x8192x8192":[196.72],
"products: float32 128x4096x14336":[178.35],
"products: float32 512x4096x4096":[143.18],
"products: float32 2048x2048x2048":[143.18],
"products: float32 4096x4096x4096":[1145.4],
"products: float32 4096x14336x4096":[4008.8],
"products: float32 8192x8192x8192":[9162.9],
"products: float32 1000x1000x1000":[16.669],
"products: float32 as TF32 1x4096x4096":[53.577],
"products: float32 as TF32 16x8192x8192":[215.4],
"products: float32 as TF32 128x4096x14336":[224.91],
"products: float32 as TF32 512x4096x4096":[133.8],
"products: float32 as TF32 2048x2048x2048":[136.28],
"products: float32 as TF32 4096x4096x4096":[942.48],
"products: float32 as TF32 4096x14336x4096":[3505.4],
"products: float32 as TF32 8192x8192x8192":[8180.9],
"products: float32 as TF32 1000x1000x1000":[23.077],
"attention: forward: batch 1, 32 heads, 32 of keys, 1024 tokens, width 128":[105.8],
"attention: backward: batch 1, 32 heads, 32 of keys, 1024 tokens, width 128":[307.47],
"attention: forward: batch 1, 32 heads, 8 of keys, 4096 tokens, width 128":[914.64],
"attention: backward: batch 1, 32 heads, 8 of keys, 4096 tokens, width 128":[2652.6],
"attention: forward: batch 4, 16 heads, 16 of keys, 2048 tokens, width 64":[290.43],
"attention: backward: batch 4, 16 heads, 16 of keys, 2048 tokens, width 64":[807.83],
"kernels: kernel add":[5.067],
"kernels: kernel softmax":[5.067],
"kernels: kernel norm":[5.067],
"kernels: kernel product":[9.969],
"collectives: all_reduce of 2 ranks":{"1 GiB":[23941,18029,31792],"1 KiB":[8.727,7.4777,10.185],"1 MiB":[47.738,35.879,63.517],"16 KiB":[9.33,8.0155,10.86],"16 MiB":[420.39,312.69,565.18],"256 KiB":[18.977,14.292,25.198],"256 MiB":[6067.5,4578.9,8040.2],"4 KiB":[8.848,7.5889,10.316],"4 MiB":[125.77,94.633,167.16],"64 KiB":[11.259,9.1759,13.815],"64 MiB":[1564.1,1154.8,2118.4]},
"collectives: all_gather of 2 ranks":{"1 GiB":[13653,10200,18275],"1 KiB":[7.967,6.9323,9.1562],"1 MiB":[31.225,23.644,41.237],"16 KiB":[8.359,7.2747,9.6049],"16 MiB":[243.47,180.27,328.83],"256 KiB":[14.632,10.988,19.484],"256 MiB":[3462.7,2593.1,4624],"4 KiB":[8.046,7.0037,9.2434],"4 MiB":[75.642,56.894,100.57],"64 KiB":[9.614,7.8979,11.703],"64 MiB":[895.45,656.92,1220.6]},
"collectives: reduce_scatter of 2 ranks":{"1 GiB":[15041,11336,19957],"1 KiB":[7.881,6.881,9.0263],"1 MiB":[32.53,24.869,42.55],"16 KiB":[8.297,7.2482,9.4976],"16 MiB":[267.51,199.44,358.8],"256 KiB":[14.948,11.492,19.442],"256 MiB":[3816.5,2882.9,5052.4],"4 KiB":[7.964,6.9564,9.1176],"4 MiB":[81.869,61.966,108.17],"64 KiB":[9.627,7.9575,11.647],"64 MiB":[986.93,729.61,1335]},
"collectives: broadcast of 2 ranks":{"1 GiB":[25778,18993,34986],"1 KiB":[8.822,7.4392,10.462],"1 MiB":[52.805,36.732,75.912],"16 KiB":[9.512,8.0406,11.253],"16 MiB":[461.06,332.77,638.81],"256 KiB":[20.539,14.504,29.084],"256 MiB":[6554.2,4837.5,8880.2],"4 KiB":[8.96,7.5653,10.612],"4 MiB":[139.34,99.594,194.94],"64 KiB":[11.717,9.3074,14.75],"64 MiB":[1699.5,1227,2353.9]},
"collectives: alltoall of 2 ranks":{"1 GiB":[13805,10418,18293],"1 KiB":[7.766,6.4651,9.3287],"1 MiB":[32.929,23.623,45.901],"16 KiB":[9.128,7.4966,11.114],"16 MiB":[266.63,196.9,361.07],"256 KiB":[16.875,12.382,22.999],"256 MiB":[3556.9,2692,4699.6],"4 KiB":[8.194,6.8157,9.8511],"4 MiB":[84.663,61.817,115.95],"64 KiB":[11.301,8.692,14.693],"64 MiB":[944.9,698.71,1277.8]},
"collectives: sendrecv of 2 ranks":{"1 GiB":[25548,18841,34643],"1 KiB":[7.503,6.2449,9.0145],"1 MiB":[38.861,28.373,53.227],"16 KiB":[8.509,7.0086,10.331],"16 MiB":[430.38,312.04,593.6],"256 KiB":[16.88,12.625,22.569],"256 MiB":[6447.7,4760.9,8732],"4 KiB":[7.79,6.4768,9.3694],"4 MiB":[119.91,87.422,164.48],"64 KiB":[10.527,8.18,13.547],"64 MiB":[1645.1,1188.4,2277.2]},
"pairs: 8 B between 2 of 2 GPUs":[7.283],
"pairs: 64 MiB between 2 of 2 GPUs":[1645.1],
"collectives: all_reduce of 4 ranks":{"1 GiB":[37084,26423,52046],"1 KiB":[15.851,8.4998,29.56],"1 MiB":[87.072,45.602,166.25],"16 KiB":[16.896,9.1346,31.252],"16 MiB":[692.56,437.78,1095.6],"256 KiB":[33.604,18.967,59.537],"256 MiB":[9468.3,6760.4,13261],"4 KiB":[16.06,8.6283,29.893],"4 MiB":[224.68,139.95,360.72],"64 KiB":[20.237,11.72,34.944],"64 MiB":[2481.2,1569.2,3923.3]},
"collectives: all_gather of 4 ranks":{"1 GiB":[21452,15281,30114],"1 KiB":[11.894,6.6008,21.432],"1 MiB":[61.059,32.939,113.19],"16 KiB":[12.615,7.0309,22.634],"16 MiB":[417.02,263.33,660.41],"256 KiB":[24.149,13.956,41.787],"256 MiB":[5500.7,3928,7703.1],"4 KiB":[12.038,6.6875,21.669],"4 MiB":[143.12,88.706,230.9],"64 KiB":[14.922,8.8719,25.098],"64 MiB":[1456.6,921.33,2302.7]},
"collectives: reduce_scatter of 4 ranks":{"1 GiB":[21800,15334,30992],"1 KiB":[11.575,6.4418,20.798],"1 MiB":[57.016,29.854,108.89],"16 KiB":[12.242,6.8379,21.917],"16 MiB":[427.38,263.49,693.19],"256 KiB":[22.902,13.085,40.085],"256 MiB":[5608.4,3949,7965],"4 KiB":[11.709,6.5223,21.02],"4 MiB":[144.19,86.068,241.56],"64 KiB":[14.374,8.5435,24.183],"64 MiB":[1491.4,930.26,2391.1]},
"collectives: broadcast of 4 ranks":{"1 GiB":[28241,19809,40263],"1 KiB":[13.261,7.1825,24.484],"1 MiB":[71.145,36.683,137.98],"16 KiB":[14.109,7.694,25.873],"16 MiB":[543.26,328.41,898.67],"256 KiB":[27.689,15.558,49.278],"256 MiB":[7308.5,5124.7,10423],"4 KiB":[13.43,7.2858,24.756],"4 MiB":[160.96,92.212,280.95],"64 KiB":[16.825,9.797,28.895],"64 MiB":[1950.7,1207.8,3150.5]},
"collectives: alltoall of 4 ranks":{"1 GiB":[22465,16019,31504],"1 KiB":[9.66,5.2671,17.717],"1 MiB":[48.893,26.642,89.728],"16 KiB":[11.705,6.3492,21.579],"16 MiB":[424.61,266.01,677.77],"256 KiB":[23.639,12.878,43.392],"256 MiB":[5771.1,4121.5,8081.1],"4 KiB":[10.3,5.621,18.874],"4 MiB":[131.43,80.454,214.7],"64 KiB":[15.016,8.426,26.76],"64 MiB":[1523.7,961.62,2414.4]},
"collectives: sendrecv of 4 ranks":{"1 GiB":[27723,19448,39520],"1 KiB":[8.48,4.5954,15.648],"1 MiB":[43.35,24.653,76.226],"16 KiB":[9.656,5.2562,17.739],"16 MiB":[470.47,294.2,752.37],"256 KiB":[19.071,10.876,33.441],"256 MiB":[7004.1,4918.8,9973.4],"4 KiB":[8.82,4.7915,16.236],"4 MiB":[132.12,82.641,211.21],"64 KiB":[11.957,6.8772,20.789],"64 MiB":[1790.8,1118.1,2868.3]},
"pairs: 8 B between 2 of 4 GPUs":[8.216],
"pairs: 64 MiB between 2 of 4 GPUs":[1790.8],
"collectives: all_reduce of 8 ranks":{"1 GiB":[47478,33954,66389],"1 KiB":[26.555,13.412,52.579],"1 MiB":[115.33,61.192,217.36],"16 KiB":[27.856,14.226,54.543],"16 MiB":[1047.1,640.57,1711.7],"256 KiB":[48.683,27.259,86.945],"256 MiB":[12445,8898.2,17405],"4 KiB":[26.815,13.576,52.966],"4 MiB":[377.72,224.28,636.13],"64 KiB":[32.022,17.664,58.05],"64 MiB":[3429.6,2152.7,5463.7]},
"collectives: all_gather of 8 ranks":{"1 GiB":[24077,17162,33778],"1 KiB":[17.486,9.2322,33.119],"1 MiB":[66.964,36.445,123.04],"16 KiB":[18.211,9.6796,34.262],"16 MiB":[469.25,298.37,738],"256 KiB":[29.819,17.108,51.974],"256 MiB":[6152.1,4397.7,8606.2],"4 KiB":[17.631,9.3223,33.345],"4 MiB":[168.93,104.73,272.49],"64 KiB":[20.533,11.714,35.991],"64 MiB":[1624.6,1030.3,2561.6]},
"collectives: reduce_scatter of 8 ranks":{"1 GiB":[24054,17152,33733],"1 KiB":[16.879,8.9414,31.863],"1 MiB":[69.101,37.54,127.2],"16 KiB":[17.644,9.4125,33.074],"16 MiB":[469.54,297.4,741.33],"256 KiB":[29.896,17.161,52.082],"256 MiB":[6160.4,4404.2,8616.9],"4 KiB":[17.032,9.0363,32.103],"4 MiB":[165.25,102.25,267.05],"64 KiB":[20.095,11.51,35.083],"64 MiB":[1630.6,1033,2573.7]},
"collectives: broadcast of 8 ranks":{"1 GiB":[28244,19813,40262],"1 KiB":[18.428,9.5195,35.673],"1 MiB":[76.312,40.014,145.54],"16 KiB":[19.277,10.047,36.988],"16 MiB":[548.1,322.29,932.12],"256 KiB":[32.857,18.452,58.508],"256 MiB":[7414.4,5185.8,10601],"4 KiB":[18.598,9.6259,35.933],"4 MiB":[146.35,80.034,267.63],"64 KiB":[21.993,12.326,39.241],"64 MiB":[2011.1,1233.3,3279.5]},
"collectives: alltoall of 8 ranks":{"1 GiB":[25115,17885,35268],"1 KiB":[10.94,5.9817,20.008],"1 MiB":[50.731,28.019,91.852],"16 KiB":[12.822,6.9747,23.571],"16 MiB":[459.77,288.96,731.55],"256 KiB":[24.567,13.562,44.502],"256 MiB":[6417.3,4577.1,8997.4],"4 KiB":[11.521,6.2992,21.072],"4 MiB":[139.07,85.979,224.93],"64 KiB":[15.987,9.043,28.263],"64 MiB":[1677.6,1058.7,2658.5]},
"collectives: sendrecv of 8 ranks":{"1 GiB":[27747,19753,38977],"1 KiB":[8.61,4.6725,15.866],"1 MiB":[47.403,26.755,83.986],"16 KiB":[10.174,5.533,18.708],"16 MiB":[485.4,306.46,768.85],"256 KiB":[21.124,11.881,37.557],"256 MiB":[7043.3,5021.4,9879.2],"4 KiB":[9.079,4.9394,16.688],"4 MiB":[140.01,87.861,223.1],"64 KiB":[12.99,7.4088,22.776],"64 MiB":[1817.3,1147.3,2878.3]},
"pairs: 8 B between 2 of 8 GPUs":[8.228],
"pairs: 64 MiB between 2 of 8 GPUs":[1817.3]}}""",
    'mi300x': r"""{"device":"MI300X",
"models":["MI300X"],
"num_sms":304,
"times":{
"launches: add_ of one element":{"back to back":[2.009],"host":[2],"in a CUDA graph":[1.74]},
"launches: add_ of one element and synchronize":[3.742],
"copies: pinned host to device":{"1 MiB":[21.855],"16 MiB":[349.56],"256 MiB":[5593.1],"4 KiB":[3.69],"64 KiB":[3.69]},
"copies: device to pinned host":{"1 MiB":[21.855],"16 MiB":[349.56],"256 MiB":[5593.1],"4 KiB":[3.69],"64 KiB":[3.69]},
"copies: on the device":{"1 MiB":[2.67],"16 MiB":[11.458],"256 MiB":[121.84],"4 KiB":[2.009],"64 KiB":[2.009]},
"products: bfloat16 1x4096x4096":[16.603,10.439,26.406],
"products: bfloat16 16x8192x8192":[56.592,35.583,90.005],
"products: bfloat16 128x4096x14336":[55.38,32.08,95.604],
"products: bfloat16 512x4096x4096":[41.349,23.952,71.382],
"products: bfloat16 2048x2048x2048":[38.146,25.724,56.567],
"products: bfloat16 4096x4096x4096":[252.13,170.03,373.89],
"products: bfloat16 4096x14336x4096":[757.25,510.65,1122.9],
"products: bfloat16 8192x8192x8192":[1850.1,1247.6,2743.5],
"products: bfloat16 1000x1000x1000":[10.056,5.8251,17.36],
"products: float16 1x4096x4096":[16.603,10.439,26.406],
"products: float16 16x8192x8192":[56.592,35.583,90.005],
"products: float16 128x4096x14336":[55.38,32.08,95.604],
"products: float16 512x4096x4096":[41.349,23.952,71.382],
"products: float16 2048x2048x2048":[38.146,25.724,56.567],
"products: float16 4096x4096x4096":[252.13,170.03,373.89],
"products: float16 4096x14336x4096":[757.25,510.65,1122.9],
"products: float16 8192x8192x8192":[1850.1,1247.6,2743.5],
"products: float16 1000x1000x1000":[10.056,5.8251,17.36],
"products: float32 1x4096x4096":[14.726],
"products: float32 16x8192x8192":[59.103],
"products: float32 128x4096x14336":[92.007],
"products: float32 512x4096x4096":[105.15],
"products: float32 2048x2048x2048":[105.15],
"products: float32 4096x4096x4096":[841.2],
"products: float32 4096x14336x4096":[2944.1],
"products: float32 8192x8192x8192":[6729.3],
"products: float32 1000x1000x1000":[12.241],
"products: float32 as TF32 1x4096x4096":[14.726],
"products: float32 as TF32 16x8192x8192":[59.103],
"products: float32 as TF32 128x4096x14336":[92.007],
"products: float32 as TF32 512x4096x4096":[105.15],
"products: float32 as TF32 2048x2048x2048":[105.15],
"products: float32 as TF32 4096x4096x4096":[841.2],
"products: float32 as TF32 4096x14336x4096":[2944.1],
"products: float32 as TF32 8192x8192x8192":[6729.3],
"products: float32 as TF32 1000x1000x1000":[12.241],
"attention: forward: batch 1, 32 heads, 32 of keys, 1024 tokens, width 128":[44.733],
"attention: backward: batch 1, 32 heads, 32 of keys, 1024 tokens, width 128":[119.48],
"attention: forward: batch 1, 32 heads, 8 of keys, 4096 tokens, width 128":[404.97],
"attention: backward: batch 1, 32 heads, 8 of keys, 4096 tokens, width 128":[1152.5],
"attention: forward: batch 4, 16 heads, 16 of keys, 2048 tokens, width 64":[140.44],
"attention: backward: batch 4, 16 heads, 16 of keys, 2048 tokens, width 64":[376.38],
"kernels: kernel add":[3.747],
"kernels: kernel softmax":[3.747],
"kernels: kernel norm":[3.747],
"kernels: kernel product":[6.257],
"collectives: all_reduce of 2 ranks":{"1 GiB":[22240,15853,31200],"1 KiB":[10.057,5.6563,17.881],"1 MiB":[45.339,27.164,75.674],"16 KiB":[10.745,6.0619,19.046],"16 MiB":[392.95,249.73,618.31],"256 KiB":[21.754,12.525,37.784],"256 MiB":[5671.6,4050.4,7941.7],"4 KiB":[10.195,5.7386,18.112],"4 MiB":[114.86,74.499,177.09],"64 KiB":[12.947,7.7626,21.594],"64 MiB":[1481.1,936.68,2341.9]},
"collectives: all_gather of 2 ranks":{"1 GiB":[12682,8993.3,17885],"1 KiB":[8.914,5.0498,15.735],"1 MiB":[32.322,19.57,53.382],"16 KiB":[9.362,5.3125,16.498],"16 MiB":[230.53,146.67,362.36],"256 KiB":[16.52,9.5527,28.569],"256 MiB":[3236.8,2300.2,4554.8],"4 KiB":[9.004,5.1031,15.887],"4 MiB":[71.964,47.081,110],"64 KiB":[10.793,6.5062,17.904],"64 MiB":[848.19,534.73,1345.4]},
"collectives: reduce_scatter of 2 ranks":{"1 GiB":[13977,9964.2,19606],"1 KiB":[8.75,4.9765,15.385],"1 MiB":[33.618,20.347,55.546],"16 KiB":[9.225,5.2549,16.195],"16 MiB":[251.8,160.55,394.92],"256 KiB":[16.815,9.8309,28.761],"256 MiB":[3569.9,2550.1,4997.4],"4 KiB":[8.845,5.0327,15.545],"4 MiB":[77.256,50.537,118.1],"64 KiB":[10.743,6.5063,17.739],"64 MiB":[935.64,591.94,1478.9]},
"collectives: broadcast of 2 ranks":{"1 GiB":[23986,16816,34214],"1 KiB":[10.304,5.7056,18.608],"1 MiB":[47.673,28.365,80.123],"16 KiB":[11.091,6.1712,19.933],"16 MiB":[420.67,264.23,669.73],"256 KiB":[23.676,13.183,42.52],"256 MiB":[6146.4,4312.9,8759.4],"4 KiB":[10.462,5.8006,18.869],"4 MiB":[122.27,78.498,190.46],"64 KiB":[13.608,8.0262,23.072],"64 MiB":[1614.6,1006.5,2590.2]},
"collectives: alltoall of 2 ranks":{"1 GiB":[12743,9086.7,17870],"1 KiB":[8.661,4.5606,16.448],"1 MiB":[31.73,17.513,57.487],"16 KiB":[9.903,5.2685,18.614],"16 MiB":[247.01,154.85,394.01],"256 KiB":[16.992,9.4252,30.633],"256 MiB":[3283,2345,4596.2],"4 KiB":[9.051,4.7902,17.102],"4 MiB":[79.327,48.757,129.06],"64 KiB":[11.888,6.6789,21.16],"64 MiB":[872.62,550.84,1382.4]},
"collectives: sendrecv of 2 ranks":{"1 GiB":[23588,16545,33628],"1 KiB":[8.288,4.3774,15.692],"1 MiB":[37.151,21.298,64.805],"16 KiB":[9.208,4.9147,17.252],"16 MiB":[398.37,249.36,636.44],"256 KiB":[16.903,9.6927,29.477],"256 MiB":[5953.3,4180.3,8478.2],"4 KiB":[8.55,4.5334,16.125],"4 MiB":[111.89,70.285,178.14],"64 KiB":[11.059,6.3017,19.408],"64 MiB":[1519.6,948.82,2433.8]},
"pairs: 8 B between 2 of 2 GPUs":[8.088],
"pairs: 64 MiB between 2 of 2 GPUs":[1519.6],
"collectives: all_reduce of 4 ranks":{"1 GiB":[10690,7628.3,14981],"1 KiB":[14.21,7.7373,26.098],"1 MiB":[36.211,20.071,65.329],"16 KiB":[14.532,7.9332,26.62],"16 MiB":[211.27,136.02,328.13],"256 KiB":[19.694,11.499,33.729],"256 MiB":[2780.2,1989.2,3885.7],"4 KiB":[14.274,7.7764,26.201],"4 MiB":[79.704,51.457,123.46],"64 KiB":[15.565,9.0656,26.724],"64 MiB":[737.83,467.94,1163.4]},
"collectives: all_gather of 4 ranks":{"1 GiB":[6203.2,4426.7,8692.6],"1 KiB":[11.085,6.1975,19.827],"1 MiB":[26.273,14.98,46.081],"16 KiB":[11.307,6.3304,20.196],"16 MiB":[128.05,82.965,197.63],"256 KiB":[14.871,8.8682,24.937],"256 MiB":[1627.4,1164.8,2273.8],"4 KiB":[11.129,6.224,19.9],"4 MiB":[52.217,34.217,79.686],"64 KiB":[12.02,7.1774,20.13],"64 MiB":[431.69,274.29,679.41]},
"collectives: reduce_scatter of 4 ranks":{"1 GiB":[6320,4449.1,8977.6],"1 KiB":[10.803,6.0583,19.264],"1 MiB":[24.84,13.941,44.259],"16 KiB":[11.009,6.1812,19.608],"16 MiB":[129.38,83.295,200.97],"256 KiB":[14.302,8.5157,24.02],"256 MiB":[1664.7,1172.5,2363.4],"4 KiB":[10.844,6.0829,19.332],"4 MiB":[52.634,34.375,80.592],"64 KiB":[11.667,6.9833,19.492],"64 MiB":[436.69,275.18,693.01]},
"collectives: broadcast of 4 ranks":{"1 GiB":[8243.6,5782.4,11752],"1 KiB":[12.289,6.7108,22.504],"1 MiB":[21.078,11.626,38.215],"16 KiB":[12.551,6.8698,22.93],"16 MiB":[152.24,97.416,237.91],"256 KiB":[13.538,7.9071,23.179],"256 MiB":[2143.1,1504.4,3053],"4 KiB":[12.342,6.7431,22.59],"4 MiB":[52.232,33.747,80.843],"64 KiB":[13.39,7.8158,22.94],"64 MiB":[551.59,346.34,878.47]},
"collectives: alltoall of 4 ranks":{"1 GiB":[6527.2,4660.2,9142.2],"1 KiB":[9.48,5.0588,17.765],"1 MiB":[24.915,13.499,45.984],"16 KiB":[10.476,5.621,19.524],"16 MiB":[144.9,88.915,236.12],"256 KiB":[15.527,8.6116,27.996],"256 MiB":[1716.4,1225.3,2404.2],"4 KiB":[9.8,5.245,18.311],"4 MiB":[52.784,31.354,88.862],"64 KiB":[11.97,6.7694,21.166],"64 MiB":[474.93,297.86,757.28]},
"collectives: sendrecv of 4 ranks":{"1 GiB":[23588,16545,33628],"1 KiB":[8.288,4.3774,15.692],"1 MiB":[37.151,21.298,64.805],"16 KiB":[9.208,4.9147,17.252],"16 MiB":[398.37,249.36,636.44],"256 KiB":[16.903,9.6927,29.477],"256 MiB":[5953.3,4180.3,8478.2],"4 KiB":[8.55,4.5334,16.125],"4 MiB":[111.89,70.285,178.14],"64 KiB":[11.059,6.3017,19.408],"64 MiB":[1519.6,948.82,2433.8]},
"pairs: 8 B between 2 of 4 GPUs":[8.088],
"pairs: 64 MiB between 2 of 4 GPUs":[1519.6],
"collectives: all_reduce of 8 ranks":{"1 GiB":[6036.9,4584.2,7949.9],"1 KiB":[17.966,13.614,23.709],"1 MiB":[38.869,31.777,47.543],"16 KiB":[18.272,13.9,24.02],"16 MiB":[137.03,105.39,178.17],"256 KiB":[23.176,17.952,29.92],"256 MiB":[1554.6,1178.8,2050.2],"4 KiB":[18.027,13.671,23.771],"4 MiB":[60.196,46.716,77.565],"64 KiB":[19.253,14.447,25.658],"64 MiB":[420.79,315.66,560.91]},
"collectives: all_gather of 8 ranks":{"1 GiB":[3011.5,2273.9,3988.2],"1 KiB":[13.013,10.379,16.315],"1 MiB":[23.465,19.278,28.561],"16 KiB":[13.167,10.523,16.476],"16 MiB":[78.772,61.266,101.28],"256 KiB":[15.619,12.399,19.675],"256 MiB":[796.54,607.15,1045],"4 KiB":[13.044,10.408,16.347],"4 MiB":[41.807,32.08,54.484],"64 KiB":[13.657,10.659,17.498],"64 MiB":[226.95,170.75,301.63]},
"collectives: reduce_scatter of 8 ranks":{"1 GiB":[3012.2,2275.4,3987.6],"1 KiB":[12.634,10.123,15.768],"1 MiB":[23.086,19.011,28.034],"16 KiB":[12.788,10.266,15.929],"16 MiB":[81.367,63.079,104.96],"256 KiB":[15.24,12.142,19.128],"256 MiB":[797.65,607.53,1047.3],"4 KiB":[12.665,10.152,15.801],"4 MiB":[44.553,33.596,59.083],"64 KiB":[13.278,10.404,16.946],"64 MiB":[228.94,172.57,303.72]},
"collectives: broadcast of 8 ranks":{"1 GiB":[3652.4,2696.8,4946.7],"1 KiB":[13.721,10.494,17.94],"1 MiB":[21.611,17.534,26.635],"16 KiB":[13.896,10.657,18.119],"16 MiB":[79.15,60.092,104.25],"256 KiB":[14.84,11.466,19.207],"256 MiB":[933.96,692.84,1259],"4 KiB":[13.756,10.527,17.976],"4 MiB":[40.216,29.39,55.031],"64 KiB":[14.456,10.898,19.176],"64 MiB":[248.64,183.79,336.37]},
"collectives: alltoall of 8 ranks":{"1 GiB":[3161,2382.3,4194.2],"1 KiB":[10.074,7.5241,13.488],"1 MiB":[17.096,12.395,23.58],"16 KiB":[10.512,7.8972,13.993],"16 MiB":[73.908,53.939,101.27],"256 KiB":[12.781,9.3945,17.388],"256 MiB":[831.62,628.85,1099.8],"4 KiB":[10.214,7.6461,13.644],"4 MiB":[30.143,21.794,41.691],"64 KiB":[11.177,8.2318,15.176],"64 MiB":[232.44,171.25,315.5]},
"collectives: sendrecv of 8 ranks":{"1 GiB":[23724,17802,31615],"1 KiB":[8.166,5.861,11.378],"1 MiB":[38.234,28.23,51.784],"16 KiB":[9.195,6.73,12.563],"16 MiB":[404.34,298.58,547.56],"256 KiB":[17.341,12.757,23.573],"256 MiB":[5996.2,4507.5,7976.8],"4 KiB":[8.464,6.1195,11.707],"4 MiB":[114.41,84.961,154.07],"64 KiB":[11.194,8.1402,15.394],"64 MiB":[1534.8,1128.1,2088.2]},
"pairs: 8 B between 2 of 8 GPUs":[7.934],
"pairs: 64 MiB between 2 of 8 GPUs":[1534.8]}}""",
    'values': r"""{"values":{
"hangs: one leaves out on 2 ranks":{"calls":[["all_reduce of 8","all_reduce of 8"],["all_reduce of 8"]],"ended":[1]},
"hangs: all receive first on 2 ranks":{"calls":[["recv of 8"],["recv of 8"]],"ended":[]},
"hangs: one leaves out on 4 ranks":{"calls":[["all_reduce of 8","all_reduce of 8"],["all_reduce of 8","all_reduce of 8"],["all_reduce of 8","all_reduce of 8"],["all_reduce of 8"]],"ended":[3]},
"hangs: all receive first on 4 ranks":{"calls":[["recv of 8"],["recv of 8"],["recv of 8"],["recv of 8"]],"ended":[]},
"hangs: one leaves out on 8 ranks":{"calls":[["all_reduce of 8","all_reduce of 8"],["all_reduce of 8","all_reduce of 8"],["all_reduce of 8","all_reduce of 8"],["all_reduce of 8","all_reduce of 8"],["all_reduce of 8","all_reduce of 8"],["all_reduce of 8","all_reduce of 8"],["all_reduce of 8","all_reduce of 8"],["all_reduce of 8"]],"ended":[7]},
"hangs: all receive first on 8 ranks":{"calls":[["recv of 8"],["recv of 8"],["recv of 8"],["recv of 8"],["recv of 8"],["recv of 8"],["recv of 8"],["recv of 8"]],"ended":[]},
"kernels: add":{"sample":[-1.2633,-0.4443,0.6962,1.3068,-3.7944,-1.754,0.5267,1.1356]},
"kernels: softmax":{"sample":[0.0013,0.0007,0.0013,0.0002,0.0002,0.0157,0.0009,0.0001]},
"kernels: norm":{"sample":[0.3838,0.0614,0.4139,-0.4555,-0.6851,1.7804,0.2649,-1.0116]},
"kernels: product":{"sample":[13.7742,21.6375,-23.7437,-34.9017,-6.9431,4.6096,-0.5898,2.7958]},
"programs: tensor parallel on 2 ranks":{"ranks":[{"calls":["all_reduce of 32","all_reduce of 32"],"values":[-13,-26,-39,39,26,13,-1558]},{"calls":["all_reduce of 32","all_reduce of 32"],"values":[-13,-26,-39,39,26,13,-1558]}]},
"programs: ring on 2 ranks":{"ranks":[{"calls":["batch_isend_irecv","batch_isend_irecv"],"values":[-7,8,2,-4,-3,5,37]},{"calls":["batch_isend_irecv","batch_isend_irecv"],"values":[-8,7,1,-5,3,4,20]}]},
"programs: experts on 2 ranks":{"ranks":[{"calls":["all_to_all_single of 2","all_to_all_single of 12","all_to_all_single of 12"],"values":[-3,2,0,-2,6,2,37]},{"calls":["all_to_all_single of 2","all_to_all_single of 20","all_to_all_single of 20"],"values":[-2,3,1,-1,-3,2,16]}]},
"programs: sharded on 2 ranks":{"ranks":[{"calls":["all_gather_into_tensor of 12","reduce_scatter_tensor of 6","all_gather_into_tensor of 12","reduce_scatter_tensor of 6"],"values":[-24,16,0,-16,24,8,112]},{"calls":["all_gather_into_tensor of 12","reduce_scatter_tensor of 6","all_gather_into_tensor of 12","reduce_scatter_tensor of 6"],"values":[-8,-24,16,0,-16,24,56]}]},
"programs: groups on 2 ranks":{"ranks":[{"calls":["new_group","new_group","all_reduce of 8","all_reduce of 8","broadcast of 8","barrier"],"values":[-3,2,0,-2,3,1,3]},{"calls":["new_group","new_group","all_reduce of 8","all_reduce of 8","broadcast of 8","barrier"],"values":[-2,3,1,-1,-3,2,34]}]},
"programs: tensor parallel on 4 ranks":{"ranks":[{"calls":["all_reduce of 32","all_reduce of 32"],"values":[-100,33,89,-37,-163,152,-6126]},{"calls":["all_reduce of 32","all_reduce of 32"],"values":[-100,33,89,-37,-163,152,-6126]},{"calls":["all_reduce of 32","all_reduce of 32"],"values":[-100,33,89,-37,-163,152,-6126]},{"calls":["all_reduce of 32","all_reduce of 32"],"values":[-100,33,89,-37,-163,152,-6126]}]},
"programs: ring on 4 ranks":{"ranks":[{"calls":["batch_isend_irecv","batch_isend_irecv","batch_isend_irecv","batch_isend_irecv"],"values":[-14,1,16,-4,-17,12,-96]},{"calls":["batch_isend_irecv","batch_isend_irecv","batch_isend_irecv","batch_isend_irecv"],"values":[-12,-11,18,-2,-8,7,-216]},{"calls":["batch_isend_irecv","batch_isend_irecv","batch_isend_irecv","batch_isend_irecv"],"values":[-14,1,16,-4,-3,-2,-124]},{"calls":["batch_isend_irecv","batch_isend_irecv","batch_isend_irecv","batch_isend_irecv"],"values":[-20,9,10,-10,-2,13,-44]}]},
"programs: experts on 4 ranks":{"ranks":[{"calls":["all_to_all_single of 4","all_to_all_single of 28","all_to_all_single of 28"],"values":[-3,2,0,-2,6,2,103]},{"calls":["all_to_all_single of 4","all_to_all_single of 32","all_to_all_single of 32"],"values":[-2,3,1,-1,-3,2,91]},{"calls":["all_to_all_single of 4","all_to_all_single of 36","all_to_all_single of 36"],"values":[-1,-3,2,0,-2,3,197]},{"calls":["all_to_all_single of 4","all_to_all_single of 28","all_to_all_single of 28"],"values":[0,-2,3,1,-2,-6,-46]}]},
"programs: sharded on 4 ranks":{"ranks":[{"calls":["all_gather_into_tensor of 24","reduce_scatter_tensor of 6","all_gather_into_tensor of 24","reduce_scatter_tensor of 6"],"values":[-351,234,0,-234,351,117,1638]},{"calls":["all_gather_into_tensor of 24","reduce_scatter_tensor of 6","all_gather_into_tensor of 24","reduce_scatter_tensor of 6"],"values":[-117,-351,234,0,-234,351,819]},{"calls":["all_gather_into_tensor of 24","reduce_scatter_tensor of 6","all_gather_into_tensor of 24","reduce_scatter_tensor of 6"],"values":[117,-117,-351,234,0,-234,-1638]},{"calls":["all_gather_into_tensor of 24","reduce_scatter_tensor of 6","all_gather_into_tensor of 24","reduce_scatter_tensor of 6"],"values":[351,117,-117,-351,234,0,0]}]},
"programs: groups on 4 ranks":{"ranks":[{"calls":["new_group","new_group","all_reduce of 8","all_reduce of 8","broadcast of 8","barrier"],"values":[-4,-1,2,-2,1,4,57]},{"calls":["new_group","new_group","all_reduce of 8","all_reduce of 8","broadcast of 8","barrier"],"values":[-2,1,4,0,-4,-1,105]},{"calls":["new_group","new_group","all_reduce of 8","all_reduce of 8","broadcast of 8","barrier"],"values":[-4,-1,2,-2,1,4,57]},{"calls":["new_group","new_group","all_reduce of 8","all_reduce of 8","broadcast of 8","barrier"],"values":[-2,1,4,0,-4,-1,105]}]},
"programs: tensor parallel on 8 ranks":{"ranks":[{"calls":["all_reduce of 32","all_reduce of 32"],"values":[-187,152,-300,39,105,-74,-9610]},{"calls":["all_reduce of 32","all_reduce of 32"],"values":[-187,152,-300,39,105,-74,-9610]},{"calls":["all_reduce of 32","all_reduce of 32"],"values":[-187,152,-300,39,105,-74,-9610]},{"calls":["all_reduce of 32","all_reduce of 32"],"values":[-187,152,-300,39,105,-74,-9610]},{"calls":["all_reduce of 32","all_reduce of 32"],"values":[-187,152,-300,39,105,-74,-9610]},{"calls":["all_reduce of 32","all_reduce of 32"],"values":[-187,152,-300,39,105,-74,-9610]},{"calls":["all_reduce of 32","all_reduce of 32"],"values":[-187,152,-300,39,105,-74,-9610]},{"calls":["all_reduce of 32","all_reduce of 32"],"values":[-187,152,-300,39,105,-74,-9610]}]},
"programs: ring on 8 ranks":{"ranks":[{"calls":["batch_isend_irecv","batch_isend_irecv","batch_isend_irecv","batch_isend_irecv","batch_isend_irecv","batch_isend_irecv","batch_isend_irecv","batch_isend_irecv"],"values":[-10,-5,14,5,-25,8,-118]},{"calls":["batch_isend_irecv","batch_isend_irecv","batch_isend_irecv","batch_isend_irecv","batch_isend_irecv","batch_isend_irecv","batch_isend_irecv","batch_isend_irecv"],"values":[3,-27,6,11,2,-7,-261]},{"calls":["batch_isend_irecv","batch_isend_irecv","batch_isend_irecv","batch_isend_irecv","batch_isend_irecv","batch_isend_irecv","batch_isend_irecv","batch_isend_irecv"],"values":[8,-1,-10,9,21,-30,20]},{"calls":["batch_isend_irecv","batch_isend_irecv","batch_isend_irecv","batch_isend_irecv","batch_isend_irecv","batch_isend_irecv","batch_isend_irecv","batch_isend_irecv"],"values":[5,17,-34,-1,32,-5,277]},{"calls":["batch_isend_irecv","batch_isend_irecv","batch_isend_irecv","batch_isend_irecv","batch_isend_irecv","batch_isend_irecv","batch_isend_irecv","batch_isend_irecv"],"values":[-6,27,-10,-19,35,12,174]},{"calls":["batch_isend_irecv","batch_isend_irecv","batch_isend_irecv","batch_isend_irecv","batch_isend_irecv","batch_isend_irecv","batch_isend_irecv","batch_isend_irecv"],"values":[-25,29,6,-45,30,21,159]},{"calls":["batch_isend_irecv","batch_isend_irecv","batch_isend_irecv","batch_isend_irecv","batch_isend_irecv","batch_isend_irecv","batch_isend_irecv","batch_isend_irecv"],"values":[-52,23,14,-23,17,22,-104]},{"calls":["batch_isend_irecv","batch_isend_irecv","batch_isend_irecv","batch_isend_irecv","batch_isend_irecv","batch_isend_irecv","batch_isend_irecv","batch_isend_irecv"],"values":[-31,9,14,-9,-4,15,-111]}]},
"programs: experts on 8 ranks":{"ranks":[{"calls":["all_to_all_single of 8","all_to_all_single of 60","all_to_all_single of 60"],"values":[-3,2,0,-2,6,2,-1015]},{"calls":["all_to_all_single of 8","all_to_all_single of 68","all_to_all_single of 68"],"values":[-2,3,1,-1,-3,2,-1214]},{"calls":["all_to_all_single of 8","all_to_all_single of 64","all_to_all_single of 64"],"values":[-1,-3,2,0,-2,3,556]},{"calls":["all_to_all_single of 8","all_to_all_single of 60","all_to_all_single of 60"],"values":[0,-2,3,1,-2,-6,966]},{"calls":["all_to_all_single of 8","all_to_all_single of 68","all_to_all_single of 68"],"values":[1,-1,-3,2,0,-2,66]},{"calls":["all_to_all_single of 8","all_to_all_single of 64","all_to_all_single of 64"],"values":[2,0,-2,3,1,-1,-165]},{"calls":["all_to_all_single of 8","all_to_all_single of 60","all_to_all_single of 60"],"values":[3,1,-1,-3,4,0,-1022]},{"calls":["all_to_all_single of 8","all_to_all_single of 68","all_to_all_single of 68"],"values":[-3,2,0,-2,3,1,450]}]},
"programs: sharded on 8 ranks":{"ranks":[{"calls":["all_gather_into_tensor of 48","reduce_scatter_tensor of 6","all_gather_into_tensor of 48","reduce_scatter_tensor of 6"],"values":[-4515,3010,0,-3010,4515,1505,21070]},{"calls":["all_gather_into_tensor of 48","reduce_scatter_tensor of 6","all_gather_into_tensor of 48","reduce_scatter_tensor of 6"],"values":[-1505,-4515,3010,0,-3010,4515,10535]},{"calls":["all_gather_into_tensor of 48","reduce_scatter_tensor of 6","all_gather_into_tensor of 48","reduce_scatter_tensor of 6"],"values":[1505,-1505,-4515,3010,0,-3010,-21070]},{"calls":["all_gather_into_tensor of 48","reduce_scatter_tensor of 6","all_gather_into_tensor of 48","reduce_scatter_tensor of 6"],"values":[4515,1505,-1505,-4515,3010,0,0]},{"calls":["all_gather_into_tensor of 48","reduce_scatter_tensor of 6","all_gather_into_tensor of 48","reduce_scatter_tensor of 6"],"values":[-3010,4515,1505,-1505,-4515,3010,0]},{"calls":["all_gather_into_tensor of 48","reduce_scatter_tensor of 6","all_gather_into_tensor of 48","reduce_scatter_tensor of 6"],"values":[0,-3010,4515,1505,-1505,-4515,-21070]},{"calls":["all_gather_into_tensor of 48","reduce_scatter_tensor of 6","all_gather_into_tensor of 48","reduce_scatter_tensor of 6"],"values":[3010,0,-3010,4515,1505,-1505,10535]},{"calls":["all_gather_into_tensor of 48","reduce_scatter_tensor of 6","all_gather_into_tensor of 48","reduce_scatter_tensor of 6"],"values":[-4515,3010,0,-3010,4515,1505,21070]}]},
"programs: groups on 8 ranks":{"ranks":[{"calls":["new_group","new_group","all_reduce of 8","all_reduce of 8","broadcast of 8","barrier"],"values":[0,-1,-2,-3,3,2,-6]},{"calls":["new_group","new_group","all_reduce of 8","all_reduce of 8","broadcast of 8","barrier"],"values":[-3,3,2,1,0,-1,27]},{"calls":["new_group","new_group","all_reduce of 8","all_reduce of 8","broadcast of 8","barrier"],"values":[0,-1,-2,-3,3,2,-6]},{"calls":["new_group","new_group","all_reduce of 8","all_reduce of 8","broadcast of 8","barrier"],"values":[-3,3,2,1,0,-1,27]},{"calls":["new_group","new_group","all_reduce of 8","all_reduce of 8","broadcast of 8","barrier"],"values":[0,-1,-2,-3,3,2,-6]},{"calls":["new_group","new_group","all_reduce of 8","all_reduce of 8","broadcast of 8","barrier"],"values":[-3,3,2,1,0,-1,27]},{"calls":["new_group","new_group","all_reduce of 8","all_reduce of 8","broadcast of 8","barrier"],"values":[0,-1,-2,-3,3,2,-6]},{"calls":["new_group","new_group","all_reduce of 8","all_reduce of 8","broadcast of 8","barrier"],"values":[-3,3,2,1,0,-1,27]}]}}}""",
}

OK, FAILED, USAGE, MISSING = 0, 1, 2, 4
LIMIT_S = 300.0
# Seconds of each phase; the whole ends at the limit of all.
ALONE = {
    "launches": 30,
    "copies": 30,
    "products": 60,
    "attention": 30,
    "kernels": 60,
    "own kernels": 60,
}
TOGETHER_S = {"collectives": 60, "pairs": 40, "programs": 40, "own program": 60}
HANG_S = 12.0  # Of each program that hangs, once all its ranks are ready.
START_HANG_S = 60.0  # Until they are.
PHASE_NAMES = (*ALONE, *TOGETHER_S, NCCL_TESTS, "hangs")
LEAST_LIMIT_S = 30.0
LEAST_S = 10.0  # With less left, no phase is begun.


def main(words: list[str]) -> int:
    """Run the kit; return its exit status."""
    given = parser().parse_args(words)
    if not given.worker and (given.limit < LEAST_LIMIT_S or given.gpus < 0):
        print(f"kit: expected --limit of {LEAST_LIMIT_S:g} s or more, and --gpus of 1 or more")
        return USAGE
    unknown = {each for each in given.only.split(",") if each} - set(PHASE_NAMES)
    if unknown:
        print(
            f"kit: no phase {', '.join(sorted(unknown))}; expected some of {', '.join(PHASE_NAMES)}"
        )
        return USAGE
    if given.worker:
        if given.parent:
            end_with_parent(given.parent, given.alarm)
        to = Path(given.to) if given.to else None
        work(given.worker, to, given.limit, is_cold=given.cold)
        return OK
    if os.name != "posix" or find_spec("torch") is None:
        print("kit: it needs Linux and torch; to fix: run it in the environment of your programs")
        return MISSING
    if globals()["torch"] is None:  # In the joined script, where its import failed.
        print("kit: torch cannot be imported; to fix: python -c 'import torch' says why")
        return MISSING
    for each in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, stopped)
    return Run(given).run()


def stopped(_number: int, _frame: object) -> None:
    """End as by Ctrl-C: workers are ended, and the result is written."""
    raise KeyboardInterrupt


def parser() -> argparse.ArgumentParser:
    """Return the options."""
    made = argparse.ArgumentParser(
        prog="kit.py",
        description="Measure this machine's GPUs, and write what was measured beside what simrank "
        "predicted. It sends nothing, and reads no file of yours.",
        epilog="exit status: 0 no phase failed; 1 one did, the rest is written; 2 bad "
        "usage; 4 torch or GPUs are missing",
    )
    made.add_argument("--gpus", type=int, default=0, help="GPUs to use [all, at most 8]")
    made.add_argument(
        "--limit", type=float, default=LIMIT_S, help="seconds in all, of each phase its share [300]"
    )
    made.add_argument("--only", default="", help="phases, with commas between them [all]")
    made.add_argument("--out", default="kit.json", help="file to write [kit.json]")
    made.add_argument("--hang-limit", type=float, default=HANG_S, help="seconds of a hang [12]")
    made.add_argument("--worker", default="", help=argparse.SUPPRESS)
    made.add_argument("--cold", action="store_true", help=argparse.SUPPRESS)
    made.add_argument("--parent", type=int, default=0, help=argparse.SUPPRESS)
    made.add_argument("--alarm", type=int, default=0, help=argparse.SUPPRESS)
    made.add_argument("--to", default="", help=argparse.SUPPRESS)
    return made


class Run:
    """A run of all phases.

    Args:
        given: The options.
    """

    def __init__(self, given: argparse.Namespace) -> None:
        self._start, self._limit_s = time.monotonic(), given.limit
        self._share = min(1.0, given.limit / LIMIT_S)  # Of each phase's limit.
        self._gpus, self._out, self._hang_s = given.gpus, free(Path(given.out)), given.hang_limit
        self._only = [each for each in given.only.split(",") if each]
        self.rows: list[dict[str, Any]] = []
        self.hangs: list[dict[str, Any]] = []
        self.failures: list[dict[str, str]] = []
        self.facts: dict[str, Any] = {}
        self._now = "all"  # The phase that runs.

    def run(self) -> int:
        """Run the phases, write the result after each, and print what it says."""
        try:
            self._write()
        except OSError as error:
            print(f"kit: {self._out} cannot be written: {error.strerror}; to fix: --out FILE")
            return USAGE
        try:
            status = self._phases()
        except KeyboardInterrupt:
            self.failures.append({"phase": self._now, "reason": "interrupted"})
            status = FAILED
        except Exception as error:  # What was measured is worth having.
            text = clean(f"{type(error).__name__}: {error}")[:300]
            self.failures.append({"phase": self._now, "reason": text})
            status = FAILED
        document = self._write()
        self._say(f"wrote {self._out} ({self._out.stat().st_size / 1024:.0f} KiB)")
        for line in document["summary"]:
            print(f"  {line}")
        count = sum(row["kind"] == "value" for row in self.rows)
        if count or self.hangs:
            found = "all as predicted" if not document["differs"] else "see DIFFERS"
            found = found if PARTS else "without predictions"
            print(f"  {count} values and orders of calls, {len(self.hangs)} hangs: {found}")
        for line in notes_of(self.rows):
            print(f"  left out: {line}")
        for line in document["differs"]:
            print(f"  DIFFERS: {line}")
        for failure in self.failures:
            print(f"  FAILED: {failure['phase']}: {failure['reason']}")
        return status

    def _write(self) -> dict[str, Any]:
        """Write all that is known, and return it; a file is there as a whole or not."""
        document = self._document()
        other = self._out.with_name(f"{self._out.name}.part")
        other.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
        other.replace(self._out)
        return document

    def _phases(self) -> int:
        done = self._phase("machine", 1, 60)
        self.facts = done.rows[0]["values"] if done.rows else {}
        self.rows.clear()
        found = self.facts.get("device")
        if found is None:
            self.failures.append({"phase": "machine", "reason": "torch sees no GPU"})
            return MISSING
        count = min(self._gpus or found["count"], found["count"], 8)
        if self._gpus > count:
            print(f"{self._gpus} GPUs were asked for: {count} are there, or are the most")
        print(f"{count} x {found['name']}, torch {self.facts['torch']}", flush=True)
        if self.facts["other_processes"]:
            print("other processes use these GPUs: times will be longer", flush=True)
        for phase, limit_s in ALONE.items():
            if self._is_asked(phase):
                self._phase(phase, 1, limit_s)
        if count > 1:
            self._together(count)
        return FAILED if self.failures else OK

    def _together(self, count: int) -> None:
        """Run the phases of several GPUs."""
        asked = [(phase, limit) for phase, limit in TOGETHER_S.items() if self._is_asked(phase)]
        for ranks in worlds(count):
            for phase, limit_s in asked:
                if phase != "pairs" or ranks == max(worlds(count)):
                    self._phase(phase, ranks, limit_s)
        if self._is_asked(NCCL_TESTS):
            self._say(NCCL_TESTS)
            rows, failed = nccl_tests(count, self._start + self._limit_s - LEAST_S)
            self.rows += rows
            self.failures += [
                {"phase": NCCL_TESTS, "reason": f"{each}: no times"} for each in failed
            ]
        if self._is_asked("hangs"):
            for phase in HANGS:
                self._hang(phase, count, self._hang_s)

    def _is_asked(self, phase: str) -> bool:
        if phase.startswith("own ") and phase.removeprefix("own ") not in OWN:
            return False
        return not self._only or phase in self._only

    def _phase(self, phase: str, ranks: int, limit_s: float) -> Done:
        left_s = self._limit_s - (time.monotonic() - self._start)
        title = f"{phase} on {ranks} GPUs" if ranks > 1 else phase
        if left_s < LEAST_S:
            self.failures.append({"phase": title, "reason": "no time was left"})
            return Done()
        self._say(title)
        self._now = title
        done = Done()
        try:
            run_phase(phase, ranks, min(limit_s * self._share, left_s), done)
        finally:
            self.rows += merged(done.rows)
            if done.failure:
                self.failures.append({"phase": title, "reason": done.failure})
        self._write()
        return done

    def _hang(self, phase: str, ranks: int, limit_s: float) -> None:
        """Run a program that is to hang; to end is the failure."""
        left_s = self._limit_s - (time.monotonic() - self._start)
        if left_s < LEAST_S:
            self.failures.append({"phase": phase, "reason": "no time was left"})
            return
        self._say(f"{phase} on {ranks} GPUs, which is to hang")
        done = Done()
        run_phase(phase, ranks, min(START_HANG_S, left_s), done, limit_s)
        if done.failure and not done.is_late:
            self.failures.append({"phase": phase, "reason": done.failure})
            return
        found = {"name": f"{phase} on {ranks} ranks", **hang_of(done.rows, ranks)}
        self.hangs.append({**found, "hung": done.is_late})

    def _document(self) -> dict[str, Any]:
        predictions = {name: json.loads(text) for name, text in PARTS.items()}
        found = self.facts.get("device") or {"name": "", "num_sms": 0}
        name = chosen(predictions, found["name"], found["num_sms"])
        times = flat(predictions[name]["times"]) if name else {}
        values = predictions.get(VALUES, {}).get("values", {})
        measured: dict[str, Any] = {
            "machine": self.facts,
            "rows": self.rows,
            "hangs": self.hangs,
            "failures": self.failures,
            "cluster": name,
            "seconds": round(time.monotonic() - self._start, 1),
        }
        hashes = {part: sha256(text) for part, text in PARTS.items()}
        return {
            "format": FORMAT,
            "version": 1,
            "kit": {**KIT, "hashes": hashes, "predictions_sha256": hash_of_parts(hashes)},
            "cluster": name,
            "predictions": {part: PARTS[part] for part in (name, VALUES) if part in PARTS},
            "measured": measured,
            "measured_sha256": sha256(text_of(measured)),
            "summary": summary(times, self.rows),
            "differs": differences(values, self.rows) + other_hangs(values, self.hangs),
        }

    def _say(self, text: str) -> None:
        print(f"[{time.monotonic() - self._start:4.0f} s] {text}", flush=True)


def free(path: Path) -> Path:
    """Return a path, or one beside it with a number where there is a result already."""
    number, found = 1, path
    while found.is_file():
        number += 1
        found = path.with_name(f"{path.stem}-{number}{path.suffix}")
    return found


def worlds(count: int) -> Iterator[int]:
    """Yield the numbers of ranks to measure: all, of which some have predictions, then fewer."""
    yield from sorted({count, *(ranks for ranks in (8, 4, 2) if ranks < count)}, reverse=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

