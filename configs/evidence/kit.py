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
The predictions were made before; their hash is 5b04817a7307fdace7c2816f47ba18c75b24dfdff953e8af42404373364de517.
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import json
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
        row = {"kind": kind, "phase": phase, **facts}
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
        "links": lambda: links(command("nvidia-smi", "topo", "-m")),
        "other_processes": lambda: len(
            command("nvidia-smi", "--query-compute-apps=pid", "--format=csv,noheader").split()
        ),
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
        text = command("nvidia-smi", f"--query-gpu={','.join(names)}", "--format=csv,noheader")
        lines = [line.split(", ") for line in text.splitlines() if line.strip()]
        if lines:
            return [dict(zip(names, line)) for line in lines]
    return []


def links(table: str) -> list[list[str]]:
    """Return the kinds of links between GPUs, of nvidia-smi's table."""
    found = []
    for line in table.splitlines():
        words = re.sub(r"\x1b\[[0-9;]*m", "", line).split()
        if words and re.fullmatch(r"GPU\d+", words[0]) and len(words) > 1 and LINK.match(words[1]):
            found.append([word for word in words[1:] if LINK.match(word)])
    return [row[: len(found)] for row in found]


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
    on_device = torch.zeros(size, dtype=torch.uint8, device="cuda")
    other = torch.zeros_like(on_device)
    pinned = torch.zeros(size, dtype=torch.uint8, pin_memory=True)
    bodies: dict[str, Body] = {
        "pinned host to device": lambda _: on_device.copy_(pinned, non_blocking=True),
        "device to pinned host": lambda _: pinned.copy_(on_device, non_blocking=True),
        "on the device": lambda _: other.copy_(on_device),
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
MEMORY_SHARE = 4  # No buffer has more than this part of the free memory.


def collectives(rows: Rows) -> None:
    """Measure the collectives of all ranks, and messages around a ring of them, size by size."""
    ranks = dist.get_world_size()
    for size in SIZES:
        for name, make in CALLS.items():
            free, _ = torch.cuda.mem_get_info()
            if not agreed(not rows.is_over() and size * 2 < free // MEMORY_SHARE):
                rows.add("note", "collectives", text=f"stopped before {name}, {size_text(size)}")
                return
            times = host_us(make(size), 20 if size < LARGE_BYTES else 5)
            title = f"{name} of {ranks} ranks, {size_text(size)}"
            facts = {"collective": name, "bytes": size, "ranks": ranks, "dtype": "float32"}
            rows.times("collectives", title, times, **facts)


def agreed(is_going_on: bool) -> bool:
    """Return whether all ranks go on, so that all do the same."""
    said = torch.tensor([is_going_on], dtype=torch.int32, device="cuda")
    dist.all_reduce(said, op=dist.ReduceOp.MIN)
    return bool(said.item())


def host_us(body: Callable[[], object], number: int) -> list[float]:
    """Return the mean time of a call over ranks, launched back to back, per repeat."""
    for _ in range(5):
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
        dist.all_reduce(spent)
        found.append(spent.item() / dist.get_world_size())
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
    """Run the author's function on all ranks twice, and note values and the second time."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    function = getattr(own_module("program", rank), OWN["function"])
    value = function(rank, ranks)
    torch.cuda.synchronize()
    dist.barrier()
    start = time.perf_counter()
    function(rank, ranks)
    torch.cuda.synchronize()
    spent_us = (time.perf_counter() - start) * 1e6
    title, facts = f"{OWN['function']} on {ranks} ranks", {"values": sampled(value), "calls": []}
    rows.add_of_each("part", "own program", name=title, rank=rank, **facts)
    rows.times("own program", title, [spent_us])  # One time, of rank 0.


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
OTHERS = ("MIG", "PCIE", "NVL")  # In names of devices that are no modules.
SAME_SMS = 0.05
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
        if name != VALUES and each["models"][0] in words:
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


def alike(mine: Sequence[float], theirs: Sequence[float]) -> bool:
    """Return whether samples are equal but for rounding."""
    large = max(map(abs, theirs), default=0.0) or 1.0
    pairs = zip(mine, theirs)
    return len(mine) == len(theirs) and all(abs(a - b) <= CLOSE * large for a, b in pairs)


def hang_of(rows: Sequence[Mapping[str, Any]], ranks: int) -> dict[str, Any]:
    """Return the calls of each rank of a program that hangs, and the ranks that ended."""
    calls = [
        [r["call"] for r in rows if r["kind"] == "call" and r["rank"] == k] for k in range(ranks)
    ]
    ended = sorted(row["rank"] for row in rows if row["kind"] == "end")
    return {"calls": calls, "ended": ended}


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
    return lines


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

KIT = {'simrank': '0.1.0', 'predictions_sha256': '5b04817a7307fdace7c2816f47ba18c75b24dfdff953e8af42404373364de517'}
PARTS = {
    'hgx_a100': r"""{"device":"A100 SXM 80GB",
"models":["A100"],
"num_sms":108,
"times":{
"launches: add_ of one element, host":[2.0],
"launches: add_ of one element, back to back":[2.009],
"launches: add_ of one element, in a CUDA graph":[1.74],
"launches: add_ of one element and synchronize":[3.742],
"copies: pinned host to device, 4 KiB":[5.01],
"copies: device to pinned host, 4 KiB":[5.01],
"copies: on the device, 4 KiB":[2.009],
"copies: pinned host to device, 64 KiB":[5.01],
"copies: device to pinned host, 64 KiB":[5.01],
"copies: on the device, 64 KiB":[2.009],
"copies: pinned host to device, 1 MiB":[43.701],
"copies: device to pinned host, 1 MiB":[43.701],
"copies: on the device, 1 MiB":[4.161],
"copies: pinned host to device, 16 MiB":[699.122],
"copies: device to pinned host, 16 MiB":[699.122],
"copies: on the device, 16 MiB":[23.384],
"copies: pinned host to device, 256 MiB":[11185.477],
"copies: device to pinned host, 256 MiB":[11185.477],
"copies: on the device, 256 MiB":[312.668],
"products: bfloat16 1x4096x4096":[28.207,24.133,32.969],
"products: bfloat16 16x8192x8192":[103.258,88.343,120.691],
"products: bfloat16 128x4096x14336":[103.042,89.045,119.24],
"products: bfloat16 512x4096x4096":[101.709,87.893,117.697],
"products: bfloat16 2048x2048x2048":[113.448,106.415,120.946],
"products: bfloat16 4096x4096x4096":[545.883,512.041,581.962],
"products: bfloat16 4096x14336x4096":[1957.021,1835.695,2086.365],
"products: bfloat16 8192x8192x8192":[4241.248,3978.312,4521.562],
"products: bfloat16 1000x1000x1000":[20.461,17.682,23.677],
"products: float16 1x4096x4096":[28.207,24.133,32.969],
"products: float16 16x8192x8192":[103.258,88.343,120.691],
"products: float16 128x4096x14336":[103.042,89.045,119.24],
"products: float16 512x4096x4096":[101.709,87.893,117.697],
"products: float16 2048x2048x2048":[113.448,106.415,120.946],
"products: float16 4096x4096x4096":[545.883,512.041,581.962],
"products: float16 4096x14336x4096":[1957.021,1835.695,2086.365],
"products: float16 8192x8192x8192":[4241.248,3978.312,4521.562],
"products: float16 1000x1000x1000":[20.461,17.682,23.677],
"products: float32 1x4096x4096":[38.591],
"products: float32 16x8192x8192":[154.892],
"products: float32 128x4096x14336":[770.975],
"products: float32 512x4096x4096":[881.102],
"products: float32 2048x2048x2048":[881.04],
"products: float32 4096x4096x4096":[7048.235],
"products: float32 4096x14336x4096":[24668.697],
"products: float32 8192x8192x8192":[56385.545],
"products: float32 1000x1000x1000":[102.569],
"products: float32 as TF32 1x4096x4096":[50.82],
"products: float32 as TF32 16x8192x8192":[187.511],
"products: float32 as TF32 128x4096x14336":[184.594],
"products: float32 as TF32 512x4096x4096":[171.054],
"products: float32 as TF32 2048x2048x2048":[193.845],
"products: float32 as TF32 4096x4096x4096":[1125.6],
"products: float32 as TF32 4096x14336x4096":[3955.234],
"products: float32 as TF32 8192x8192x8192":[8210.933],
"products: float32 as TF32 1000x1000x1000":[32.847],
"attention: forward: batch 1, 32 heads, 32 of keys, 1024 tokens, width 128":[101.502],
"attention: backward: batch 1, 32 heads, 32 of keys, 1024 tokens, width 128":[272.766],
"attention: forward: batch 1, 32 heads, 8 of keys, 4096 tokens, width 128":[811.38],
"attention: backward: batch 1, 32 heads, 8 of keys, 4096 tokens, width 128":[2238.603],
"attention: forward: batch 4, 16 heads, 16 of keys, 2048 tokens, width 64":[246.704],
"attention: backward: batch 4, 16 heads, 16 of keys, 2048 tokens, width 64":[674.865],
"kernels: kernel add":[5.067],
"kernels: kernel softmax":[5.067],
"kernels: kernel norm":[5.067],
"kernels: kernel product":[11.834],
"collectives: all_reduce of 2 ranks, 1 KiB":[11.115,8.931,13.833],
"collectives: all_gather of 2 ranks, 1 KiB":[9.785,7.899,12.121],
"collectives: reduce_scatter of 2 ranks, 1 KiB":[9.536,7.824,11.623],
"collectives: broadcast of 2 ranks, 1 KiB":[11.571,8.784,15.242],
"collectives: alltoall of 2 ranks, 1 KiB":[10.258,7.124,14.77],
"collectives: sendrecv of 2 ranks, 1 KiB":[9.766,6.691,14.253],
"collectives: all_reduce of 2 ranks, 4 KiB":[11.15,8.964,13.869],
"collectives: all_gather of 2 ranks, 4 KiB":[9.808,7.921,12.145],
"collectives: reduce_scatter of 2 ranks, 4 KiB":[9.56,7.846,11.648],
"collectives: broadcast of 2 ranks, 4 KiB":[11.611,8.822,15.283],
"collectives: alltoall of 2 ranks, 4 KiB":[10.518,7.359,15.033],
"collectives: sendrecv of 2 ranks, 4 KiB":[9.925,6.833,14.417],
"collectives: all_reduce of 2 ranks, 16 KiB":[11.291,9.096,14.016],
"collectives: all_gather of 2 ranks, 16 KiB":[9.9,8.007,12.241],
"collectives: reduce_scatter of 2 ranks, 16 KiB":[9.658,7.938,11.751],
"collectives: broadcast of 2 ranks, 16 KiB":[11.773,8.972,15.448],
"collectives: alltoall of 2 ranks, 16 KiB":[11.054,7.83,15.606],
"collectives: sendrecv of 2 ranks, 16 KiB":[10.273,7.134,14.794],
"collectives: all_reduce of 2 ranks, 64 KiB":[11.857,9.326,15.074],
"collectives: all_gather of 2 ranks, 64 KiB":[10.267,8.088,13.033],
"collectives: reduce_scatter of 2 ranks, 64 KiB":[10.048,8.026,12.579],
"collectives: broadcast of 2 ranks, 64 KiB":[12.419,9.323,16.544],
"collectives: alltoall of 2 ranks, 64 KiB":[12.187,8.6,17.271],
"collectives: sendrecv of 2 ranks, 64 KiB":[11.093,7.665,16.054],
"collectives: all_reduce of 2 ranks, 256 KiB":[14.12,11.212,17.783],
"collectives: all_gather of 2 ranks, 256 KiB":[11.739,9.292,14.831],
"collectives: reduce_scatter of 2 ranks, 256 KiB":[11.608,9.335,14.435],
"collectives: broadcast of 2 ranks, 256 KiB":[15.007,11.407,19.743],
"collectives: alltoall of 2 ranks, 256 KiB":[14.697,10.496,20.58],
"collectives: sendrecv of 2 ranks, 256 KiB":[13.221,9.302,18.791],
"collectives: all_reduce of 2 ranks, 1 MiB":[23.173,17.887,30.021],
"collectives: all_gather of 2 ranks, 1 MiB":[17.625,13.404,23.174],
"collectives: reduce_scatter of 2 ranks, 1 MiB":[17.85,14.025,22.719],
"collectives: broadcast of 2 ranks, 1 MiB":[25.355,18.359,35.016],
"collectives: alltoall of 2 ranks, 1 MiB":[20.692,14.763,29.001],
"collectives: sendrecv of 2 ranks, 1 MiB":[19.439,13.973,27.043],
"collectives: all_reduce of 2 ranks, 4 MiB":[43.794,35.93,53.379],
"collectives: all_gather of 2 ranks, 4 MiB":[31.723,26.307,38.254],
"collectives: reduce_scatter of 2 ranks, 4 MiB":[32.766,27.255,39.391],
"collectives: broadcast of 2 ranks, 4 MiB":[46.152,37.165,57.312],
"collectives: alltoall of 2 ranks, 4 MiB":[36.58,26.428,50.632],
"collectives: sendrecv of 2 ranks, 4 MiB":[39.717,29.79,52.951],
"collectives: all_reduce of 2 ranks, 16 MiB":[103.625,86.411,124.269],
"collectives: all_gather of 2 ranks, 16 MiB":[65.839,54.826,79.064],
"collectives: reduce_scatter of 2 ranks, 16 MiB":[70.319,58.898,83.955],
"collectives: broadcast of 2 ranks, 16 MiB":[110.353,89.961,135.368],
"collectives: alltoall of 2 ranks, 16 MiB":[83.95,63.037,111.802],
"collectives: sendrecv of 2 ranks, 16 MiB":[111.641,87.159,143.0],
"collectives: all_reduce of 2 ranks, 64 MiB":[343.26,285.002,413.426],
"collectives: all_gather of 2 ranks, 64 MiB":[202.619,166.881,246.01],
"collectives: reduce_scatter of 2 ranks, 64 MiB":[220.849,183.621,265.625],
"collectives: broadcast of 2 ranks, 64 MiB":[367.468,296.494,455.432],
"collectives: alltoall of 2 ranks, 64 MiB":[241.387,190.979,305.1],
"collectives: sendrecv of 2 ranks, 64 MiB":[381.279,304.368,477.624],
"collectives: all_reduce of 2 ranks, 256 MiB":[1300.542,1126.59,1501.354],
"collectives: all_gather of 2 ranks, 256 MiB":[748.475,639.228,876.393],
"collectives: reduce_scatter of 2 ranks, 256 MiB":[821.709,711.981,948.348],
"collectives: broadcast of 2 ranks, 256 MiB":[1394.67,1162.266,1673.545],
"collectives: alltoall of 2 ranks, 256 MiB":[805.15,686.447,944.38],
"collectives: sendrecv of 2 ranks, 256 MiB":[1421.821,1186.637,1703.617],
"collectives: all_reduce of 2 ranks, 1 GiB":[5020.338,4356.84,5784.88],
"collectives: all_gather of 2 ranks, 1 GiB":[2864.803,2446.48,3354.655],
"collectives: reduce_scatter of 2 ranks, 1 GiB":[3165.367,2746.907,3647.575],
"collectives: broadcast of 2 ranks, 1 GiB":[5481.665,4527.929,6636.29],
"collectives: alltoall of 2 ranks, 1 GiB":[2930.757,2534.635,3388.786],
"collectives: sendrecv of 2 ranks, 1 GiB":[5182.491,4329.486,6203.557],
"collectives: all_reduce of 4 ranks, 1 KiB":[15.224,11.937,19.417],
"collectives: all_gather of 4 ranks, 1 KiB":[11.939,9.651,14.769],
"collectives: reduce_scatter of 4 ranks, 1 KiB":[11.575,9.411,14.237],
"collectives: broadcast of 4 ranks, 1 KiB":[13.478,10.237,17.745],
"collectives: alltoall of 4 ranks, 1 KiB":[11.199,7.963,15.751],
"collectives: sendrecv of 4 ranks, 1 KiB":[9.798,6.679,14.374],
"collectives: all_reduce of 4 ranks, 4 KiB":[15.276,11.985,19.47],
"collectives: all_gather of 4 ranks, 4 KiB":[11.968,9.678,14.8],
"collectives: reduce_scatter of 4 ranks, 4 KiB":[11.602,9.436,14.265],
"collectives: broadcast of 4 ranks, 4 KiB":[13.513,10.27,17.781],
"collectives: alltoall of 4 ranks, 4 KiB":[11.48,8.215,16.042],
"collectives: sendrecv of 4 ranks, 4 KiB":[9.974,6.835,14.555],
"collectives: all_reduce of 4 ranks, 16 KiB":[15.487,12.182,19.689],
"collectives: all_gather of 4 ranks, 16 KiB":[12.086,9.788,14.923],
"collectives: reduce_scatter of 4 ranks, 16 KiB":[11.711,9.537,14.381],
"collectives: broadcast of 4 ranks, 16 KiB":[13.653,10.4,17.923],
"collectives: alltoall of 4 ranks, 16 KiB":[12.064,8.725,16.681],
"collectives: sendrecv of 4 ranks, 16 KiB":[10.385,7.192,14.996],
"collectives: all_reduce of 4 ranks, 64 KiB":[16.327,12.605,21.148],
"collectives: all_gather of 4 ranks, 64 KiB":[12.558,9.909,15.916],
"collectives: reduce_scatter of 4 ranks, 64 KiB":[12.147,9.622,15.335],
"collectives: broadcast of 4 ranks, 64 KiB":[14.214,10.654,18.964],
"collectives: alltoall of 4 ranks, 64 KiB":[13.323,9.558,18.571],
"collectives: sendrecv of 4 ranks, 64 KiB":[11.445,7.934,16.51],
"collectives: all_reduce of 4 ranks, 256 KiB":[19.69,15.593,24.863],
"collectives: all_gather of 4 ranks, 256 KiB":[14.445,11.49,18.16],
"collectives: reduce_scatter of 4 ranks, 256 KiB":[13.891,11.026,17.5],
"collectives: broadcast of 4 ranks, 256 KiB":[16.456,12.659,21.392],
"collectives: alltoall of 4 ranks, 256 KiB":[16.197,11.713,22.398],
"collectives: sendrecv of 4 ranks, 256 KiB":[14.518,10.398,20.271],
"collectives: all_reduce of 4 ranks, 1 MiB":[33.141,27.365,40.136],
"collectives: all_gather of 4 ranks, 1 MiB":[21.991,17.116,28.254],
"collectives: reduce_scatter of 4 ranks, 1 MiB":[20.866,15.776,27.599],
"collectives: broadcast of 4 ranks, 1 MiB":[25.423,20.589,31.391],
"collectives: alltoall of 4 ranks, 1 MiB":[23.371,16.872,32.373],
"collectives: sendrecv of 4 ranks, 1 MiB":[24.478,18.293,32.755],
"collectives: all_reduce of 4 ranks, 4 MiB":[64.945,50.258,83.924],
"collectives: all_gather of 4 ranks, 4 MiB":[43.987,34.781,55.629],
"collectives: reduce_scatter of 4 ranks, 4 MiB":[44.219,34.784,56.213],
"collectives: broadcast of 4 ranks, 4 MiB":[44.165,34.047,57.291],
"collectives: alltoall of 4 ranks, 4 MiB":[43.427,31.99,58.954],
"collectives: sendrecv of 4 ranks, 4 MiB":[59.647,46.765,76.077],
"collectives: all_reduce of 4 ranks, 16 MiB":[147.51,121.609,178.927],
"collectives: all_gather of 4 ranks, 16 MiB":[91.576,75.791,110.649],
"collectives: reduce_scatter of 4 ranks, 16 MiB":[92.384,75.408,113.182],
"collectives: broadcast of 4 ranks, 16 MiB":[108.683,88.022,134.194],
"collectives: alltoall of 4 ranks, 16 MiB":[106.367,81.9,138.143],
"collectives: sendrecv of 4 ranks, 16 MiB":[190.984,152.877,238.59],
"collectives: all_reduce of 4 ranks, 64 MiB":[478.085,397.637,574.809],
"collectives: all_gather of 4 ranks, 64 MiB":[282.249,234.794,339.296],
"collectives: reduce_scatter of 4 ranks, 64 MiB":[285.36,232.06,350.902],
"collectives: broadcast of 4 ranks, 64 MiB":[359.985,291.27,444.911],
"collectives: alltoall of 4 ranks, 64 MiB":[323.871,261.198,401.582],
"collectives: sendrecv of 4 ranks, 64 MiB":[697.974,562.129,866.648],
"collectives: all_reduce of 4 ranks, 256 MiB":[1799.124,1564.328,2069.162],
"collectives: all_gather of 4 ranks, 256 MiB":[1043.679,906.343,1201.825],
"collectives: reduce_scatter of 4 ranks, 256 MiB":[1056.004,887.473,1256.538],
"collectives: broadcast of 4 ranks, 256 MiB":[1354.359,1132.195,1620.117],
"collectives: alltoall of 4 ranks, 256 MiB":[1123.49,970.103,1301.13],
"collectives: sendrecv of 4 ranks, 256 MiB":[1364.11,1142.516,1628.683],
"collectives: all_reduce of 4 ranks, 1 GiB":[6823.373,5950.748,7823.96],
"collectives: all_gather of 4 ranks, 1 GiB":[3972.792,3461.123,4560.102],
"collectives: reduce_scatter of 4 ranks, 1 GiB":[4058.68,3392.241,4856.047],
"collectives: broadcast of 4 ranks, 1 GiB":[5305.885,4391.605,6410.507],
"collectives: alltoall of 4 ranks, 1 GiB":[4183.692,3643.464,4804.022],
"collectives: sendrecv of 4 ranks, 1 GiB":[5003.142,4189.7,5974.517],
"collectives: all_reduce of 8 ranks, 1 KiB":[24.474,18.225,32.866],
"collectives: all_gather of 8 ranks, 1 KiB":[16.538,12.92,21.169],
"collectives: reduce_scatter of 8 ranks, 1 KiB":[15.96,12.518,20.349],
"collectives: broadcast of 8 ranks, 1 KiB":[17.544,13.047,23.591],
"collectives: alltoall of 8 ranks, 1 KiB":[11.862,8.764,16.054],
"collectives: sendrecv of 8 ranks, 1 KiB":[8.701,5.99,12.639],
"collectives: all_reduce of 8 ranks, 4 KiB":[24.535,18.281,32.928],
"collectives: all_gather of 8 ranks, 4 KiB":[16.568,12.948,21.2],
"collectives: reduce_scatter of 8 ranks, 4 KiB":[15.99,12.546,20.38],
"collectives: broadcast of 8 ranks, 4 KiB":[17.579,13.079,23.627],
"collectives: alltoall of 8 ranks, 4 KiB":[12.046,8.924,16.26],
"collectives: sendrecv of 8 ranks, 4 KiB":[8.954,6.214,12.903],
"collectives: all_reduce of 8 ranks, 16 KiB":[24.781,18.51,33.176],
"collectives: all_gather of 8 ranks, 16 KiB":[16.691,13.063,21.327],
"collectives: reduce_scatter of 8 ranks, 16 KiB":[16.113,12.66,20.507],
"collectives: broadcast of 8 ranks, 16 KiB":[17.719,13.21,23.767],
"collectives: alltoall of 8 ranks, 16 KiB":[12.439,9.257,16.714],
"collectives: sendrecv of 8 ranks, 16 KiB":[9.577,6.755,13.577],
"collectives: all_reduce of 8 ranks, 64 KiB":[25.761,18.974,34.977],
"collectives: all_gather of 8 ranks, 64 KiB":[17.181,13.157,22.436],
"collectives: reduce_scatter of 8 ranks, 64 KiB":[16.603,12.76,21.604],
"collectives: broadcast of 8 ranks, 64 KiB":[18.279,13.417,24.902],
"collectives: alltoall of 8 ranks, 64 KiB":[13.323,9.749,18.208],
"collectives: sendrecv of 8 ranks, 64 KiB":[11.288,8.048,15.832],
"collectives: all_reduce of 8 ranks, 256 KiB":[29.685,22.489,39.183],
"collectives: all_gather of 8 ranks, 256 KiB":[19.143,14.906,24.584],
"collectives: reduce_scatter of 8 ranks, 256 KiB":[18.565,14.507,23.757],
"collectives: broadcast of 8 ranks, 256 KiB":[20.521,15.428,27.296],
"collectives: alltoall of 8 ranks, 256 KiB":[15.486,11.377,21.078],
"collectives: sendrecv of 8 ranks, 256 KiB":[16.576,12.397,22.164],
"collectives: all_reduce of 8 ranks, 1 MiB":[45.377,36.415,56.544],
"collectives: all_gather of 8 ranks, 1 MiB":[26.989,21.837,33.357],
"collectives: reduce_scatter of 8 ranks, 1 MiB":[26.411,21.43,32.55],
"collectives: broadcast of 8 ranks, 1 MiB":[29.488,23.41,37.145],
"collectives: alltoall of 8 ranks, 1 MiB":[21.387,15.746,29.049],
"collectives: sendrecv of 8 ranks, 1 MiB":[34.615,27.253,43.966],
"collectives: all_reduce of 8 ranks, 4 MiB":[84.17,66.671,106.262],
"collectives: all_gather of 8 ranks, 4 MiB":[57.056,43.54,74.769],
"collectives: reduce_scatter of 8 ranks, 4 MiB":[57.797,49.286,67.778],
"collectives: broadcast of 8 ranks, 4 MiB":[42.059,35.66,49.606],
"collectives: alltoall of 8 ranks, 4 MiB":[39.493,29.9,52.163],
"collectives: sendrecv of 8 ranks, 4 MiB":[100.538,82.797,122.08],
"collectives: all_reduce of 8 ranks, 16 MiB":[196.118,160.896,239.05],
"collectives: all_gather of 8 ranks, 16 MiB":[109.803,89.942,134.049],
"collectives: reduce_scatter of 8 ranks, 16 MiB":[114.238,92.73,140.735],
"collectives: broadcast of 8 ranks, 16 MiB":[109.679,86.771,138.634],
"collectives: alltoall of 8 ranks, 16 MiB":[100.921,79.828,127.588],
"collectives: sendrecv of 8 ranks, 16 MiB":[351.776,293.194,422.063],
"collectives: all_reduce of 8 ranks, 64 MiB":[600.891,503.847,716.626],
"collectives: all_gather of 8 ranks, 64 MiB":[321.103,268.346,384.231],
"collectives: reduce_scatter of 8 ranks, 64 MiB":[324.68,271.227,388.668],
"collectives: broadcast of 8 ranks, 64 MiB":[359.253,291.854,442.216],
"collectives: alltoall of 8 ranks, 64 MiB":[324.959,266.16,396.747],
"collectives: sendrecv of 8 ranks, 64 MiB":[1332.124,1112.525,1595.069],
"collectives: all_reduce of 8 ranks, 256 MiB":[2218.719,1954.551,2518.591],
"collectives: all_gather of 8 ranks, 256 MiB":[1135.602,997.165,1293.259],
"collectives: reduce_scatter of 8 ranks, 256 MiB":[1135.919,996.844,1294.397],
"collectives: broadcast of 8 ranks, 256 MiB":[1327.74,1118.005,1576.82],
"collectives: alltoall of 8 ranks, 256 MiB":[1175.867,1022.405,1352.363],
"collectives: sendrecv of 8 ranks, 256 MiB":[1332.124,1167.955,1519.369],
"collectives: all_reduce of 8 ranks, 1 GiB":[8598.226,7555.407,9784.978],
"collectives: all_gather of 8 ranks, 1 GiB":[4294.361,3765.912,4896.965],
"collectives: reduce_scatter of 8 ranks, 1 GiB":[4293.73,3767.716,4893.181],
"collectives: broadcast of 8 ranks, 1 GiB":[5123.432,4272.247,6144.204],
"collectives: alltoall of 8 ranks, 1 GiB":[4491.535,3918.375,5148.535],
"collectives: sendrecv of 8 ranks, 1 GiB":[4891.561,4286.373,5582.195]}}""",
    'hgx_h100': r"""{"device":"H100 SXM",
"models":["H100"],
"num_sms":132,
"times":{
"launches: add_ of one element, host":[2.0],
"launches: add_ of one element, back to back":[2.009],
"launches: add_ of one element, in a CUDA graph":[1.74],
"launches: add_ of one element and synchronize":[3.742],
"copies: pinned host to device, 4 KiB":[5.0],
"copies: device to pinned host, 4 KiB":[5.0],
"copies: on the device, 4 KiB":[2.009],
"copies: pinned host to device, 64 KiB":[5.0],
"copies: device to pinned host, 64 KiB":[5.0],
"copies: on the device, 64 KiB":[2.009],
"copies: pinned host to device, 1 MiB":[21.855],
"copies: device to pinned host, 1 MiB":[21.855],
"copies: on the device, 1 MiB":[3.196],
"copies: pinned host to device, 16 MiB":[349.56],
"copies: device to pinned host, 16 MiB":[349.56],
"copies: on the device, 16 MiB":[15.67],
"copies: pinned host to device, 256 MiB":[5593.072],
"copies: device to pinned host, 256 MiB":[5593.072],
"copies: on the device, 256 MiB":[189.237],
"products: bfloat16 1x4096x4096":[17.337,16.262,18.483],
"products: bfloat16 16x8192x8192":[53.068,49.778,56.575],
"products: bfloat16 128x4096x14336":[52.845,47.483,58.813],
"products: bfloat16 512x4096x4096":[26.384,23.707,29.364],
"products: bfloat16 2048x2048x2048":[27.115,25.08,29.315],
"products: bfloat16 4096x4096x4096":[181.824,168.181,196.574],
"products: bfloat16 4096x14336x4096":[622.512,575.801,673.012],
"products: bfloat16 8192x8192x8192":[1518.675,1404.72,1641.874],
"products: bfloat16 1000x1000x1000":[8.216,7.382,9.144],
"products: float16 1x4096x4096":[17.337,16.262,18.483],
"products: float16 16x8192x8192":[53.068,49.778,56.575],
"products: float16 128x4096x14336":[52.845,47.483,58.813],
"products: float16 512x4096x4096":[26.384,23.707,29.364],
"products: float16 2048x2048x2048":[27.115,25.08,29.315],
"products: float16 4096x4096x4096":[181.824,168.181,196.574],
"products: float16 4096x14336x4096":[622.512,575.801,673.012],
"products: float16 8192x8192x8192":[1518.675,1404.72,1641.874],
"products: float16 1000x1000x1000":[8.216,7.382,9.144],
"products: float32 1x4096x4096":[42.178],
"products: float32 16x8192x8192":[168.712],
"products: float32 128x4096x14336":[295.247],
"products: float32 512x4096x4096":[337.425],
"products: float32 2048x2048x2048":[337.41],
"products: float32 4096x4096x4096":[2699.199],
"products: float32 4096x14336x4096":[9447.07],
"products: float32 8192x8192x8192":[21593.256],
"products: float32 1000x1000x1000":[39.282],
"products: float32 as TF32 1x4096x4096":[29.656],
"products: float32 as TF32 16x8192x8192":[99.893],
"products: float32 as TF32 128x4096x14336":[95.762],
"products: float32 as TF32 512x4096x4096":[48.44],
"products: float32 as TF32 2048x2048x2048":[46.819],
"products: float32 as TF32 4096x4096x4096":[355.193],
"products: float32 as TF32 4096x14336x4096":[1299.134],
"products: float32 as TF32 8192x8192x8192":[3037.644],
"products: float32 as TF32 1000x1000x1000":[10.979],
"attention: forward: batch 1, 32 heads, 32 of keys, 1024 tokens, width 128":[26.036],
"attention: backward: batch 1, 32 heads, 32 of keys, 1024 tokens, width 128":[70.271],
"attention: forward: batch 1, 32 heads, 8 of keys, 4096 tokens, width 128":[260.638],
"attention: backward: batch 1, 32 heads, 8 of keys, 4096 tokens, width 128":[769.281],
"attention: forward: batch 4, 16 heads, 16 of keys, 2048 tokens, width 64":[112.108],
"attention: backward: batch 4, 16 heads, 16 of keys, 2048 tokens, width 64":[265.943],
"kernels: kernel add":[5.057],
"kernels: kernel softmax":[5.057],
"kernels: kernel norm":[5.057],
"kernels: kernel product":[10.158],
"collectives: all_reduce of 2 ranks, 1 KiB":[8.366,7.25,9.654],
"collectives: all_gather of 2 ranks, 1 KiB":[7.753,6.794,8.848],
"collectives: reduce_scatter of 2 ranks, 1 KiB":[7.678,6.746,8.739],
"collectives: broadcast of 2 ranks, 1 KiB":[8.451,7.223,9.887],
"collectives: alltoall of 2 ranks, 1 KiB":[7.039,5.931,8.354],
"collectives: sendrecv of 2 ranks, 1 KiB":[6.884,5.796,8.177],
"collectives: all_reduce of 2 ranks, 4 KiB":[8.388,7.27,9.678],
"collectives: all_gather of 2 ranks, 4 KiB":[7.765,6.804,8.861],
"collectives: reduce_scatter of 2 ranks, 4 KiB":[7.691,6.757,8.754],
"collectives: broadcast of 2 ranks, 4 KiB":[8.473,7.244,9.911],
"collectives: alltoall of 2 ranks, 4 KiB":[7.222,6.091,8.563],
"collectives: sendrecv of 2 ranks, 4 KiB":[7.007,5.899,8.323],
"collectives: all_reduce of 2 ranks, 16 KiB":[8.475,7.349,9.774],
"collectives: all_gather of 2 ranks, 16 KiB":[7.811,6.846,8.912],
"collectives: reduce_scatter of 2 ranks, 16 KiB":[7.74,6.802,8.808],
"collectives: broadcast of 2 ranks, 16 KiB":[8.56,7.323,10.005],
"collectives: alltoall of 2 ranks, 16 KiB":[7.598,6.398,9.023],
"collectives: sendrecv of 2 ranks, 16 KiB":[7.275,6.106,8.668],
"collectives: all_reduce of 2 ranks, 64 KiB":[8.823,7.346,10.597],
"collectives: all_gather of 2 ranks, 64 KiB":[7.996,6.702,9.539],
"collectives: reduce_scatter of 2 ranks, 64 KiB":[7.935,6.666,9.446],
"collectives: broadcast of 2 ranks, 64 KiB":[8.908,7.344,10.805],
"collectives: alltoall of 2 ranks, 64 KiB":[8.391,6.747,10.436],
"collectives: sendrecv of 2 ranks, 64 KiB":[7.908,6.33,9.879],
"collectives: all_reduce of 2 ranks, 256 KiB":[10.218,8.547,12.216],
"collectives: all_gather of 2 ranks, 256 KiB":[8.735,7.291,10.465],
"collectives: reduce_scatter of 2 ranks, 256 KiB":[8.719,7.31,10.399],
"collectives: broadcast of 2 ranks, 256 KiB":[10.303,8.552,12.412],
"collectives: alltoall of 2 ranks, 256 KiB":[10.132,7.911,12.977],
"collectives: sendrecv of 2 ranks, 256 KiB":[9.55,7.417,12.296],
"collectives: all_reduce of 2 ranks, 1 MiB":[15.795,13.319,18.731],
"collectives: all_gather of 2 ranks, 1 MiB":[11.691,9.342,14.63],
"collectives: reduce_scatter of 2 ranks, 1 MiB":[11.853,9.686,14.505],
"collectives: broadcast of 2 ranks, 1 MiB":[15.88,13.345,18.896],
"collectives: alltoall of 2 ranks, 1 MiB":[14.242,10.632,19.077],
"collectives: sendrecv of 2 ranks, 1 MiB":[14.347,10.758,19.134],
"collectives: all_reduce of 2 ranks, 4 MiB":[31.34,26.316,37.324],
"collectives: all_gather of 2 ranks, 4 MiB":[23.515,16.949,32.624],
"collectives: reduce_scatter of 2 ranks, 4 MiB":[24.39,18.742,31.74],
"collectives: broadcast of 2 ranks, 4 MiB":[32.591,27.021,39.309],
"collectives: alltoall of 2 ranks, 4 MiB":[24.973,18.359,33.97],
"collectives: sendrecv of 2 ranks, 4 MiB":[29.989,22.747,39.537],
"collectives: all_reduce of 2 ranks, 16 MiB":[69.873,58.781,83.059],
"collectives: all_gather of 2 ranks, 16 MiB":[46.07,38.749,54.775],
"collectives: reduce_scatter of 2 ranks, 16 MiB":[49.02,41.454,57.967],
"collectives: broadcast of 2 ranks, 16 MiB":[73.939,60.869,89.815],
"collectives: alltoall of 2 ranks, 16 MiB":[56.479,42.594,74.891],
"collectives: sendrecv of 2 ranks, 16 MiB":[85.461,66.936,109.113],
"collectives: all_reduce of 2 ranks, 64 MiB":[224.323,187.324,268.629],
"collectives: all_gather of 2 ranks, 64 MiB":[134.275,111.275,162.029],
"collectives: reduce_scatter of 2 ranks, 64 MiB":[146.081,122.332,174.44],
"collectives: broadcast of 2 ranks, 64 MiB":[239.646,194.353,295.494],
"collectives: alltoall of 2 ranks, 64 MiB":[159.982,126.73,201.958],
"collectives: sendrecv of 2 ranks, 64 MiB":[293.476,234.892,366.671],
"collectives: all_reduce of 2 ranks, 256 MiB":[840.86,733.472,963.971],
"collectives: all_gather of 2 ranks, 256 MiB":[485.834,417.545,565.291],
"collectives: reduce_scatter of 2 ranks, 256 MiB":[533.065,465.963,609.831],
"collectives: broadcast of 2 ranks, 256 MiB":[901.215,754.837,1075.979],
"collectives: alltoall of 2 ranks, 256 MiB":[527.061,450.948,616.021],
"collectives: sendrecv of 2 ranks, 256 MiB":[1095.901,917.951,1308.348],
"collectives: all_reduce of 2 ranks, 1 GiB":[3195.314,2792.427,3656.328],
"collectives: all_gather of 2 ranks, 1 GiB":[1824.771,1568.026,2123.554],
"collectives: reduce_scatter of 2 ranks, 1 GiB":[2014.396,1762.658,2302.087],
"collectives: broadcast of 2 ranks, 1 GiB":[3476.943,2894.461,4176.643],
"collectives: alltoall of 2 ranks, 1 GiB":[1904.034,1656.877,2188.06],
"collectives: sendrecv of 2 ranks, 1 GiB":[3347.249,2807.333,3991.004],
"collectives: all_reduce of 4 ranks, 1 KiB":[11.384,9.391,13.8],
"collectives: all_gather of 4 ranks, 1 KiB":[9.46,8.059,11.104],
"collectives: reduce_scatter of 4 ranks, 1 KiB":[9.281,7.931,10.861],
"collectives: broadcast of 4 ranks, 1 KiB":[10.229,8.402,12.453],
"collectives: alltoall of 4 ranks, 1 KiB":[8.248,6.653,10.225],
"collectives: sendrecv of 4 ranks, 1 KiB":[7.508,5.973,9.437],
"collectives: all_reduce of 4 ranks, 4 KiB":[11.417,9.421,13.835],
"collectives: all_gather of 4 ranks, 4 KiB":[9.477,8.075,11.122],
"collectives: reduce_scatter of 4 ranks, 4 KiB":[9.297,7.946,10.878],
"collectives: broadcast of 4 ranks, 4 KiB":[10.251,8.423,12.476],
"collectives: alltoall of 4 ranks, 4 KiB":[8.425,6.813,10.418],
"collectives: sendrecv of 4 ranks, 4 KiB":[7.645,6.093,9.592],
"collectives: all_reduce of 4 ranks, 16 KiB":[11.547,9.542,13.973],
"collectives: all_gather of 4 ranks, 16 KiB":[9.544,8.137,11.194],
"collectives: reduce_scatter of 4 ranks, 16 KiB":[9.362,8.005,10.948],
"collectives: broadcast of 4 ranks, 16 KiB":[10.338,8.504,12.568],
"collectives: alltoall of 4 ranks, 16 KiB":[8.793,7.131,10.842],
"collectives: sendrecv of 4 ranks, 16 KiB":[7.963,6.36,9.971],
"collectives: all_reduce of 4 ranks, 64 KiB":[12.07,9.691,15.033],
"collectives: all_gather of 4 ranks, 64 KiB":[9.811,8.06,11.942],
"collectives: reduce_scatter of 4 ranks, 64 KiB":[9.624,7.926,11.686],
"collectives: broadcast of 4 ranks, 64 KiB":[10.687,8.539,13.375],
"collectives: alltoall of 4 ranks, 64 KiB":[9.583,7.532,12.192],
"collectives: sendrecv of 4 ranks, 64 KiB":[8.772,6.801,11.314],
"collectives: all_reduce of 4 ranks, 256 KiB":[14.162,11.527,17.399],
"collectives: all_gather of 4 ranks, 256 KiB":[10.881,8.952,13.226],
"collectives: reduce_scatter of 4 ranks, 256 KiB":[10.67,8.833,12.889],
"collectives: broadcast of 4 ranks, 256 KiB":[12.081,9.766,14.944],
"collectives: alltoall of 4 ranks, 256 KiB":[11.379,8.831,14.662],
"collectives: sendrecv of 4 ranks, 256 KiB":[11.085,8.527,14.41],
"collectives: all_reduce of 4 ranks, 1 MiB":[22.528,18.782,27.022],
"collectives: all_gather of 4 ranks, 1 MiB":[15.159,12.177,18.871],
"collectives: reduce_scatter of 4 ranks, 1 MiB":[14.853,12.438,17.737],
"collectives: broadcast of 4 ranks, 1 MiB":[17.659,14.626,21.321],
"collectives: alltoall of 4 ranks, 1 MiB":[15.84,11.974,20.954],
"collectives: sendrecv of 4 ranks, 1 MiB":[18.489,14.156,24.149],
"collectives: all_reduce of 4 ranks, 4 MiB":[44.512,35.269,56.178],
"collectives: all_gather of 4 ranks, 4 MiB":[31.843,25.835,39.248],
"collectives: reduce_scatter of 4 ranks, 4 MiB":[31.585,27.15,36.744],
"collectives: broadcast of 4 ranks, 4 MiB":[31.438,24.925,39.652],
"collectives: alltoall of 4 ranks, 4 MiB":[28.236,21.319,37.398],
"collectives: sendrecv of 4 ranks, 4 MiB":[44.409,34.886,56.531],
"collectives: all_reduce of 4 ranks, 16 MiB":[94.762,78.561,114.303],
"collectives: all_gather of 4 ranks, 16 MiB":[60.806,50.716,72.903],
"collectives: reduce_scatter of 4 ranks, 16 MiB":[61.336,50.522,74.465],
"collectives: broadcast of 4 ranks, 16 MiB":[70.89,57.91,86.779],
"collectives: alltoall of 4 ranks, 16 MiB":[66.92,52.047,86.044],
"collectives: sendrecv of 4 ranks, 16 MiB":[140.698,112.518,175.935],
"collectives: all_reduce of 4 ranks, 64 MiB":[296.075,246.615,355.455],
"collectives: all_gather of 4 ranks, 64 MiB":[176.974,147.649,212.123],
"collectives: reduce_scatter of 4 ranks, 64 MiB":[178.906,145.985,219.252],
"collectives: broadcast of 4 ranks, 64 MiB":[224.07,181.832,276.12],
"collectives: alltoall of 4 ranks, 64 MiB":[200.176,162.055,247.265],
"collectives: sendrecv of 4 ranks, 64 MiB":[511.391,411.768,635.117],
"collectives: all_reduce of 4 ranks, 256 MiB":[1096.498,955.636,1258.123],
"collectives: all_gather of 4 ranks, 256 MiB":[640.386,557.313,735.842],
"collectives: reduce_scatter of 4 ranks, 256 MiB":[647.925,545.422,769.692],
"collectives: broadcast of 4 ranks, 256 MiB":[829.276,694.264,990.544],
"collectives: alltoall of 4 ranks, 256 MiB":[688.345,595.839,795.212],
"collectives: sendrecv of 4 ranks, 256 MiB":[997.766,835.702,1191.258],
"collectives: all_reduce of 4 ranks, 1 GiB":[4139.886,3611.639,4745.395],
"collectives: all_gather of 4 ranks, 1 GiB":[2410.135,2102.494,2762.79],
"collectives: reduce_scatter of 4 ranks, 1 GiB":[2460.171,2059.679,2938.537],
"collectives: broadcast of 4 ranks, 1 GiB":[3211.045,2664.42,3869.814],
"collectives: alltoall of 4 ranks, 1 GiB":[2553.837,2228.235,2927.018],
"collectives: sendrecv of 4 ranks, 1 GiB":[3058.324,2561.901,3650.94],
"collectives: all_reduce of 8 ranks, 1 KiB":[19.098,14.777,24.682],
"collectives: all_gather of 8 ranks, 1 KiB":[13.673,11.056,16.909],
"collectives: reduce_scatter of 8 ranks, 1 KiB":[13.252,10.759,16.322],
"collectives: broadcast of 8 ranks, 1 KiB":[14.474,11.166,18.762],
"collectives: alltoall of 8 ranks, 1 KiB":[10.638,7.928,14.274],
"collectives: sendrecv of 8 ranks, 1 KiB":[8.491,5.999,12.018],
"collectives: all_reduce of 8 ranks, 4 KiB":[19.136,14.813,24.721],
"collectives: all_gather of 8 ranks, 4 KiB":[13.692,11.074,16.929],
"collectives: reduce_scatter of 8 ranks, 4 KiB":[13.271,10.777,16.342],
"collectives: broadcast of 8 ranks, 4 KiB":[14.496,11.186,18.785],
"collectives: alltoall of 8 ranks, 4 KiB":[10.81,8.08,14.463],
"collectives: sendrecv of 8 ranks, 4 KiB":[8.773,6.245,12.324],
"collectives: all_reduce of 8 ranks, 16 KiB":[19.288,14.955,24.877],
"collectives: all_gather of 8 ranks, 16 KiB":[13.769,11.146,17.01],
"collectives: reduce_scatter of 8 ranks, 16 KiB":[13.347,10.848,16.422],
"collectives: broadcast of 8 ranks, 16 KiB":[14.583,11.268,18.874],
"collectives: alltoall of 8 ranks, 16 KiB":[11.17,8.387,14.876],
"collectives: sendrecv of 8 ranks, 16 KiB":[9.422,6.796,13.063],
"collectives: all_reduce of 8 ranks, 64 KiB":[19.898,15.119,26.187],
"collectives: all_gather of 8 ranks, 64 KiB":[14.074,11.082,17.874],
"collectives: reduce_scatter of 8 ranks, 64 KiB":[13.652,10.787,17.277],
"collectives: broadcast of 8 ranks, 64 KiB":[14.932,11.296,19.738],
"collectives: alltoall of 8 ranks, 64 KiB":[11.949,8.811,16.205],
"collectives: sendrecv of 8 ranks, 64 KiB":[11.067,7.968,15.37],
"collectives: all_reduce of 8 ranks, 256 KiB":[22.338,17.298,28.847],
"collectives: all_gather of 8 ranks, 256 KiB":[15.294,12.163,19.232],
"collectives: reduce_scatter of 8 ranks, 256 KiB":[14.872,11.867,18.639],
"collectives: broadcast of 8 ranks, 256 KiB":[16.326,12.543,21.25],
"collectives: alltoall of 8 ranks, 256 KiB":[13.753,10.149,18.637],
"collectives: sendrecv of 8 ranks, 256 KiB":[15.745,11.628,21.32],
"collectives: all_reduce of 8 ranks, 1 MiB":[32.099,25.929,39.738],
"collectives: all_gather of 8 ranks, 1 MiB":[20.174,16.451,24.74],
"collectives: reduce_scatter of 8 ranks, 1 MiB":[19.752,16.149,24.159],
"collectives: broadcast of 8 ranks, 1 MiB":[21.904,17.493,27.427],
"collectives: alltoall of 8 ranks, 1 MiB":[18.341,13.426,25.056],
"collectives: sendrecv of 8 ranks, 1 MiB":[30.651,23.48,40.012],
"collectives: all_reduce of 8 ranks, 4 MiB":[58.006,41.224,81.62],
"collectives: all_gather of 8 ranks, 4 MiB":[39.695,33.819,46.591],
"collectives: reduce_scatter of 8 ranks, 4 MiB":[39.274,33.497,46.048],
"collectives: broadcast of 8 ranks, 4 MiB":[29.354,24.857,34.665],
"collectives: alltoall of 8 ranks, 4 MiB":[31.432,23.259,42.478],
"collectives: sendrecv of 8 ranks, 4 MiB":[82.666,66.687,102.473],
"collectives: all_reduce of 8 ranks, 16 MiB":[123.554,93.093,163.982],
"collectives: all_gather of 8 ranks, 16 MiB":[75.152,61.759,91.449],
"collectives: reduce_scatter of 8 ranks, 16 MiB":[78.118,63.622,95.916],
"collectives: broadcast of 8 ranks, 16 MiB":[74.783,59.352,94.226],
"collectives: alltoall of 8 ranks, 16 MiB":[73.281,56.349,95.301],
"collectives: sendrecv of 8 ranks, 16 MiB":[275.502,227.667,333.387],
"collectives: all_reduce of 8 ranks, 64 MiB":[344.083,274.668,431.041],
"collectives: all_gather of 8 ranks, 64 MiB":[206.546,172.93,246.696],
"collectives: reduce_scatter of 8 ranks, 64 MiB":[208.978,174.827,249.801],
"collectives: broadcast of 8 ranks, 64 MiB":[230.501,187.622,283.179],
"collectives: alltoall of 8 ranks, 64 MiB":[219.958,177.224,272.997],
"collectives: sendrecv of 8 ranks, 64 MiB":[1016.721,846.204,1221.599],
"collectives: all_reduce of 8 ranks, 256 MiB":[1140.985,986.072,1320.235],
"collectives: all_gather of 8 ranks, 256 MiB":[724.705,636.19,825.536],
"collectives: reduce_scatter of 8 ranks, 256 MiB":[727.921,637.413,831.281],
"collectives: broadcast of 8 ranks, 256 MiB":[832.305,701.587,987.378],
"collectives: alltoall of 8 ranks, 256 MiB":[763.34,659.317,883.774],
"collectives: sendrecv of 8 ranks, 256 MiB":[1016.721,887.271,1165.058],
"collectives: all_reduce of 8 ranks, 1 GiB":[4160.687,3656.439,4734.475],
"collectives: all_gather of 8 ranks, 1 GiB":[2701.749,2372.629,3076.523],
"collectives: reduce_scatter of 8 ranks, 1 GiB":[2707.599,2377.103,3084.045],
"collectives: broadcast of 8 ranks, 1 GiB":[3221.355,2705.318,3835.825],
"collectives: alltoall of 8 ranks, 1 GiB":[2852.739,2486.835,3272.481],
"collectives: sendrecv of 8 ranks, 1 GiB":[3089.908,2699.218,3537.147]}}""",
    'hgx_h200': r"""{"device":"H200 SXM",
"models":["H200"],
"num_sms":132,
"times":{
"launches: add_ of one element, host":[2.0],
"launches: add_ of one element, back to back":[2.009],
"launches: add_ of one element, in a CUDA graph":[1.74],
"launches: add_ of one element and synchronize":[3.742],
"copies: pinned host to device, 4 KiB":[5.0],
"copies: device to pinned host, 4 KiB":[5.0],
"copies: on the device, 4 KiB":[2.009],
"copies: pinned host to device, 64 KiB":[5.0],
"copies: device to pinned host, 64 KiB":[5.0],
"copies: on the device, 64 KiB":[2.009],
"copies: pinned host to device, 1 MiB":[19.075],
"copies: device to pinned host, 1 MiB":[19.075],
"copies: on the device, 1 MiB":[2.749],
"copies: pinned host to device, 16 MiB":[305.071],
"copies: device to pinned host, 16 MiB":[305.071],
"copies: on the device, 16 MiB":[12.089],
"copies: pinned host to device, 256 MiB":[4881.145],
"copies: device to pinned host, 256 MiB":[4881.145],
"copies: on the device, 256 MiB":[131.93],
"products: bfloat16 1x4096x4096":[13.908,11.947,16.191],
"products: bfloat16 16x8192x8192":[38.404,32.989,44.708],
"products: bfloat16 128x4096x14336":[40.496,34.647,47.333],
"products: bfloat16 512x4096x4096":[25.66,21.954,29.992],
"products: bfloat16 2048x2048x2048":[27.0,22.802,31.971],
"products: bfloat16 4096x4096x4096":[181.765,153.502,215.232],
"products: bfloat16 4096x14336x4096":[622.443,525.659,737.047],
"products: bfloat16 8192x8192x8192":[1518.643,1282.508,1798.256],
"products: bfloat16 1000x1000x1000":[8.057,6.893,9.417],
"products: float16 1x4096x4096":[13.908,11.947,16.191],
"products: float16 16x8192x8192":[38.404,32.989,44.708],
"products: float16 128x4096x14336":[40.496,34.647,47.333],
"products: float16 512x4096x4096":[25.66,21.954,29.992],
"products: float16 2048x2048x2048":[27.0,22.802,31.971],
"products: float16 4096x4096x4096":[181.765,153.502,215.232],
"products: float16 4096x14336x4096":[622.443,525.659,737.047],
"products: float16 8192x8192x8192":[1518.643,1282.508,1798.256],
"products: float16 1000x1000x1000":[8.057,6.893,9.417],
"products: float32 1x4096x4096":[42.178],
"products: float32 16x8192x8192":[168.712],
"products: float32 128x4096x14336":[295.247],
"products: float32 512x4096x4096":[337.425],
"products: float32 2048x2048x2048":[337.41],
"products: float32 4096x4096x4096":[2699.199],
"products: float32 4096x14336x4096":[9447.07],
"products: float32 8192x8192x8192":[21593.256],
"products: float32 1000x1000x1000":[39.282],
"products: float32 as TF32 1x4096x4096":[22.788],
"products: float32 as TF32 16x8192x8192":[70.933],
"products: float32 as TF32 128x4096x14336":[71.43],
"products: float32 as TF32 512x4096x4096":[47.221],
"products: float32 as TF32 2048x2048x2048":[46.714],
"products: float32 as TF32 4096x4096x4096":[355.137],
"products: float32 as TF32 4096x14336x4096":[1299.078],
"products: float32 as TF32 8192x8192x8192":[3037.612],
"products: float32 as TF32 1000x1000x1000":[10.815],
"attention: forward: batch 1, 32 heads, 32 of keys, 1024 tokens, width 128":[26.036],
"attention: backward: batch 1, 32 heads, 32 of keys, 1024 tokens, width 128":[70.271],
"attention: forward: batch 1, 32 heads, 8 of keys, 4096 tokens, width 128":[260.638],
"attention: backward: batch 1, 32 heads, 8 of keys, 4096 tokens, width 128":[769.281],
"attention: forward: batch 4, 16 heads, 16 of keys, 2048 tokens, width 64":[112.108],
"attention: backward: batch 4, 16 heads, 16 of keys, 2048 tokens, width 64":[265.943],
"kernels: kernel add":[5.057],
"kernels: kernel softmax":[5.057],
"kernels: kernel norm":[5.057],
"kernels: kernel product":[10.158],
"collectives: all_reduce of 2 ranks, 1 KiB":[8.366,7.25,9.654],
"collectives: all_gather of 2 ranks, 1 KiB":[7.753,6.794,8.848],
"collectives: reduce_scatter of 2 ranks, 1 KiB":[7.678,6.746,8.739],
"collectives: broadcast of 2 ranks, 1 KiB":[8.451,7.223,9.887],
"collectives: alltoall of 2 ranks, 1 KiB":[7.039,5.931,8.354],
"collectives: sendrecv of 2 ranks, 1 KiB":[6.884,5.796,8.177],
"collectives: all_reduce of 2 ranks, 4 KiB":[8.388,7.27,9.678],
"collectives: all_gather of 2 ranks, 4 KiB":[7.765,6.804,8.861],
"collectives: reduce_scatter of 2 ranks, 4 KiB":[7.691,6.757,8.754],
"collectives: broadcast of 2 ranks, 4 KiB":[8.473,7.244,9.911],
"collectives: alltoall of 2 ranks, 4 KiB":[7.222,6.091,8.563],
"collectives: sendrecv of 2 ranks, 4 KiB":[7.007,5.899,8.323],
"collectives: all_reduce of 2 ranks, 16 KiB":[8.475,7.349,9.774],
"collectives: all_gather of 2 ranks, 16 KiB":[7.811,6.846,8.912],
"collectives: reduce_scatter of 2 ranks, 16 KiB":[7.74,6.802,8.808],
"collectives: broadcast of 2 ranks, 16 KiB":[8.56,7.323,10.005],
"collectives: alltoall of 2 ranks, 16 KiB":[7.598,6.398,9.023],
"collectives: sendrecv of 2 ranks, 16 KiB":[7.275,6.106,8.668],
"collectives: all_reduce of 2 ranks, 64 KiB":[8.823,7.346,10.597],
"collectives: all_gather of 2 ranks, 64 KiB":[7.996,6.702,9.539],
"collectives: reduce_scatter of 2 ranks, 64 KiB":[7.935,6.666,9.446],
"collectives: broadcast of 2 ranks, 64 KiB":[8.908,7.344,10.805],
"collectives: alltoall of 2 ranks, 64 KiB":[8.391,6.747,10.436],
"collectives: sendrecv of 2 ranks, 64 KiB":[7.908,6.33,9.879],
"collectives: all_reduce of 2 ranks, 256 KiB":[10.218,8.547,12.216],
"collectives: all_gather of 2 ranks, 256 KiB":[8.735,7.291,10.465],
"collectives: reduce_scatter of 2 ranks, 256 KiB":[8.719,7.31,10.399],
"collectives: broadcast of 2 ranks, 256 KiB":[10.303,8.552,12.412],
"collectives: alltoall of 2 ranks, 256 KiB":[10.132,7.911,12.977],
"collectives: sendrecv of 2 ranks, 256 KiB":[9.55,7.417,12.296],
"collectives: all_reduce of 2 ranks, 1 MiB":[15.795,13.319,18.731],
"collectives: all_gather of 2 ranks, 1 MiB":[11.691,9.342,14.63],
"collectives: reduce_scatter of 2 ranks, 1 MiB":[11.853,9.686,14.505],
"collectives: broadcast of 2 ranks, 1 MiB":[15.88,13.345,18.896],
"collectives: alltoall of 2 ranks, 1 MiB":[14.242,10.632,19.077],
"collectives: sendrecv of 2 ranks, 1 MiB":[14.347,10.758,19.134],
"collectives: all_reduce of 2 ranks, 4 MiB":[31.34,26.316,37.324],
"collectives: all_gather of 2 ranks, 4 MiB":[23.515,16.949,32.624],
"collectives: reduce_scatter of 2 ranks, 4 MiB":[24.39,18.742,31.74],
"collectives: broadcast of 2 ranks, 4 MiB":[32.591,27.021,39.309],
"collectives: alltoall of 2 ranks, 4 MiB":[24.973,18.359,33.97],
"collectives: sendrecv of 2 ranks, 4 MiB":[29.989,22.747,39.537],
"collectives: all_reduce of 2 ranks, 16 MiB":[69.873,58.781,83.059],
"collectives: all_gather of 2 ranks, 16 MiB":[46.07,38.749,54.775],
"collectives: reduce_scatter of 2 ranks, 16 MiB":[49.02,41.454,57.967],
"collectives: broadcast of 2 ranks, 16 MiB":[73.939,60.869,89.815],
"collectives: alltoall of 2 ranks, 16 MiB":[56.479,42.594,74.891],
"collectives: sendrecv of 2 ranks, 16 MiB":[85.461,66.936,109.113],
"collectives: all_reduce of 2 ranks, 64 MiB":[224.323,187.324,268.629],
"collectives: all_gather of 2 ranks, 64 MiB":[134.275,111.275,162.029],
"collectives: reduce_scatter of 2 ranks, 64 MiB":[146.081,122.332,174.44],
"collectives: broadcast of 2 ranks, 64 MiB":[239.646,194.353,295.494],
"collectives: alltoall of 2 ranks, 64 MiB":[159.982,126.73,201.958],
"collectives: sendrecv of 2 ranks, 64 MiB":[293.476,234.892,366.671],
"collectives: all_reduce of 2 ranks, 256 MiB":[840.86,733.472,963.971],
"collectives: all_gather of 2 ranks, 256 MiB":[485.834,417.545,565.291],
"collectives: reduce_scatter of 2 ranks, 256 MiB":[533.065,465.963,609.831],
"collectives: broadcast of 2 ranks, 256 MiB":[901.215,754.837,1075.979],
"collectives: alltoall of 2 ranks, 256 MiB":[527.061,450.948,616.021],
"collectives: sendrecv of 2 ranks, 256 MiB":[1095.901,917.951,1308.348],
"collectives: all_reduce of 2 ranks, 1 GiB":[3195.314,2792.427,3656.328],
"collectives: all_gather of 2 ranks, 1 GiB":[1824.771,1568.026,2123.554],
"collectives: reduce_scatter of 2 ranks, 1 GiB":[2014.396,1762.658,2302.087],
"collectives: broadcast of 2 ranks, 1 GiB":[3476.943,2894.461,4176.643],
"collectives: alltoall of 2 ranks, 1 GiB":[1904.034,1656.877,2188.06],
"collectives: sendrecv of 2 ranks, 1 GiB":[3347.249,2807.333,3991.004],
"collectives: all_reduce of 4 ranks, 1 KiB":[11.384,9.391,13.8],
"collectives: all_gather of 4 ranks, 1 KiB":[9.46,8.059,11.104],
"collectives: reduce_scatter of 4 ranks, 1 KiB":[9.281,7.931,10.861],
"collectives: broadcast of 4 ranks, 1 KiB":[10.229,8.402,12.453],
"collectives: alltoall of 4 ranks, 1 KiB":[8.248,6.653,10.225],
"collectives: sendrecv of 4 ranks, 1 KiB":[7.508,5.973,9.437],
"collectives: all_reduce of 4 ranks, 4 KiB":[11.417,9.421,13.835],
"collectives: all_gather of 4 ranks, 4 KiB":[9.477,8.075,11.122],
"collectives: reduce_scatter of 4 ranks, 4 KiB":[9.297,7.946,10.878],
"collectives: broadcast of 4 ranks, 4 KiB":[10.251,8.423,12.476],
"collectives: alltoall of 4 ranks, 4 KiB":[8.425,6.813,10.418],
"collectives: sendrecv of 4 ranks, 4 KiB":[7.645,6.093,9.592],
"collectives: all_reduce of 4 ranks, 16 KiB":[11.547,9.542,13.973],
"collectives: all_gather of 4 ranks, 16 KiB":[9.544,8.137,11.194],
"collectives: reduce_scatter of 4 ranks, 16 KiB":[9.362,8.005,10.948],
"collectives: broadcast of 4 ranks, 16 KiB":[10.338,8.504,12.568],
"collectives: alltoall of 4 ranks, 16 KiB":[8.793,7.131,10.842],
"collectives: sendrecv of 4 ranks, 16 KiB":[7.963,6.36,9.971],
"collectives: all_reduce of 4 ranks, 64 KiB":[12.07,9.691,15.033],
"collectives: all_gather of 4 ranks, 64 KiB":[9.811,8.06,11.942],
"collectives: reduce_scatter of 4 ranks, 64 KiB":[9.624,7.926,11.686],
"collectives: broadcast of 4 ranks, 64 KiB":[10.687,8.539,13.375],
"collectives: alltoall of 4 ranks, 64 KiB":[9.583,7.532,12.192],
"collectives: sendrecv of 4 ranks, 64 KiB":[8.772,6.801,11.314],
"collectives: all_reduce of 4 ranks, 256 KiB":[14.162,11.527,17.399],
"collectives: all_gather of 4 ranks, 256 KiB":[10.881,8.952,13.226],
"collectives: reduce_scatter of 4 ranks, 256 KiB":[10.67,8.833,12.889],
"collectives: broadcast of 4 ranks, 256 KiB":[12.081,9.766,14.944],
"collectives: alltoall of 4 ranks, 256 KiB":[11.379,8.831,14.662],
"collectives: sendrecv of 4 ranks, 256 KiB":[11.085,8.527,14.41],
"collectives: all_reduce of 4 ranks, 1 MiB":[22.528,18.782,27.022],
"collectives: all_gather of 4 ranks, 1 MiB":[15.159,12.177,18.871],
"collectives: reduce_scatter of 4 ranks, 1 MiB":[14.853,12.438,17.737],
"collectives: broadcast of 4 ranks, 1 MiB":[17.659,14.626,21.321],
"collectives: alltoall of 4 ranks, 1 MiB":[15.84,11.974,20.954],
"collectives: sendrecv of 4 ranks, 1 MiB":[18.489,14.156,24.149],
"collectives: all_reduce of 4 ranks, 4 MiB":[44.512,35.269,56.178],
"collectives: all_gather of 4 ranks, 4 MiB":[31.843,25.835,39.248],
"collectives: reduce_scatter of 4 ranks, 4 MiB":[31.585,27.15,36.744],
"collectives: broadcast of 4 ranks, 4 MiB":[31.438,24.925,39.652],
"collectives: alltoall of 4 ranks, 4 MiB":[28.236,21.319,37.398],
"collectives: sendrecv of 4 ranks, 4 MiB":[44.409,34.886,56.531],
"collectives: all_reduce of 4 ranks, 16 MiB":[94.762,78.561,114.303],
"collectives: all_gather of 4 ranks, 16 MiB":[60.806,50.716,72.903],
"collectives: reduce_scatter of 4 ranks, 16 MiB":[61.336,50.522,74.465],
"collectives: broadcast of 4 ranks, 16 MiB":[70.89,57.91,86.779],
"collectives: alltoall of 4 ranks, 16 MiB":[66.92,52.047,86.044],
"collectives: sendrecv of 4 ranks, 16 MiB":[140.698,112.518,175.935],
"collectives: all_reduce of 4 ranks, 64 MiB":[296.075,246.615,355.455],
"collectives: all_gather of 4 ranks, 64 MiB":[176.974,147.649,212.123],
"collectives: reduce_scatter of 4 ranks, 64 MiB":[178.906,145.985,219.252],
"collectives: broadcast of 4 ranks, 64 MiB":[224.07,181.832,276.12],
"collectives: alltoall of 4 ranks, 64 MiB":[200.176,162.055,247.265],
"collectives: sendrecv of 4 ranks, 64 MiB":[511.391,411.768,635.117],
"collectives: all_reduce of 4 ranks, 256 MiB":[1096.498,955.636,1258.123],
"collectives: all_gather of 4 ranks, 256 MiB":[640.386,557.313,735.842],
"collectives: reduce_scatter of 4 ranks, 256 MiB":[647.925,545.422,769.692],
"collectives: broadcast of 4 ranks, 256 MiB":[829.276,694.264,990.544],
"collectives: alltoall of 4 ranks, 256 MiB":[688.345,595.839,795.212],
"collectives: sendrecv of 4 ranks, 256 MiB":[997.766,835.702,1191.258],
"collectives: all_reduce of 4 ranks, 1 GiB":[4139.886,3611.639,4745.395],
"collectives: all_gather of 4 ranks, 1 GiB":[2410.135,2102.494,2762.79],
"collectives: reduce_scatter of 4 ranks, 1 GiB":[2460.171,2059.679,2938.537],
"collectives: broadcast of 4 ranks, 1 GiB":[3211.045,2664.42,3869.814],
"collectives: alltoall of 4 ranks, 1 GiB":[2553.837,2228.235,2927.018],
"collectives: sendrecv of 4 ranks, 1 GiB":[3058.324,2561.901,3650.94],
"collectives: all_reduce of 8 ranks, 1 KiB":[19.098,14.777,24.682],
"collectives: all_gather of 8 ranks, 1 KiB":[13.673,11.056,16.909],
"collectives: reduce_scatter of 8 ranks, 1 KiB":[13.252,10.759,16.322],
"collectives: broadcast of 8 ranks, 1 KiB":[14.474,11.166,18.762],
"collectives: alltoall of 8 ranks, 1 KiB":[10.638,7.928,14.274],
"collectives: sendrecv of 8 ranks, 1 KiB":[8.491,5.999,12.018],
"collectives: all_reduce of 8 ranks, 4 KiB":[19.136,14.813,24.721],
"collectives: all_gather of 8 ranks, 4 KiB":[13.692,11.074,16.929],
"collectives: reduce_scatter of 8 ranks, 4 KiB":[13.271,10.777,16.342],
"collectives: broadcast of 8 ranks, 4 KiB":[14.496,11.186,18.785],
"collectives: alltoall of 8 ranks, 4 KiB":[10.81,8.08,14.463],
"collectives: sendrecv of 8 ranks, 4 KiB":[8.773,6.245,12.324],
"collectives: all_reduce of 8 ranks, 16 KiB":[19.288,14.955,24.877],
"collectives: all_gather of 8 ranks, 16 KiB":[13.769,11.146,17.01],
"collectives: reduce_scatter of 8 ranks, 16 KiB":[13.347,10.848,16.422],
"collectives: broadcast of 8 ranks, 16 KiB":[14.583,11.268,18.874],
"collectives: alltoall of 8 ranks, 16 KiB":[11.17,8.387,14.876],
"collectives: sendrecv of 8 ranks, 16 KiB":[9.422,6.796,13.063],
"collectives: all_reduce of 8 ranks, 64 KiB":[19.898,15.119,26.187],
"collectives: all_gather of 8 ranks, 64 KiB":[14.074,11.082,17.874],
"collectives: reduce_scatter of 8 ranks, 64 KiB":[13.652,10.787,17.277],
"collectives: broadcast of 8 ranks, 64 KiB":[14.932,11.296,19.738],
"collectives: alltoall of 8 ranks, 64 KiB":[11.949,8.811,16.205],
"collectives: sendrecv of 8 ranks, 64 KiB":[11.067,7.968,15.37],
"collectives: all_reduce of 8 ranks, 256 KiB":[22.338,17.298,28.847],
"collectives: all_gather of 8 ranks, 256 KiB":[15.294,12.163,19.232],
"collectives: reduce_scatter of 8 ranks, 256 KiB":[14.872,11.867,18.639],
"collectives: broadcast of 8 ranks, 256 KiB":[16.326,12.543,21.25],
"collectives: alltoall of 8 ranks, 256 KiB":[13.753,10.149,18.637],
"collectives: sendrecv of 8 ranks, 256 KiB":[15.745,11.628,21.32],
"collectives: all_reduce of 8 ranks, 1 MiB":[32.099,25.929,39.738],
"collectives: all_gather of 8 ranks, 1 MiB":[20.174,16.451,24.74],
"collectives: reduce_scatter of 8 ranks, 1 MiB":[19.752,16.149,24.159],
"collectives: broadcast of 8 ranks, 1 MiB":[21.904,17.493,27.427],
"collectives: alltoall of 8 ranks, 1 MiB":[18.341,13.426,25.056],
"collectives: sendrecv of 8 ranks, 1 MiB":[30.651,23.48,40.012],
"collectives: all_reduce of 8 ranks, 4 MiB":[58.006,41.224,81.62],
"collectives: all_gather of 8 ranks, 4 MiB":[39.695,33.819,46.591],
"collectives: reduce_scatter of 8 ranks, 4 MiB":[39.274,33.497,46.048],
"collectives: broadcast of 8 ranks, 4 MiB":[29.354,24.857,34.665],
"collectives: alltoall of 8 ranks, 4 MiB":[31.432,23.259,42.478],
"collectives: sendrecv of 8 ranks, 4 MiB":[82.666,66.687,102.473],
"collectives: all_reduce of 8 ranks, 16 MiB":[123.554,93.093,163.982],
"collectives: all_gather of 8 ranks, 16 MiB":[75.152,61.759,91.449],
"collectives: reduce_scatter of 8 ranks, 16 MiB":[78.118,63.622,95.916],
"collectives: broadcast of 8 ranks, 16 MiB":[74.783,59.352,94.226],
"collectives: alltoall of 8 ranks, 16 MiB":[73.281,56.349,95.301],
"collectives: sendrecv of 8 ranks, 16 MiB":[275.502,227.667,333.387],
"collectives: all_reduce of 8 ranks, 64 MiB":[344.083,274.668,431.041],
"collectives: all_gather of 8 ranks, 64 MiB":[206.546,172.93,246.696],
"collectives: reduce_scatter of 8 ranks, 64 MiB":[208.978,174.827,249.801],
"collectives: broadcast of 8 ranks, 64 MiB":[230.501,187.622,283.179],
"collectives: alltoall of 8 ranks, 64 MiB":[219.958,177.224,272.997],
"collectives: sendrecv of 8 ranks, 64 MiB":[1016.721,846.204,1221.599],
"collectives: all_reduce of 8 ranks, 256 MiB":[1140.985,986.072,1320.235],
"collectives: all_gather of 8 ranks, 256 MiB":[724.705,636.19,825.536],
"collectives: reduce_scatter of 8 ranks, 256 MiB":[727.921,637.413,831.281],
"collectives: broadcast of 8 ranks, 256 MiB":[832.305,701.587,987.378],
"collectives: alltoall of 8 ranks, 256 MiB":[763.34,659.317,883.774],
"collectives: sendrecv of 8 ranks, 256 MiB":[1016.721,887.271,1165.058],
"collectives: all_reduce of 8 ranks, 1 GiB":[4160.687,3656.439,4734.475],
"collectives: all_gather of 8 ranks, 1 GiB":[2701.749,2372.629,3076.523],
"collectives: reduce_scatter of 8 ranks, 1 GiB":[2707.599,2377.103,3084.045],
"collectives: broadcast of 8 ranks, 1 GiB":[3221.355,2705.318,3835.825],
"collectives: alltoall of 8 ranks, 1 GiB":[2852.739,2486.835,3272.481],
"collectives: sendrecv of 8 ranks, 1 GiB":[3089.908,2699.218,3537.147]}}""",
    'hgx_b200': r"""{"device":"B200 SXM",
"models":["B200"],
"num_sms":148,
"times":{
"launches: add_ of one element, host":[2.0],
"launches: add_ of one element, back to back":[2.009],
"launches: add_ of one element, in a CUDA graph":[1.74],
"launches: add_ of one element and synchronize":[3.742],
"copies: pinned host to device, 4 KiB":[4.86],
"copies: device to pinned host, 4 KiB":[4.86],
"copies: on the device, 4 KiB":[2.009],
"copies: pinned host to device, 64 KiB":[4.86],
"copies: device to pinned host, 64 KiB":[4.86],
"copies: on the device, 64 KiB":[2.009],
"copies: pinned host to device, 1 MiB":[21.855],
"copies: device to pinned host, 1 MiB":[21.855],
"copies: on the device, 1 MiB":[2.358],
"copies: pinned host to device, 16 MiB":[349.56],
"copies: device to pinned host, 16 MiB":[349.56],
"copies: on the device, 16 MiB":[8.963],
"copies: pinned host to device, 256 MiB":[5593.072],
"copies: device to pinned host, 256 MiB":[5593.072],
"copies: on the device, 256 MiB":[81.907],
"products: bfloat16 1x4096x4096":[12.583,10.83,14.619],
"products: bfloat16 16x8192x8192":[27.086,23.313,31.469],
"products: bfloat16 128x4096x14336":[30.685,27.27,34.528],
"products: bfloat16 512x4096x4096":[16.61,14.761,18.69],
"products: bfloat16 2048x2048x2048":[16.107,14.765,17.571],
"products: bfloat16 4096x4096x4096":[90.773,83.21,99.024],
"products: bfloat16 4096x14336x4096":[314.406,288.209,342.984],
"products: bfloat16 8192x8192x8192":[726.901,666.333,792.974],
"products: bfloat16 1000x1000x1000":[6.373,5.664,7.171],
"products: float16 1x4096x4096":[12.583,10.83,14.619],
"products: float16 16x8192x8192":[27.086,23.313,31.469],
"products: float16 128x4096x14336":[30.685,27.27,34.528],
"products: float16 512x4096x4096":[16.61,14.761,18.69],
"products: float16 2048x2048x2048":[16.107,14.765,17.571],
"products: float16 4096x4096x4096":[90.773,83.21,99.024],
"products: float16 4096x14336x4096":[314.406,288.209,342.984],
"products: float16 8192x8192x8192":[726.901,666.333,792.974],
"products: float16 1000x1000x1000":[6.373,5.664,7.171],
"products: float32 1x4096x4096":[9.732],
"products: float32 16x8192x8192":[39.061],
"products: float32 128x4096x14336":[200.453],
"products: float32 512x4096x4096":[229.09],
"products: float32 2048x2048x2048":[229.086],
"products: float32 4096x4096x4096":[1832.603],
"products: float32 4096x14336x4096":[6413.984],
"products: float32 8192x8192x8192":[14660.488],
"products: float32 1000x1000x1000":[26.67],
"products: float32 as TF32 1x4096x4096":[17.387],
"products: float32 as TF32 16x8192x8192":[47.927],
"products: float32 as TF32 128x4096x14336":[49.896],
"products: float32 as TF32 512x4096x4096":[29.389],
"products: float32 as TF32 2048x2048x2048":[26.603],
"products: float32 as TF32 4096x4096x4096":[185.842],
"products: float32 as TF32 4096x14336x4096":[646.934],
"products: float32 as TF32 8192x8192x8192":[1462.92],
"products: float32 as TF32 1000x1000x1000":[8.101],
"attention: forward: batch 1, 32 heads, 32 of keys, 1024 tokens, width 128":[16.727],
"attention: backward: batch 1, 32 heads, 32 of keys, 1024 tokens, width 128":[42.289],
"attention: forward: batch 1, 32 heads, 8 of keys, 4096 tokens, width 128":[130.892],
"attention: backward: batch 1, 32 heads, 8 of keys, 4096 tokens, width 128":[388.167],
"attention: forward: batch 4, 16 heads, 16 of keys, 2048 tokens, width 64":[58.356],
"attention: backward: batch 4, 16 heads, 16 of keys, 2048 tokens, width 64":[135.144],
"kernels: kernel add":[4.917],
"kernels: kernel softmax":[4.917],
"kernels: kernel norm":[4.917],
"kernels: kernel product":[9.372],
"collectives: all_reduce of 2 ranks, 1 KiB":[10.113,8.35,12.248],
"collectives: all_gather of 2 ranks, 1 KiB":[9.191,7.589,11.132],
"collectives: reduce_scatter of 2 ranks, 1 KiB":[8.981,7.53,10.712],
"collectives: broadcast of 2 ranks, 1 KiB":[10.547,8.228,13.52],
"collectives: alltoall of 2 ranks, 1 KiB":[9.797,7.188,13.354],
"collectives: sendrecv of 2 ranks, 1 KiB":[9.416,6.794,13.049],
"collectives: all_reduce of 2 ranks, 4 KiB":[10.126,8.363,12.261],
"collectives: all_gather of 2 ranks, 4 KiB":[9.199,7.596,11.14],
"collectives: reduce_scatter of 2 ranks, 4 KiB":[8.99,7.538,10.722],
"collectives: broadcast of 2 ranks, 4 KiB":[10.562,8.242,13.536],
"collectives: alltoall of 2 ranks, 4 KiB":[9.959,7.337,13.519],
"collectives: sendrecv of 2 ranks, 4 KiB":[9.553,6.917,13.193],
"collectives: all_reduce of 2 ranks, 16 KiB":[10.179,8.412,12.317],
"collectives: all_gather of 2 ranks, 16 KiB":[9.233,7.628,11.176],
"collectives: reduce_scatter of 2 ranks, 16 KiB":[9.026,7.571,10.76],
"collectives: broadcast of 2 ranks, 16 KiB":[10.622,8.298,13.598],
"collectives: alltoall of 2 ranks, 16 KiB":[10.291,7.636,13.868],
"collectives: sendrecv of 2 ranks, 16 KiB":[9.852,7.177,13.525],
"collectives: all_reduce of 2 ranks, 64 KiB":[10.388,8.321,12.968],
"collectives: all_gather of 2 ranks, 64 KiB":[9.369,7.498,11.707],
"collectives: reduce_scatter of 2 ranks, 64 KiB":[9.17,7.433,11.313],
"collectives: broadcast of 2 ranks, 64 KiB":[10.861,8.292,14.225],
"collectives: alltoall of 2 ranks, 64 KiB":[10.977,8.048,14.971],
"collectives: sendrecv of 2 ranks, 64 KiB":[10.541,7.582,14.656],
"collectives: all_reduce of 2 ranks, 256 KiB":[11.226,9.047,13.93],
"collectives: all_gather of 2 ranks, 256 KiB":[9.914,7.964,12.341],
"collectives: reduce_scatter of 2 ranks, 256 KiB":[9.748,7.933,11.979],
"collectives: broadcast of 2 ranks, 256 KiB":[11.819,9.112,15.33],
"collectives: alltoall of 2 ranks, 256 KiB":[12.443,9.223,16.788],
"collectives: sendrecv of 2 ranks, 256 KiB":[12.286,8.912,16.936],
"collectives: all_reduce of 2 ranks, 1 MiB":[14.579,11.781,18.042],
"collectives: all_gather of 2 ranks, 1 MiB":[12.094,9.674,15.12],
"collectives: reduce_scatter of 2 ranks, 1 MiB":[12.059,9.836,14.785],
"collectives: broadcast of 2 ranks, 1 MiB":[15.652,12.035,20.356],
"collectives: alltoall of 2 ranks, 1 MiB":[15.751,11.699,21.206],
"collectives: sendrecv of 2 ranks, 1 MiB":[17.244,12.591,23.617],
"collectives: all_reduce of 2 ranks, 4 MiB":[27.988,22.008,35.592],
"collectives: all_gather of 2 ranks, 4 MiB":[20.814,15.753,27.501],
"collectives: reduce_scatter of 2 ranks, 4 MiB":[21.305,17.018,26.672],
"collectives: broadcast of 2 ranks, 4 MiB":[30.235,24.441,37.403],
"collectives: alltoall of 2 ranks, 4 MiB":[23.872,17.75,32.106],
"collectives: sendrecv of 2 ranks, 4 MiB":[33.031,24.812,43.972],
"collectives: all_reduce of 2 ranks, 16 MiB":[52.019,43.731,61.878],
"collectives: all_gather of 2 ranks, 16 MiB":[36.348,30.658,43.094],
"collectives: reduce_scatter of 2 ranks, 16 MiB":[38.003,32.143,44.932],
"collectives: broadcast of 2 ranks, 16 MiB":[55.003,45.373,66.676],
"collectives: alltoall of 2 ranks, 16 MiB":[46.131,34.623,61.464],
"collectives: sendrecv of 2 ranks, 16 MiB":[88.091,68.686,112.978],
"collectives: all_reduce of 2 ranks, 64 MiB":[144.664,121.654,172.026],
"collectives: all_gather of 2 ranks, 64 MiB":[89.311,74.899,106.496],
"collectives: reduce_scatter of 2 ranks, 64 MiB":[96.271,81.124,114.246],
"collectives: broadcast of 2 ranks, 64 MiB":[154.392,126.283,188.758],
"collectives: alltoall of 2 ranks, 64 MiB":[115.03,89.747,147.436],
"collectives: sendrecv of 2 ranks, 64 MiB":[292.47,234.146,365.321],
"collectives: all_reduce of 2 ranks, 256 MiB":[513.985,452.438,583.905],
"collectives: all_gather of 2 ranks, 256 MiB":[299.904,261.569,343.858],
"collectives: reduce_scatter of 2 ranks, 256 MiB":[328.084,288.849,372.649],
"collectives: broadcast of 2 ranks, 256 MiB":[550.689,464.5,652.87],
"collectives: alltoall of 2 ranks, 256 MiB":[348.462,294.653,412.098],
"collectives: sendrecv of 2 ranks, 256 MiB":[1076.377,904.716,1280.609],
"collectives: all_reduce of 2 ranks, 1 GiB":[1961.838,1725.156,2230.992],
"collectives: all_gather of 2 ranks, 1 GiB":[1122.06,974.755,1291.626],
"collectives: reduce_scatter of 2 ranks, 1 GiB":[1239.618,1090.114,1409.626],
"collectives: broadcast of 2 ranks, 1 GiB":[2135.876,1794.637,2542.0],
"collectives: alltoall of 2 ranks, 1 GiB":[1200.389,1042.434,1382.278],
"collectives: sendrecv of 2 ranks, 1 GiB":[2105.251,1772.618,2500.303],
"collectives: all_reduce of 4 ranks, 1 KiB":[15.03,12.098,18.672],
"collectives: all_gather of 4 ranks, 1 KiB":[11.741,9.718,14.186],
"collectives: reduce_scatter of 4 ranks, 1 KiB":[11.399,9.471,13.72],
"collectives: broadcast of 4 ranks, 1 KiB":[13.195,10.31,16.887],
"collectives: alltoall of 4 ranks, 1 KiB":[10.57,7.948,14.057],
"collectives: sendrecv of 4 ranks, 1 KiB":[9.293,6.725,12.841],
"collectives: all_reduce of 4 ranks, 4 KiB":[15.046,12.113,18.689],
"collectives: all_gather of 4 ranks, 4 KiB":[11.751,9.727,14.196],
"collectives: reduce_scatter of 4 ranks, 4 KiB":[11.408,9.479,13.729],
"collectives: broadcast of 4 ranks, 4 KiB":[13.207,10.321,16.9],
"collectives: alltoall of 4 ranks, 4 KiB":[10.718,8.084,14.211],
"collectives: sendrecv of 4 ranks, 4 KiB":[9.42,6.84,12.974],
"collectives: all_reduce of 4 ranks, 16 KiB":[15.112,12.174,18.758],
"collectives: all_gather of 4 ranks, 16 KiB":[11.792,9.765,14.24],
"collectives: reduce_scatter of 4 ranks, 16 KiB":[11.445,9.514,13.769],
"collectives: broadcast of 4 ranks, 16 KiB":[13.254,10.365,16.948],
"collectives: alltoall of 4 ranks, 16 KiB":[11.02,8.356,14.533],
"collectives: sendrecv of 4 ranks, 16 KiB":[9.712,7.097,13.29],
"collectives: all_reduce of 4 ranks, 64 KiB":[15.373,12.048,19.615],
"collectives: all_gather of 4 ranks, 64 KiB":[11.953,9.585,14.907],
"collectives: reduce_scatter of 4 ranks, 64 KiB":[11.595,9.325,14.417],
"collectives: broadcast of 4 ranks, 64 KiB":[13.444,10.262,17.613],
"collectives: alltoall of 4 ranks, 64 KiB":[11.654,8.693,15.623],
"collectives: sendrecv of 4 ranks, 64 KiB":[10.446,7.557,14.439],
"collectives: all_reduce of 4 ranks, 256 KiB":[16.419,12.976,20.775],
"collectives: all_gather of 4 ranks, 256 KiB":[12.598,10.147,15.641],
"collectives: reduce_scatter of 4 ranks, 256 KiB":[12.191,9.833,15.114],
"collectives: broadcast of 4 ranks, 256 KiB":[14.204,10.921,18.474],
"collectives: alltoall of 4 ranks, 256 KiB":[13.038,9.805,17.337],
"collectives: sendrecv of 4 ranks, 256 KiB":[12.519,9.228,16.983],
"collectives: all_reduce of 4 ranks, 1 MiB":[20.602,16.664,25.47],
"collectives: all_gather of 4 ranks, 1 MiB":[15.18,12.305,18.727],
"collectives: reduce_scatter of 4 ranks, 1 MiB":[14.577,11.692,18.173],
"collectives: broadcast of 4 ranks, 1 MiB":[17.244,13.34,22.29],
"collectives: alltoall of 4 ranks, 1 MiB":[16.273,12.258,21.603],
"collectives: sendrecv of 4 ranks, 1 MiB":[19.085,14.437,25.229],
"collectives: all_reduce of 4 ranks, 4 MiB":[37.335,31.644,44.05],
"collectives: all_gather of 4 ranks, 4 MiB":[25.507,20.453,31.81],
"collectives: reduce_scatter of 4 ranks, 4 MiB":[24.122,18.24,31.901],
"collectives: broadcast of 4 ranks, 4 MiB":[29.402,21.686,39.863],
"collectives: alltoall of 4 ranks, 4 MiB":[24.611,18.629,32.514],
"collectives: sendrecv of 4 ranks, 4 MiB":[41.895,32.94,53.284],
"collectives: all_reduce of 4 ranks, 16 MiB":[74.524,58.941,94.226],
"collectives: all_gather of 4 ranks, 16 MiB":[49.42,39.744,61.452],
"collectives: reduce_scatter of 4 ranks, 16 MiB":[49.749,39.734,62.288],
"collectives: broadcast of 4 ranks, 16 MiB":[56.453,44.283,71.968],
"collectives: alltoall of 4 ranks, 16 MiB":[48.75,37.428,63.497],
"collectives: sendrecv of 4 ranks, 16 MiB":[126.231,101.286,157.32],
"collectives: all_reduce of 4 ranks, 64 MiB":[182.848,152.278,219.556],
"collectives: all_gather of 4 ranks, 64 MiB":[111.99,93.456,134.2],
"collectives: reduce_scatter of 4 ranks, 64 MiB":[113.072,92.763,137.828],
"collectives: broadcast of 4 ranks, 64 MiB":[139.557,113.675,171.332],
"collectives: alltoall of 4 ranks, 64 MiB":[127.207,101.438,159.522],
"collectives: sendrecv of 4 ranks, 64 MiB":[450.08,363.848,556.748],
"collectives: all_reduce of 4 ranks, 256 MiB":[614.883,541.174,698.631],
"collectives: all_gather of 4 ranks, 256 MiB":[361.01,317.228,410.835],
"collectives: reduce_scatter of 4 ranks, 256 MiB":[365.105,310.397,429.455],
"collectives: broadcast of 4 ranks, 256 MiB":[464.887,392.792,550.215],
"collectives: alltoall of 4 ranks, 256 MiB":[402.94,346.764,468.217],
"collectives: sendrecv of 4 ranks, 256 MiB":[874.485,736.174,1038.782],
"collectives: all_reduce of 4 ranks, 1 GiB":[2291.704,2018.268,2602.186],
"collectives: all_gather of 4 ranks, 1 GiB":[1343.06,1180.033,1528.61],
"collectives: reduce_scatter of 4 ranks, 1 GiB":[1373.239,1160.22,1625.368],
"collectives: broadcast of 4 ranks, 1 GiB":[1762.574,1481.067,2097.586],
"collectives: alltoall of 4 ranks, 1 GiB":[1432.203,1255.388,1633.921],
"collectives: sendrecv of 4 ranks, 1 GiB":[1716.593,1445.585,2038.408],
"collectives: all_reduce of 8 ranks, 1 KiB":[25.806,19.585,34.004],
"collectives: all_gather of 8 ranks, 1 KiB":[17.381,13.759,21.956],
"collectives: reduce_scatter of 8 ranks, 1 KiB":[16.742,13.295,21.083],
"collectives: broadcast of 8 ranks, 1 KiB":[18.558,13.926,24.731],
"collectives: alltoall of 8 ranks, 1 KiB":[12.794,9.68,16.911],
"collectives: sendrecv of 8 ranks, 1 KiB":[9.447,6.812,13.101],
"collectives: all_reduce of 8 ranks, 4 KiB":[25.825,19.602,34.023],
"collectives: all_gather of 8 ranks, 4 KiB":[17.391,13.769,21.966],
"collectives: reduce_scatter of 8 ranks, 4 KiB":[16.752,13.304,21.093],
"collectives: broadcast of 8 ranks, 4 KiB":[18.569,13.936,24.742],
"collectives: alltoall of 8 ranks, 4 KiB":[12.955,9.821,17.088],
"collectives: sendrecv of 8 ranks, 4 KiB":[9.725,7.063,13.39],
"collectives: all_reduce of 8 ranks, 16 KiB":[25.901,19.673,34.1],
"collectives: all_gather of 8 ranks, 16 KiB":[17.429,13.804,22.006],
"collectives: reduce_scatter of 8 ranks, 16 KiB":[16.792,13.342,21.134],
"collectives: broadcast of 8 ranks, 16 KiB":[18.613,13.977,24.786],
"collectives: alltoall of 8 ranks, 16 KiB":[13.285,10.106,17.464],
"collectives: sendrecv of 8 ranks, 16 KiB":[10.353,7.615,14.076],
"collectives: all_reduce of 8 ranks, 64 KiB":[26.206,19.479,35.255],
"collectives: all_gather of 8 ranks, 64 KiB":[17.582,13.561,22.796],
"collectives: reduce_scatter of 8 ranks, 64 KiB":[16.952,13.113,21.915],
"collectives: broadcast of 8 ranks, 64 KiB":[18.791,13.816,25.557],
"collectives: alltoall of 8 ranks, 64 KiB":[13.976,10.422,18.742],
"collectives: sendrecv of 8 ranks, 64 KiB":[11.893,8.715,16.231],
"collectives: all_reduce of 8 ranks, 256 KiB":[27.426,20.573,36.562],
"collectives: all_gather of 8 ranks, 256 KiB":[18.192,14.104,23.464],
"collectives: reduce_scatter of 8 ranks, 256 KiB":[17.593,13.681,22.624],
"collectives: broadcast of 8 ranks, 256 KiB":[19.502,14.445,26.33],
"collectives: alltoall of 8 ranks, 256 KiB":[15.482,11.57,20.717],
"collectives: sendrecv of 8 ranks, 256 KiB":[16.115,12.073,21.511],
"collectives: all_reduce of 8 ranks, 1 MiB":[32.306,24.934,41.857],
"collectives: all_gather of 8 ranks, 1 MiB":[20.632,16.273,26.159],
"collectives: reduce_scatter of 8 ranks, 1 MiB":[20.158,15.894,25.565],
"collectives: broadcast of 8 ranks, 1 MiB":[22.344,16.837,29.653],
"collectives: alltoall of 8 ranks, 1 MiB":[18.992,14.092,25.595],
"collectives: sendrecv of 8 ranks, 1 MiB":[29.124,22.435,37.807],
"collectives: all_reduce of 8 ranks, 4 MiB":[51.828,42.711,62.891],
"collectives: all_gather of 8 ranks, 4 MiB":[30.392,25.182,36.68],
"collectives: reduce_scatter of 8 ranks, 4 MiB":[30.416,24.372,37.959],
"collectives: broadcast of 8 ranks, 4 MiB":[23.302,17.528,30.978],
"collectives: alltoall of 8 ranks, 4 MiB":[27.998,20.677,37.912],
"collectives: sendrecv of 8 ranks, 4 MiB":[73.407,59.193,91.034],
"collectives: all_reduce of 8 ranks, 16 MiB":[96.695,76.724,121.864],
"collectives: all_gather of 8 ranks, 16 MiB":[63.655,49.273,82.235],
"collectives: reduce_scatter of 8 ranks, 16 MiB":[66.908,50.274,89.045],
"collectives: broadcast of 8 ranks, 16 MiB":[64.627,47.087,88.701],
"collectives: alltoall of 8 ranks, 16 MiB":[53.96,40.312,72.228],
"collectives: sendrecv of 8 ranks, 16 MiB":[235.028,194.282,284.32],
"collectives: all_reduce of 8 ranks, 64 MiB":[235.188,193.446,285.937],
"collectives: all_gather of 8 ranks, 64 MiB":[130.496,107.773,158.009],
"collectives: reduce_scatter of 8 ranks, 64 MiB":[135.154,111.067,164.465],
"collectives: broadcast of 8 ranks, 64 MiB":[146.634,117.024,183.737],
"collectives: alltoall of 8 ranks, 64 MiB":[138.005,107.832,176.621],
"collectives: sendrecv of 8 ranks, 64 MiB":[850.807,709.606,1020.105],
"collectives: all_reduce of 8 ranks, 256 MiB":[706.374,595.072,838.494],
"collectives: all_gather of 8 ranks, 256 MiB":[396.598,349.271,450.338],
"collectives: reduce_scatter of 8 ranks, 256 MiB":[400.173,352.488,454.309],
"collectives: broadcast of 8 ranks, 256 MiB":[452.609,383.452,534.239],
"collectives: alltoall of 8 ranks, 256 MiB":[432.68,367.33,509.656],
"collectives: sendrecv of 8 ranks, 256 MiB":[850.807,744.598,972.166],
"collectives: all_reduce of 8 ranks, 1 GiB":[2433.068,2119.236,2793.374],
"collectives: all_gather of 8 ranks, 1 GiB":[1429.608,1259.813,1622.287],
"collectives: reduce_scatter of 8 ranks, 1 GiB":[1437.142,1264.296,1633.618],
"collectives: broadcast of 8 ranks, 1 GiB":[1665.122,1404.045,1974.745],
"collectives: alltoall of 8 ranks, 1 GiB":[1530.891,1332.764,1758.471],
"collectives: sendrecv of 8 ranks, 1 GiB":[1655.765,1451.472,1888.812]}}""",
    'hgx_h20': r"""{"device":"H20 SXM",
"models":["H20"],
"num_sms":78,
"times":{
"launches: add_ of one element, host":[2.0],
"launches: add_ of one element, back to back":[2.009],
"launches: add_ of one element, in a CUDA graph":[1.74],
"launches: add_ of one element and synchronize":[3.742],
"copies: pinned host to device, 4 KiB":[5.0],
"copies: device to pinned host, 4 KiB":[5.0],
"copies: on the device, 4 KiB":[2.009],
"copies: pinned host to device, 64 KiB":[5.0],
"copies: device to pinned host, 64 KiB":[5.0],
"copies: on the device, 64 KiB":[2.009],
"copies: pinned host to device, 1 MiB":[21.855],
"copies: device to pinned host, 1 MiB":[21.855],
"copies: on the device, 1 MiB":[2.969],
"copies: pinned host to device, 16 MiB":[349.56],
"copies: device to pinned host, 16 MiB":[349.56],
"copies: on the device, 16 MiB":[13.854],
"copies: pinned host to device, 256 MiB":[5593.072],
"copies: device to pinned host, 256 MiB":[5593.072],
"copies: on the device, 256 MiB":[160.173],
"products: bfloat16 1x4096x4096":[27.3,17.165,43.419],
"products: bfloat16 16x8192x8192":[84.832,53.339,134.919],
"products: bfloat16 128x4096x14336":[140.271,103.312,242.155],
"products: bfloat16 512x4096x4096":[157.994,117.846,272.75],
"products: bfloat16 2048x2048x2048":[157.985,117.841,234.276],
"products: bfloat16 4096x4096x4096":[1179.105,930.529,1748.495],
"products: bfloat16 4096x14336x4096":[4058.193,3252.218,6017.897],
"products: bfloat16 8192x8192x8192":[9329.942,7431.137,13835.376],
"products: bfloat16 1000x1000x1000":[24.677,14.938,42.601],
"products: float16 1x4096x4096":[27.3,17.165,43.419],
"products: float16 16x8192x8192":[84.832,53.339,134.919],
"products: float16 128x4096x14336":[140.271,103.312,242.155],
"products: float16 512x4096x4096":[157.994,117.846,272.75],
"products: float16 2048x2048x2048":[157.985,117.841,234.276],
"products: float16 4096x4096x4096":[1179.105,930.529,1748.495],
"products: float16 4096x14336x4096":[4058.193,3252.218,6017.897],
"products: float16 8192x8192x8192":[9329.942,7431.137,13835.376],
"products: float16 1000x1000x1000":[24.677,14.938,42.601],
"products: float32 1x4096x4096":[64.226],
"products: float32 16x8192x8192":[256.902],
"products: float32 128x4096x14336":[449.579],
"products: float32 512x4096x4096":[513.815],
"products: float32 2048x2048x2048":[513.773],
"products: float32 4096x4096x4096":[4110.1],
"products: float32 4096x14336x4096":[14385.225],
"products: float32 8192x8192x8192":[32880.466],
"products: float32 1000x1000x1000":[59.814],
"products: float32 as TF32 1x4096x4096":[46.929],
"products: float32 as TF32 16x8192x8192":[161.004],
"products: float32 as TF32 128x4096x14336":[271.081],
"products: float32 as TF32 512x4096x4096":[304.503],
"products: float32 as TF32 2048x2048x2048":[304.49],
"products: float32 as TF32 4096x4096x4096":[2349.1],
"products: float32 as TF32 4096x14336x4096":[8110.427],
"products: float32 as TF32 8192x8192x8192":[18608.38],
"products: float32 as TF32 1000x1000x1000":[44.094],
"attention: forward: batch 1, 32 heads, 32 of keys, 1024 tokens, width 128":[173.137],
"attention: backward: batch 1, 32 heads, 32 of keys, 1024 tokens, width 128":[522.518],
"attention: forward: batch 1, 32 heads, 8 of keys, 4096 tokens, width 128":[1773.291],
"attention: backward: batch 1, 32 heads, 8 of keys, 4096 tokens, width 128":[5288.257],
"attention: forward: batch 4, 16 heads, 16 of keys, 2048 tokens, width 64":[746.915],
"attention: backward: batch 4, 16 heads, 16 of keys, 2048 tokens, width 64":[1809.95],
"kernels: kernel add":[5.057],
"kernels: kernel softmax":[5.057],
"kernels: kernel norm":[5.057],
"kernels: kernel product":[6.257],
"collectives: all_reduce of 2 ranks, 1 KiB":[8.366,7.25,9.654],
"collectives: all_gather of 2 ranks, 1 KiB":[7.753,6.794,8.848],
"collectives: reduce_scatter of 2 ranks, 1 KiB":[7.678,6.746,8.739],
"collectives: broadcast of 2 ranks, 1 KiB":[8.451,7.223,9.887],
"collectives: alltoall of 2 ranks, 1 KiB":[7.039,5.931,8.354],
"collectives: sendrecv of 2 ranks, 1 KiB":[6.884,5.796,8.177],
"collectives: all_reduce of 2 ranks, 4 KiB":[8.388,7.27,9.678],
"collectives: all_gather of 2 ranks, 4 KiB":[7.765,6.804,8.861],
"collectives: reduce_scatter of 2 ranks, 4 KiB":[7.691,6.757,8.754],
"collectives: broadcast of 2 ranks, 4 KiB":[8.473,7.244,9.911],
"collectives: alltoall of 2 ranks, 4 KiB":[7.222,6.091,8.563],
"collectives: sendrecv of 2 ranks, 4 KiB":[7.007,5.899,8.323],
"collectives: all_reduce of 2 ranks, 16 KiB":[8.475,7.349,9.774],
"collectives: all_gather of 2 ranks, 16 KiB":[7.811,6.846,8.912],
"collectives: reduce_scatter of 2 ranks, 16 KiB":[7.74,6.802,8.808],
"collectives: broadcast of 2 ranks, 16 KiB":[8.56,7.323,10.005],
"collectives: alltoall of 2 ranks, 16 KiB":[7.598,6.398,9.023],
"collectives: sendrecv of 2 ranks, 16 KiB":[7.275,6.106,8.668],
"collectives: all_reduce of 2 ranks, 64 KiB":[8.823,7.346,10.597],
"collectives: all_gather of 2 ranks, 64 KiB":[7.996,6.702,9.539],
"collectives: reduce_scatter of 2 ranks, 64 KiB":[7.935,6.666,9.446],
"collectives: broadcast of 2 ranks, 64 KiB":[8.908,7.344,10.805],
"collectives: alltoall of 2 ranks, 64 KiB":[8.391,6.747,10.436],
"collectives: sendrecv of 2 ranks, 64 KiB":[7.908,6.33,9.879],
"collectives: all_reduce of 2 ranks, 256 KiB":[10.218,8.547,12.216],
"collectives: all_gather of 2 ranks, 256 KiB":[8.735,7.291,10.465],
"collectives: reduce_scatter of 2 ranks, 256 KiB":[8.719,7.31,10.399],
"collectives: broadcast of 2 ranks, 256 KiB":[10.303,8.552,12.412],
"collectives: alltoall of 2 ranks, 256 KiB":[10.132,7.911,12.977],
"collectives: sendrecv of 2 ranks, 256 KiB":[9.55,7.417,12.296],
"collectives: all_reduce of 2 ranks, 1 MiB":[15.795,13.319,18.731],
"collectives: all_gather of 2 ranks, 1 MiB":[11.691,9.342,14.63],
"collectives: reduce_scatter of 2 ranks, 1 MiB":[11.853,9.686,14.505],
"collectives: broadcast of 2 ranks, 1 MiB":[15.88,13.345,18.896],
"collectives: alltoall of 2 ranks, 1 MiB":[14.242,10.632,19.077],
"collectives: sendrecv of 2 ranks, 1 MiB":[14.347,10.758,19.134],
"collectives: all_reduce of 2 ranks, 4 MiB":[31.34,26.316,37.324],
"collectives: all_gather of 2 ranks, 4 MiB":[23.515,16.949,32.624],
"collectives: reduce_scatter of 2 ranks, 4 MiB":[24.39,18.742,31.74],
"collectives: broadcast of 2 ranks, 4 MiB":[32.591,27.021,39.309],
"collectives: alltoall of 2 ranks, 4 MiB":[24.973,18.359,33.97],
"collectives: sendrecv of 2 ranks, 4 MiB":[29.989,22.747,39.537],
"collectives: all_reduce of 2 ranks, 16 MiB":[69.873,58.781,83.059],
"collectives: all_gather of 2 ranks, 16 MiB":[46.07,38.749,54.775],
"collectives: reduce_scatter of 2 ranks, 16 MiB":[49.02,41.454,57.967],
"collectives: broadcast of 2 ranks, 16 MiB":[73.939,60.869,89.815],
"collectives: alltoall of 2 ranks, 16 MiB":[56.479,42.594,74.891],
"collectives: sendrecv of 2 ranks, 16 MiB":[85.461,66.936,109.113],
"collectives: all_reduce of 2 ranks, 64 MiB":[224.323,187.324,268.629],
"collectives: all_gather of 2 ranks, 64 MiB":[134.275,111.275,162.029],
"collectives: reduce_scatter of 2 ranks, 64 MiB":[146.081,122.332,174.44],
"collectives: broadcast of 2 ranks, 64 MiB":[239.646,194.353,295.494],
"collectives: alltoall of 2 ranks, 64 MiB":[159.982,126.73,201.958],
"collectives: sendrecv of 2 ranks, 64 MiB":[293.476,234.892,366.671],
"collectives: all_reduce of 2 ranks, 256 MiB":[840.86,733.472,963.971],
"collectives: all_gather of 2 ranks, 256 MiB":[485.834,417.545,565.291],
"collectives: reduce_scatter of 2 ranks, 256 MiB":[533.065,465.963,609.831],
"collectives: broadcast of 2 ranks, 256 MiB":[901.215,754.837,1075.979],
"collectives: alltoall of 2 ranks, 256 MiB":[527.061,450.948,616.021],
"collectives: sendrecv of 2 ranks, 256 MiB":[1095.901,917.951,1308.348],
"collectives: all_reduce of 2 ranks, 1 GiB":[3195.314,2792.427,3656.328],
"collectives: all_gather of 2 ranks, 1 GiB":[1824.771,1568.026,2123.554],
"collectives: reduce_scatter of 2 ranks, 1 GiB":[2014.396,1762.658,2302.087],
"collectives: broadcast of 2 ranks, 1 GiB":[3476.943,2894.461,4176.643],
"collectives: alltoall of 2 ranks, 1 GiB":[1904.034,1656.877,2188.06],
"collectives: sendrecv of 2 ranks, 1 GiB":[3347.249,2807.333,3991.004],
"collectives: all_reduce of 4 ranks, 1 KiB":[11.384,9.391,13.8],
"collectives: all_gather of 4 ranks, 1 KiB":[9.46,8.059,11.104],
"collectives: reduce_scatter of 4 ranks, 1 KiB":[9.281,7.931,10.861],
"collectives: broadcast of 4 ranks, 1 KiB":[10.229,8.402,12.453],
"collectives: alltoall of 4 ranks, 1 KiB":[8.248,6.653,10.225],
"collectives: sendrecv of 4 ranks, 1 KiB":[7.508,5.973,9.437],
"collectives: all_reduce of 4 ranks, 4 KiB":[11.417,9.421,13.835],
"collectives: all_gather of 4 ranks, 4 KiB":[9.477,8.075,11.122],
"collectives: reduce_scatter of 4 ranks, 4 KiB":[9.297,7.946,10.878],
"collectives: broadcast of 4 ranks, 4 KiB":[10.251,8.423,12.476],
"collectives: alltoall of 4 ranks, 4 KiB":[8.425,6.813,10.418],
"collectives: sendrecv of 4 ranks, 4 KiB":[7.645,6.093,9.592],
"collectives: all_reduce of 4 ranks, 16 KiB":[11.547,9.542,13.973],
"collectives: all_gather of 4 ranks, 16 KiB":[9.544,8.137,11.194],
"collectives: reduce_scatter of 4 ranks, 16 KiB":[9.362,8.005,10.948],
"collectives: broadcast of 4 ranks, 16 KiB":[10.338,8.504,12.568],
"collectives: alltoall of 4 ranks, 16 KiB":[8.793,7.131,10.842],
"collectives: sendrecv of 4 ranks, 16 KiB":[7.963,6.36,9.971],
"collectives: all_reduce of 4 ranks, 64 KiB":[12.07,9.691,15.033],
"collectives: all_gather of 4 ranks, 64 KiB":[9.811,8.06,11.942],
"collectives: reduce_scatter of 4 ranks, 64 KiB":[9.624,7.926,11.686],
"collectives: broadcast of 4 ranks, 64 KiB":[10.687,8.539,13.375],
"collectives: alltoall of 4 ranks, 64 KiB":[9.583,7.532,12.192],
"collectives: sendrecv of 4 ranks, 64 KiB":[8.772,6.801,11.314],
"collectives: all_reduce of 4 ranks, 256 KiB":[14.162,11.527,17.399],
"collectives: all_gather of 4 ranks, 256 KiB":[10.881,8.952,13.226],
"collectives: reduce_scatter of 4 ranks, 256 KiB":[10.67,8.833,12.889],
"collectives: broadcast of 4 ranks, 256 KiB":[12.081,9.766,14.944],
"collectives: alltoall of 4 ranks, 256 KiB":[11.379,8.831,14.662],
"collectives: sendrecv of 4 ranks, 256 KiB":[11.085,8.527,14.41],
"collectives: all_reduce of 4 ranks, 1 MiB":[22.528,18.782,27.022],
"collectives: all_gather of 4 ranks, 1 MiB":[15.159,12.177,18.871],
"collectives: reduce_scatter of 4 ranks, 1 MiB":[14.853,12.438,17.737],
"collectives: broadcast of 4 ranks, 1 MiB":[17.659,14.626,21.321],
"collectives: alltoall of 4 ranks, 1 MiB":[15.84,11.974,20.954],
"collectives: sendrecv of 4 ranks, 1 MiB":[18.489,14.156,24.149],
"collectives: all_reduce of 4 ranks, 4 MiB":[44.512,35.269,56.178],
"collectives: all_gather of 4 ranks, 4 MiB":[31.843,25.835,39.248],
"collectives: reduce_scatter of 4 ranks, 4 MiB":[31.585,27.15,36.744],
"collectives: broadcast of 4 ranks, 4 MiB":[31.438,24.925,39.652],
"collectives: alltoall of 4 ranks, 4 MiB":[28.236,21.319,37.398],
"collectives: sendrecv of 4 ranks, 4 MiB":[44.409,34.886,56.531],
"collectives: all_reduce of 4 ranks, 16 MiB":[94.762,78.561,114.303],
"collectives: all_gather of 4 ranks, 16 MiB":[60.806,50.716,72.903],
"collectives: reduce_scatter of 4 ranks, 16 MiB":[61.336,50.522,74.465],
"collectives: broadcast of 4 ranks, 16 MiB":[70.89,57.91,86.779],
"collectives: alltoall of 4 ranks, 16 MiB":[66.92,52.047,86.044],
"collectives: sendrecv of 4 ranks, 16 MiB":[140.698,112.518,175.935],
"collectives: all_reduce of 4 ranks, 64 MiB":[296.075,246.615,355.455],
"collectives: all_gather of 4 ranks, 64 MiB":[176.974,147.649,212.123],
"collectives: reduce_scatter of 4 ranks, 64 MiB":[178.906,145.985,219.252],
"collectives: broadcast of 4 ranks, 64 MiB":[224.07,181.832,276.12],
"collectives: alltoall of 4 ranks, 64 MiB":[200.176,162.055,247.265],
"collectives: sendrecv of 4 ranks, 64 MiB":[511.391,411.768,635.117],
"collectives: all_reduce of 4 ranks, 256 MiB":[1096.498,955.636,1258.123],
"collectives: all_gather of 4 ranks, 256 MiB":[640.386,557.313,735.842],
"collectives: reduce_scatter of 4 ranks, 256 MiB":[647.925,545.422,769.692],
"collectives: broadcast of 4 ranks, 256 MiB":[829.276,694.264,990.544],
"collectives: alltoall of 4 ranks, 256 MiB":[688.345,595.839,795.212],
"collectives: sendrecv of 4 ranks, 256 MiB":[997.766,835.702,1191.258],
"collectives: all_reduce of 4 ranks, 1 GiB":[4139.886,3611.639,4745.395],
"collectives: all_gather of 4 ranks, 1 GiB":[2410.135,2102.494,2762.79],
"collectives: reduce_scatter of 4 ranks, 1 GiB":[2460.171,2059.679,2938.537],
"collectives: broadcast of 4 ranks, 1 GiB":[3211.045,2664.42,3869.814],
"collectives: alltoall of 4 ranks, 1 GiB":[2553.837,2228.235,2927.018],
"collectives: sendrecv of 4 ranks, 1 GiB":[3058.324,2561.901,3650.94],
"collectives: all_reduce of 8 ranks, 1 KiB":[19.098,14.777,24.682],
"collectives: all_gather of 8 ranks, 1 KiB":[13.673,11.056,16.909],
"collectives: reduce_scatter of 8 ranks, 1 KiB":[13.252,10.759,16.322],
"collectives: broadcast of 8 ranks, 1 KiB":[14.474,11.166,18.762],
"collectives: alltoall of 8 ranks, 1 KiB":[10.638,7.928,14.274],
"collectives: sendrecv of 8 ranks, 1 KiB":[8.491,5.999,12.018],
"collectives: all_reduce of 8 ranks, 4 KiB":[19.136,14.813,24.721],
"collectives: all_gather of 8 ranks, 4 KiB":[13.692,11.074,16.929],
"collectives: reduce_scatter of 8 ranks, 4 KiB":[13.271,10.777,16.342],
"collectives: broadcast of 8 ranks, 4 KiB":[14.496,11.186,18.785],
"collectives: alltoall of 8 ranks, 4 KiB":[10.81,8.08,14.463],
"collectives: sendrecv of 8 ranks, 4 KiB":[8.773,6.245,12.324],
"collectives: all_reduce of 8 ranks, 16 KiB":[19.288,14.955,24.877],
"collectives: all_gather of 8 ranks, 16 KiB":[13.769,11.146,17.01],
"collectives: reduce_scatter of 8 ranks, 16 KiB":[13.347,10.848,16.422],
"collectives: broadcast of 8 ranks, 16 KiB":[14.583,11.268,18.874],
"collectives: alltoall of 8 ranks, 16 KiB":[11.17,8.387,14.876],
"collectives: sendrecv of 8 ranks, 16 KiB":[9.422,6.796,13.063],
"collectives: all_reduce of 8 ranks, 64 KiB":[19.898,15.119,26.187],
"collectives: all_gather of 8 ranks, 64 KiB":[14.074,11.082,17.874],
"collectives: reduce_scatter of 8 ranks, 64 KiB":[13.652,10.787,17.277],
"collectives: broadcast of 8 ranks, 64 KiB":[14.932,11.296,19.738],
"collectives: alltoall of 8 ranks, 64 KiB":[11.949,8.811,16.205],
"collectives: sendrecv of 8 ranks, 64 KiB":[11.067,7.968,15.37],
"collectives: all_reduce of 8 ranks, 256 KiB":[22.338,17.298,28.847],
"collectives: all_gather of 8 ranks, 256 KiB":[15.294,12.163,19.232],
"collectives: reduce_scatter of 8 ranks, 256 KiB":[14.872,11.867,18.639],
"collectives: broadcast of 8 ranks, 256 KiB":[16.326,12.543,21.25],
"collectives: alltoall of 8 ranks, 256 KiB":[13.753,10.149,18.637],
"collectives: sendrecv of 8 ranks, 256 KiB":[15.745,11.628,21.32],
"collectives: all_reduce of 8 ranks, 1 MiB":[32.099,25.929,39.738],
"collectives: all_gather of 8 ranks, 1 MiB":[20.174,16.451,24.74],
"collectives: reduce_scatter of 8 ranks, 1 MiB":[19.752,16.149,24.159],
"collectives: broadcast of 8 ranks, 1 MiB":[21.904,17.493,27.427],
"collectives: alltoall of 8 ranks, 1 MiB":[18.341,13.426,25.056],
"collectives: sendrecv of 8 ranks, 1 MiB":[30.651,23.48,40.012],
"collectives: all_reduce of 8 ranks, 4 MiB":[58.006,41.224,81.62],
"collectives: all_gather of 8 ranks, 4 MiB":[39.695,33.819,46.591],
"collectives: reduce_scatter of 8 ranks, 4 MiB":[39.274,33.497,46.048],
"collectives: broadcast of 8 ranks, 4 MiB":[29.354,24.857,34.665],
"collectives: alltoall of 8 ranks, 4 MiB":[31.432,23.259,42.478],
"collectives: sendrecv of 8 ranks, 4 MiB":[82.666,66.687,102.473],
"collectives: all_reduce of 8 ranks, 16 MiB":[123.554,93.093,163.982],
"collectives: all_gather of 8 ranks, 16 MiB":[75.152,61.759,91.449],
"collectives: reduce_scatter of 8 ranks, 16 MiB":[78.118,63.622,95.916],
"collectives: broadcast of 8 ranks, 16 MiB":[74.783,59.352,94.226],
"collectives: alltoall of 8 ranks, 16 MiB":[73.281,56.349,95.301],
"collectives: sendrecv of 8 ranks, 16 MiB":[275.502,227.667,333.387],
"collectives: all_reduce of 8 ranks, 64 MiB":[344.083,274.668,431.041],
"collectives: all_gather of 8 ranks, 64 MiB":[206.546,172.93,246.696],
"collectives: reduce_scatter of 8 ranks, 64 MiB":[208.978,174.827,249.801],
"collectives: broadcast of 8 ranks, 64 MiB":[230.501,187.622,283.179],
"collectives: alltoall of 8 ranks, 64 MiB":[219.958,177.224,272.997],
"collectives: sendrecv of 8 ranks, 64 MiB":[1016.721,846.204,1221.599],
"collectives: all_reduce of 8 ranks, 256 MiB":[1140.985,986.072,1320.235],
"collectives: all_gather of 8 ranks, 256 MiB":[724.705,636.19,825.536],
"collectives: reduce_scatter of 8 ranks, 256 MiB":[727.921,637.413,831.281],
"collectives: broadcast of 8 ranks, 256 MiB":[832.305,701.587,987.378],
"collectives: alltoall of 8 ranks, 256 MiB":[763.34,659.317,883.774],
"collectives: sendrecv of 8 ranks, 256 MiB":[1016.721,887.271,1165.058],
"collectives: all_reduce of 8 ranks, 1 GiB":[4160.687,3656.439,4734.475],
"collectives: all_gather of 8 ranks, 1 GiB":[2701.749,2372.629,3076.523],
"collectives: reduce_scatter of 8 ranks, 1 GiB":[2707.599,2377.103,3084.045],
"collectives: broadcast of 8 ranks, 1 GiB":[3221.355,2705.318,3835.825],
"collectives: alltoall of 8 ranks, 1 GiB":[2852.739,2486.835,3272.481],
"collectives: sendrecv of 8 ranks, 1 GiB":[3089.908,2699.218,3537.147]}}""",
    'l40s_pcie': r"""{"device":"L40S",
"models":["L40S"],
"num_sms":142,
"times":{
"launches: add_ of one element, host":[2.0],
"launches: add_ of one element, back to back":[2.009],
"launches: add_ of one element, in a CUDA graph":[1.74],
"launches: add_ of one element and synchronize":[3.742],
"copies: pinned host to device, 4 KiB":[5.01],
"copies: device to pinned host, 4 KiB":[5.01],
"copies: on the device, 4 KiB":[2.009],
"copies: pinned host to device, 64 KiB":[5.01],
"copies: device to pinned host, 64 KiB":[5.01],
"copies: on the device, 64 KiB":[2.103],
"copies: pinned host to device, 1 MiB":[43.701],
"copies: device to pinned host, 1 MiB":[43.701],
"copies: on the device, 1 MiB":[6.923],
"copies: pinned host to device, 16 MiB":[699.122],
"copies: device to pinned host, 16 MiB":[699.122],
"copies: on the device, 16 MiB":[49.261],
"copies: pinned host to device, 256 MiB":[11185.477],
"copies: device to pinned host, 256 MiB":[11185.477],
"copies: on the device, 256 MiB":[726.736],
"products: bfloat16 1x4096x4096":[50.895,39.716,65.22],
"products: bfloat16 16x8192x8192":[203.112,158.5,260.28],
"products: bfloat16 128x4096x14336":[199.608,164.903,241.617],
"products: bfloat16 512x4096x4096":[79.929,66.032,96.751],
"products: bfloat16 2048x2048x2048":[79.864,70.691,90.227],
"products: bfloat16 4096x4096x4096":[603.281,533.993,681.559],
"products: bfloat16 4096x14336x4096":[2238.329,1981.253,2528.761],
"products: bfloat16 8192x8192x8192":[5481.045,4851.538,6192.233],
"products: bfloat16 1000x1000x1000":[14.249,11.772,17.248],
"products: float16 1x4096x4096":[50.895,39.716,65.22],
"products: float16 16x8192x8192":[203.112,158.5,260.28],
"products: float16 128x4096x14336":[199.608,164.903,241.617],
"products: float16 512x4096x4096":[79.929,66.032,96.751],
"products: float16 2048x2048x2048":[79.864,70.691,90.227],
"products: float16 4096x4096x4096":[603.281,533.993,681.559],
"products: float16 4096x14336x4096":[2238.329,1981.253,2528.761],
"products: float16 8192x8192x8192":[5481.045,4851.538,6192.233],
"products: float16 1000x1000x1000":[14.249,11.772,17.248],
"products: float32 1x4096x4096":[90.375],
"products: float32 16x8192x8192":[362.734],
"products: float32 128x4096x14336":[328.86],
"products: float32 512x4096x4096":[187.572],
"products: float32 2048x2048x2048":[187.574],
"products: float32 4096x4096x4096":[1500.509],
"products: float32 4096x14336x4096":[5251.655],
"products: float32 8192x8192x8192":[12003.735],
"products: float32 1000x1000x1000":[21.837],
"products: float32 as TF32 1x4096x4096":[93.662],
"products: float32 as TF32 16x8192x8192":[391.254],
"products: float32 as TF32 128x4096x14336":[388.476],
"products: float32 as TF32 512x4096x4096":[165.879],
"products: float32 as TF32 2048x2048x2048":[144.551],
"products: float32 as TF32 4096x4096x4096":[1283.319],
"products: float32 as TF32 4096x14336x4096":[4603.158],
"products: float32 as TF32 8192x8192x8192":[10918.995],
"products: float32 as TF32 1000x1000x1000":[23.72],
"attention: forward: batch 1, 32 heads, 32 of keys, 1024 tokens, width 128":[77.834],
"attention: backward: batch 1, 32 heads, 32 of keys, 1024 tokens, width 128":[207.217],
"attention: forward: batch 1, 32 heads, 8 of keys, 4096 tokens, width 128":[736.009],
"attention: backward: batch 1, 32 heads, 8 of keys, 4096 tokens, width 128":[2029.882],
"attention: forward: batch 4, 16 heads, 16 of keys, 2048 tokens, width 64":[224.093],
"attention: backward: batch 4, 16 heads, 16 of keys, 2048 tokens, width 64":[612.25],
"kernels: kernel add":[5.067],
"kernels: kernel softmax":[5.067],
"kernels: kernel norm":[5.067],
"kernels: kernel product":[9.963],
"collectives: all_reduce of 2 ranks, 1 KiB":[8.767,7.515,10.228],
"collectives: all_gather of 2 ranks, 1 KiB":[7.993,6.956,9.185],
"collectives: reduce_scatter of 2 ranks, 1 KiB":[7.909,6.907,9.057],
"collectives: broadcast of 2 ranks, 1 KiB":[8.868,7.482,10.511],
"collectives: alltoall of 2 ranks, 1 KiB":[7.94,6.612,9.535],
"collectives: sendrecv of 2 ranks, 1 KiB":[7.616,6.339,9.151],
"collectives: all_reduce of 2 ranks, 4 KiB":[9.008,7.733,10.493],
"collectives: all_gather of 2 ranks, 4 KiB":[8.15,7.096,9.361],
"collectives: reduce_scatter of 2 ranks, 4 KiB":[8.075,7.055,9.242],
"collectives: broadcast of 2 ranks, 4 KiB":[9.144,7.729,10.818],
"collectives: alltoall of 2 ranks, 4 KiB":[8.569,7.1,10.343],
"collectives: sendrecv of 2 ranks, 4 KiB":[8.064,6.685,9.727],
"collectives: all_reduce of 2 ranks, 16 KiB":[9.973,8.548,11.636],
"collectives: all_gather of 2 ranks, 16 KiB":[8.777,7.609,10.124],
"collectives: reduce_scatter of 2 ranks, 16 KiB":[8.74,7.614,10.033],
"collectives: broadcast of 2 ranks, 16 KiB":[10.247,8.611,12.194],
"collectives: alltoall of 2 ranks, 16 KiB":[9.979,8.07,12.34],
"collectives: sendrecv of 2 ranks, 16 KiB":[9.251,7.531,11.363],
"collectives: all_reduce of 2 ranks, 64 KiB":[13.832,10.945,17.48],
"collectives: all_gather of 2 ranks, 64 KiB":[11.287,8.982,14.184],
"collectives: reduce_scatter of 2 ranks, 64 KiB":[11.401,9.186,14.15],
"collectives: broadcast of 2 ranks, 64 KiB":[14.658,11.104,19.35],
"collectives: alltoall of 2 ranks, 64 KiB":[13.412,10.071,17.862],
"collectives: sendrecv of 2 ranks, 64 KiB":[12.783,9.744,16.77],
"collectives: all_reduce of 2 ranks, 256 KiB":[29.267,20.859,41.063],
"collectives: all_gather of 2 ranks, 256 KiB":[21.323,14.904,30.507],
"collectives: reduce_scatter of 2 ranks, 256 KiB":[22.043,15.994,30.38],
"collectives: broadcast of 2 ranks, 256 KiB":[32.302,21.239,49.127],
"collectives: alltoall of 2 ranks, 256 KiB":[22.731,16.408,31.49],
"collectives: sendrecv of 2 ranks, 256 KiB":[24.485,18.046,33.222],
"collectives: all_reduce of 2 ranks, 1 MiB":[74.459,55.821,99.321],
"collectives: all_gather of 2 ranks, 1 MiB":[46.428,34.909,61.748],
"collectives: reduce_scatter of 2 ranks, 1 MiB":[49.45,37.442,65.31],
"collectives: broadcast of 2 ranks, 1 MiB":[82.636,58.063,117.608],
"collectives: alltoall of 2 ranks, 1 MiB":[51.183,36.815,71.159],
"collectives: sendrecv of 2 ranks, 1 MiB":[66.434,48.23,91.51],
"collectives: all_reduce of 2 ranks, 4 MiB":[225.396,168.559,301.398],
"collectives: all_gather of 2 ranks, 4 MiB":[132.381,98.719,177.522],
"collectives: reduce_scatter of 2 ranks, 4 MiB":[144.696,108.599,192.791],
"collectives: broadcast of 2 ranks, 4 MiB":[248.551,178.829,345.457],
"collectives: alltoall of 2 ranks, 4 MiB":[147.339,108.328,200.399],
"collectives: sendrecv of 2 ranks, 4 MiB":[224.512,163.185,308.886],
"collectives: all_reduce of 2 ranks, 16 MiB":[804.352,595.756,1085.986],
"collectives: all_gather of 2 ranks, 16 MiB":[462.284,340.45,627.717],
"collectives: reduce_scatter of 2 ranks, 16 MiB":[509.106,377.704,686.223],
"collectives: broadcast of 2 ranks, 16 MiB":[877.703,633.969,1215.143],
"collectives: alltoall of 2 ranks, 16 MiB":[496.657,367.355,671.471],
"collectives: sendrecv of 2 ranks, 16 MiB":[837.397,605.911,1157.322],
"collectives: all_reduce of 2 ranks, 64 MiB":[3070.91,2262.222,4168.683],
"collectives: all_gather of 2 ranks, 64 MiB":[1754.393,1283.613,2397.837],
"collectives: reduce_scatter of 2 ranks, 64 MiB":[1933.909,1426.115,2622.513],
"collectives: broadcast of 2 ranks, 64 MiB":[3325.603,2398.722,4610.636],
"collectives: alltoall of 2 ranks, 64 MiB":[1823.633,1346.844,2469.207],
"collectives: sendrecv of 2 ranks, 64 MiB":[3250.391,2345.234,4504.898],
"collectives: all_reduce of 2 ranks, 256 MiB":[12036.719,9072.16,15970.023],
"collectives: all_gather of 2 ranks, 256 MiB":[6865.927,5134.433,9181.337],
"collectives: reduce_scatter of 2 ranks, 256 MiB":[7565.56,5707.26,10028.927],
"collectives: broadcast of 2 ranks, 256 MiB":[12977.905,9569.52,17600.258],
"collectives: alltoall of 2 ranks, 256 MiB":[6989.059,5281.315,9249.012],
"collectives: sendrecv of 2 ranks, 256 MiB":[12823.385,9461.848,17379.184],
"collectives: all_reduce of 2 ranks, 1 GiB":[47701.621,35899.102,63384.445],
"collectives: all_gather of 2 ranks, 1 GiB":[27200.787,20307.53,36433.915],
"collectives: reduce_scatter of 2 ranks, 1 GiB":[29959.559,22564.541,39778.127],
"collectives: broadcast of 2 ranks, 1 GiB":[51311.035,37783.482,69681.833],
"collectives: alltoall of 2 ranks, 1 GiB":[27368.318,20631.333,36305.208],
"collectives: sendrecv of 2 ranks, 1 GiB":[50959.918,37567.006,69127.502]}}""",
    'gb200_nvl72': r"""{"device":"GB200",
"models":["GB200"],
"num_sms":148,
"times":{
"launches: add_ of one element, host":[2.0],
"launches: add_ of one element, back to back":[2.009],
"launches: add_ of one element, in a CUDA graph":[1.74],
"launches: add_ of one element and synchronize":[3.742],
"copies: pinned host to device, 4 KiB":[4.86],
"copies: device to pinned host, 4 KiB":[4.86],
"copies: on the device, 4 KiB":[2.009],
"copies: pinned host to device, 64 KiB":[4.86],
"copies: device to pinned host, 64 KiB":[4.86],
"copies: on the device, 64 KiB":[2.009],
"copies: pinned host to device, 1 MiB":[4.86],
"copies: device to pinned host, 1 MiB":[4.86],
"copies: on the device, 1 MiB":[2.358],
"copies: pinned host to device, 16 MiB":[74.575],
"copies: device to pinned host, 16 MiB":[74.575],
"copies: on the device, 16 MiB":[8.963],
"copies: pinned host to device, 256 MiB":[1193.171],
"copies: device to pinned host, 256 MiB":[1193.171],
"copies: on the device, 256 MiB":[81.907],
"products: bfloat16 1x4096x4096":[12.557,10.808,14.589],
"products: bfloat16 16x8192x8192":[26.308,22.644,30.566],
"products: bfloat16 128x4096x14336":[28.525,25.098,32.42],
"products: bfloat16 512x4096x4096":[15.885,13.976,18.054],
"products: bfloat16 2048x2048x2048":[15.007,13.444,16.752],
"products: bfloat16 4096x4096x4096":[81.954,73.417,91.483],
"products: bfloat16 4096x14336x4096":[289.396,259.251,323.046],
"products: bfloat16 8192x8192x8192":[712.002,637.836,794.792],
"products: bfloat16 1000x1000x1000":[6.277,5.523,7.134],
"products: float16 1x4096x4096":[12.557,10.808,14.589],
"products: float16 16x8192x8192":[26.308,22.644,30.566],
"products: float16 128x4096x14336":[28.525,25.098,32.42],
"products: float16 512x4096x4096":[15.885,13.976,18.054],
"products: float16 2048x2048x2048":[15.007,13.444,16.752],
"products: float16 4096x4096x4096":[81.954,73.417,91.483],
"products: float16 4096x14336x4096":[289.396,259.251,323.046],
"products: float16 8192x8192x8192":[712.002,637.836,794.792],
"products: float16 1000x1000x1000":[6.277,5.523,7.134],
"products: float32 1x4096x4096":[9.732],
"products: float32 16x8192x8192":[39.061],
"products: float32 128x4096x14336":[187.924],
"products: float32 512x4096x4096":[214.771],
"products: float32 2048x2048x2048":[214.769],
"products: float32 4096x4096x4096":[1718.07],
"products: float32 4096x14336x4096":[6013.121],
"products: float32 8192x8192x8192":[13744.229],
"products: float32 1000x1000x1000":[25.003],
"products: float32 as TF32 1x4096x4096":[16.752],
"products: float32 as TF32 16x8192x8192":[48.806],
"products: float32 as TF32 128x4096x14336":[48.294],
"products: float32 as TF32 512x4096x4096":[27.866],
"products: float32 as TF32 2048x2048x2048":[25.178],
"products: float32 as TF32 4096x4096x4096":[165.65],
"products: float32 as TF32 4096x14336x4096":[627.727],
"products: float32 as TF32 8192x8192x8192":[1315.217],
"products: float32 as TF32 1000x1000x1000":[7.863],
"attention: forward: batch 1, 32 heads, 32 of keys, 1024 tokens, width 128":[15.525],
"attention: backward: batch 1, 32 heads, 32 of keys, 1024 tokens, width 128":[38.531],
"attention: forward: batch 1, 32 heads, 8 of keys, 4096 tokens, width 128":[118.273],
"attention: backward: batch 1, 32 heads, 8 of keys, 4096 tokens, width 128":[349.82],
"attention: forward: batch 4, 16 heads, 16 of keys, 2048 tokens, width 64":[52.991],
"attention: backward: batch 4, 16 heads, 16 of keys, 2048 tokens, width 64":[122.1],
"kernels: kernel add":[4.917],
"kernels: kernel softmax":[4.917],
"kernels: kernel norm":[4.917],
"kernels: kernel product":[9.382],
"collectives: all_reduce of 2 ranks, 1 KiB":[10.113,8.35,12.248],
"collectives: all_gather of 2 ranks, 1 KiB":[9.191,7.589,11.132],
"collectives: reduce_scatter of 2 ranks, 1 KiB":[8.981,7.53,10.712],
"collectives: broadcast of 2 ranks, 1 KiB":[10.547,8.228,13.52],
"collectives: alltoall of 2 ranks, 1 KiB":[9.797,7.188,13.354],
"collectives: sendrecv of 2 ranks, 1 KiB":[9.416,6.794,13.049],
"collectives: all_reduce of 2 ranks, 4 KiB":[10.126,8.363,12.261],
"collectives: all_gather of 2 ranks, 4 KiB":[9.199,7.596,11.14],
"collectives: reduce_scatter of 2 ranks, 4 KiB":[8.99,7.538,10.722],
"collectives: broadcast of 2 ranks, 4 KiB":[10.562,8.242,13.536],
"collectives: alltoall of 2 ranks, 4 KiB":[9.959,7.337,13.519],
"collectives: sendrecv of 2 ranks, 4 KiB":[9.553,6.917,13.193],
"collectives: all_reduce of 2 ranks, 16 KiB":[10.179,8.412,12.317],
"collectives: all_gather of 2 ranks, 16 KiB":[9.233,7.628,11.176],
"collectives: reduce_scatter of 2 ranks, 16 KiB":[9.026,7.571,10.76],
"collectives: broadcast of 2 ranks, 16 KiB":[10.622,8.298,13.598],
"collectives: alltoall of 2 ranks, 16 KiB":[10.291,7.636,13.868],
"collectives: sendrecv of 2 ranks, 16 KiB":[9.852,7.177,13.525],
"collectives: all_reduce of 2 ranks, 64 KiB":[10.388,8.321,12.968],
"collectives: all_gather of 2 ranks, 64 KiB":[9.369,7.498,11.707],
"collectives: reduce_scatter of 2 ranks, 64 KiB":[9.17,7.433,11.313],
"collectives: broadcast of 2 ranks, 64 KiB":[10.861,8.292,14.225],
"collectives: alltoall of 2 ranks, 64 KiB":[10.977,8.048,14.971],
"collectives: sendrecv of 2 ranks, 64 KiB":[10.541,7.582,14.656],
"collectives: all_reduce of 2 ranks, 256 KiB":[11.226,9.047,13.93],
"collectives: all_gather of 2 ranks, 256 KiB":[9.914,7.964,12.341],
"collectives: reduce_scatter of 2 ranks, 256 KiB":[9.748,7.933,11.979],
"collectives: broadcast of 2 ranks, 256 KiB":[11.819,9.112,15.33],
"collectives: alltoall of 2 ranks, 256 KiB":[12.443,9.223,16.788],
"collectives: sendrecv of 2 ranks, 256 KiB":[12.286,8.912,16.936],
"collectives: all_reduce of 2 ranks, 1 MiB":[14.579,11.781,18.042],
"collectives: all_gather of 2 ranks, 1 MiB":[12.094,9.674,15.12],
"collectives: reduce_scatter of 2 ranks, 1 MiB":[12.059,9.836,14.785],
"collectives: broadcast of 2 ranks, 1 MiB":[15.652,12.035,20.356],
"collectives: alltoall of 2 ranks, 1 MiB":[15.751,11.699,21.206],
"collectives: sendrecv of 2 ranks, 1 MiB":[17.244,12.591,23.617],
"collectives: all_reduce of 2 ranks, 4 MiB":[27.988,22.008,35.592],
"collectives: all_gather of 2 ranks, 4 MiB":[20.814,15.753,27.501],
"collectives: reduce_scatter of 2 ranks, 4 MiB":[21.305,17.018,26.672],
"collectives: broadcast of 2 ranks, 4 MiB":[30.235,24.441,37.403],
"collectives: alltoall of 2 ranks, 4 MiB":[23.872,17.75,32.106],
"collectives: sendrecv of 2 ranks, 4 MiB":[33.031,24.812,43.972],
"collectives: all_reduce of 2 ranks, 16 MiB":[52.019,43.731,61.878],
"collectives: all_gather of 2 ranks, 16 MiB":[36.348,30.658,43.094],
"collectives: reduce_scatter of 2 ranks, 16 MiB":[38.003,32.143,44.932],
"collectives: broadcast of 2 ranks, 16 MiB":[55.003,45.373,66.676],
"collectives: alltoall of 2 ranks, 16 MiB":[46.131,34.623,61.464],
"collectives: sendrecv of 2 ranks, 16 MiB":[88.091,68.686,112.978],
"collectives: all_reduce of 2 ranks, 64 MiB":[144.664,121.654,172.026],
"collectives: all_gather of 2 ranks, 64 MiB":[89.311,74.899,106.496],
"collectives: reduce_scatter of 2 ranks, 64 MiB":[96.271,81.124,114.246],
"collectives: broadcast of 2 ranks, 64 MiB":[154.392,126.283,188.758],
"collectives: alltoall of 2 ranks, 64 MiB":[115.03,89.747,147.436],
"collectives: sendrecv of 2 ranks, 64 MiB":[292.47,234.146,365.321],
"collectives: all_reduce of 2 ranks, 256 MiB":[513.985,452.438,583.905],
"collectives: all_gather of 2 ranks, 256 MiB":[299.904,261.569,343.858],
"collectives: reduce_scatter of 2 ranks, 256 MiB":[328.084,288.849,372.649],
"collectives: broadcast of 2 ranks, 256 MiB":[550.689,464.5,652.87],
"collectives: alltoall of 2 ranks, 256 MiB":[348.462,294.653,412.098],
"collectives: sendrecv of 2 ranks, 256 MiB":[1076.377,904.716,1280.609],
"collectives: all_reduce of 2 ranks, 1 GiB":[1961.838,1725.156,2230.992],
"collectives: all_gather of 2 ranks, 1 GiB":[1122.06,974.755,1291.626],
"collectives: reduce_scatter of 2 ranks, 1 GiB":[1239.618,1090.114,1409.626],
"collectives: broadcast of 2 ranks, 1 GiB":[2135.876,1794.637,2542.0],
"collectives: alltoall of 2 ranks, 1 GiB":[1200.389,1042.434,1382.278],
"collectives: sendrecv of 2 ranks, 1 GiB":[2105.251,1772.618,2500.303],
"collectives: all_reduce of 4 ranks, 1 KiB":[15.03,12.098,18.672],
"collectives: all_gather of 4 ranks, 1 KiB":[11.741,9.718,14.186],
"collectives: reduce_scatter of 4 ranks, 1 KiB":[11.399,9.471,13.72],
"collectives: broadcast of 4 ranks, 1 KiB":[13.195,10.31,16.887],
"collectives: alltoall of 4 ranks, 1 KiB":[10.57,7.948,14.057],
"collectives: sendrecv of 4 ranks, 1 KiB":[9.293,6.725,12.841],
"collectives: all_reduce of 4 ranks, 4 KiB":[15.046,12.113,18.689],
"collectives: all_gather of 4 ranks, 4 KiB":[11.751,9.727,14.196],
"collectives: reduce_scatter of 4 ranks, 4 KiB":[11.408,9.479,13.729],
"collectives: broadcast of 4 ranks, 4 KiB":[13.207,10.321,16.9],
"collectives: alltoall of 4 ranks, 4 KiB":[10.718,8.084,14.211],
"collectives: sendrecv of 4 ranks, 4 KiB":[9.42,6.84,12.974],
"collectives: all_reduce of 4 ranks, 16 KiB":[15.112,12.174,18.758],
"collectives: all_gather of 4 ranks, 16 KiB":[11.792,9.765,14.24],
"collectives: reduce_scatter of 4 ranks, 16 KiB":[11.445,9.514,13.769],
"collectives: broadcast of 4 ranks, 16 KiB":[13.254,10.365,16.948],
"collectives: alltoall of 4 ranks, 16 KiB":[11.02,8.356,14.533],
"collectives: sendrecv of 4 ranks, 16 KiB":[9.712,7.097,13.29],
"collectives: all_reduce of 4 ranks, 64 KiB":[15.373,12.048,19.615],
"collectives: all_gather of 4 ranks, 64 KiB":[11.953,9.585,14.907],
"collectives: reduce_scatter of 4 ranks, 64 KiB":[11.595,9.325,14.417],
"collectives: broadcast of 4 ranks, 64 KiB":[13.444,10.262,17.613],
"collectives: alltoall of 4 ranks, 64 KiB":[11.654,8.693,15.623],
"collectives: sendrecv of 4 ranks, 64 KiB":[10.446,7.557,14.439],
"collectives: all_reduce of 4 ranks, 256 KiB":[16.419,12.976,20.775],
"collectives: all_gather of 4 ranks, 256 KiB":[12.598,10.147,15.641],
"collectives: reduce_scatter of 4 ranks, 256 KiB":[12.191,9.833,15.114],
"collectives: broadcast of 4 ranks, 256 KiB":[14.204,10.921,18.474],
"collectives: alltoall of 4 ranks, 256 KiB":[13.038,9.805,17.337],
"collectives: sendrecv of 4 ranks, 256 KiB":[12.519,9.228,16.983],
"collectives: all_reduce of 4 ranks, 1 MiB":[20.602,16.664,25.47],
"collectives: all_gather of 4 ranks, 1 MiB":[15.18,12.305,18.727],
"collectives: reduce_scatter of 4 ranks, 1 MiB":[14.577,11.692,18.173],
"collectives: broadcast of 4 ranks, 1 MiB":[17.244,13.34,22.29],
"collectives: alltoall of 4 ranks, 1 MiB":[16.273,12.258,21.603],
"collectives: sendrecv of 4 ranks, 1 MiB":[19.085,14.437,25.229],
"collectives: all_reduce of 4 ranks, 4 MiB":[37.335,31.644,44.05],
"collectives: all_gather of 4 ranks, 4 MiB":[25.507,20.453,31.81],
"collectives: reduce_scatter of 4 ranks, 4 MiB":[24.122,18.24,31.901],
"collectives: broadcast of 4 ranks, 4 MiB":[29.402,21.686,39.863],
"collectives: alltoall of 4 ranks, 4 MiB":[24.611,18.629,32.514],
"collectives: sendrecv of 4 ranks, 4 MiB":[41.895,32.94,53.284],
"collectives: all_reduce of 4 ranks, 16 MiB":[74.524,58.941,94.226],
"collectives: all_gather of 4 ranks, 16 MiB":[49.42,39.744,61.452],
"collectives: reduce_scatter of 4 ranks, 16 MiB":[49.749,39.734,62.288],
"collectives: broadcast of 4 ranks, 16 MiB":[56.471,44.297,71.991],
"collectives: alltoall of 4 ranks, 16 MiB":[48.75,37.428,63.497],
"collectives: sendrecv of 4 ranks, 16 MiB":[126.231,101.286,157.32],
"collectives: all_reduce of 4 ranks, 64 MiB":[182.848,152.278,219.556],
"collectives: all_gather of 4 ranks, 64 MiB":[111.99,93.456,134.2],
"collectives: reduce_scatter of 4 ranks, 64 MiB":[113.072,92.763,137.828],
"collectives: broadcast of 4 ranks, 64 MiB":[139.56,113.678,171.335],
"collectives: alltoall of 4 ranks, 64 MiB":[127.207,101.438,159.522],
"collectives: sendrecv of 4 ranks, 64 MiB":[450.08,363.848,556.748],
"collectives: all_reduce of 4 ranks, 256 MiB":[614.883,541.174,698.631],
"collectives: all_gather of 4 ranks, 256 MiB":[361.01,317.228,410.835],
"collectives: reduce_scatter of 4 ranks, 256 MiB":[365.105,310.397,429.455],
"collectives: broadcast of 4 ranks, 256 MiB":[464.89,392.794,550.218],
"collectives: alltoall of 4 ranks, 256 MiB":[402.94,346.764,468.217],
"collectives: sendrecv of 4 ranks, 256 MiB":[874.485,736.174,1038.782],
"collectives: all_reduce of 4 ranks, 1 GiB":[2291.704,2018.268,2602.186],
"collectives: all_gather of 4 ranks, 1 GiB":[1343.06,1180.033,1528.61],
"collectives: reduce_scatter of 4 ranks, 1 GiB":[1373.239,1160.22,1625.368],
"collectives: broadcast of 4 ranks, 1 GiB":[1762.578,1481.071,2097.591],
"collectives: alltoall of 4 ranks, 1 GiB":[1432.203,1255.388,1633.921],
"collectives: sendrecv of 4 ranks, 1 GiB":[1716.593,1445.585,2038.408],
"collectives: all_reduce of 8 ranks, 1 KiB":[25.806,19.585,34.004],
"collectives: all_gather of 8 ranks, 1 KiB":[17.381,13.759,21.956],
"collectives: reduce_scatter of 8 ranks, 1 KiB":[16.742,13.295,21.083],
"collectives: broadcast of 8 ranks, 1 KiB":[18.558,13.926,24.731],
"collectives: alltoall of 8 ranks, 1 KiB":[12.794,9.68,16.911],
"collectives: sendrecv of 8 ranks, 1 KiB":[9.447,6.812,13.101],
"collectives: all_reduce of 8 ranks, 4 KiB":[25.825,19.602,34.023],
"collectives: all_gather of 8 ranks, 4 KiB":[17.391,13.769,21.966],
"collectives: reduce_scatter of 8 ranks, 4 KiB":[16.752,13.304,21.093],
"collectives: broadcast of 8 ranks, 4 KiB":[18.569,13.936,24.742],
"collectives: alltoall of 8 ranks, 4 KiB":[12.955,9.821,17.088],
"collectives: sendrecv of 8 ranks, 4 KiB":[9.725,7.063,13.39],
"collectives: all_reduce of 8 ranks, 16 KiB":[25.901,19.673,34.1],
"collectives: all_gather of 8 ranks, 16 KiB":[17.429,13.804,22.006],
"collectives: reduce_scatter of 8 ranks, 16 KiB":[16.792,13.342,21.134],
"collectives: broadcast of 8 ranks, 16 KiB":[18.613,13.977,24.786],
"collectives: alltoall of 8 ranks, 16 KiB":[13.285,10.106,17.464],
"collectives: sendrecv of 8 ranks, 16 KiB":[10.353,7.615,14.076],
"collectives: all_reduce of 8 ranks, 64 KiB":[26.206,19.479,35.255],
"collectives: all_gather of 8 ranks, 64 KiB":[17.582,13.561,22.796],
"collectives: reduce_scatter of 8 ranks, 64 KiB":[16.952,13.113,21.915],
"collectives: broadcast of 8 ranks, 64 KiB":[18.791,13.816,25.557],
"collectives: alltoall of 8 ranks, 64 KiB":[13.976,10.422,18.742],
"collectives: sendrecv of 8 ranks, 64 KiB":[11.893,8.715,16.231],
"collectives: all_reduce of 8 ranks, 256 KiB":[27.426,20.573,36.562],
"collectives: all_gather of 8 ranks, 256 KiB":[18.192,14.104,23.464],
"collectives: reduce_scatter of 8 ranks, 256 KiB":[17.593,13.681,22.624],
"collectives: broadcast of 8 ranks, 256 KiB":[19.502,14.445,26.33],
"collectives: alltoall of 8 ranks, 256 KiB":[15.482,11.57,20.717],
"collectives: sendrecv of 8 ranks, 256 KiB":[16.115,12.073,21.511],
"collectives: all_reduce of 8 ranks, 1 MiB":[32.306,24.934,41.857],
"collectives: all_gather of 8 ranks, 1 MiB":[20.632,16.273,26.159],
"collectives: reduce_scatter of 8 ranks, 1 MiB":[20.158,15.894,25.565],
"collectives: broadcast of 8 ranks, 1 MiB":[22.344,16.837,29.653],
"collectives: alltoall of 8 ranks, 1 MiB":[18.992,14.092,25.595],
"collectives: sendrecv of 8 ranks, 1 MiB":[29.124,22.435,37.807],
"collectives: all_reduce of 8 ranks, 4 MiB":[51.828,42.711,62.891],
"collectives: all_gather of 8 ranks, 4 MiB":[30.392,25.182,36.68],
"collectives: reduce_scatter of 8 ranks, 4 MiB":[30.416,24.372,37.959],
"collectives: broadcast of 8 ranks, 4 MiB":[23.435,17.628,31.155],
"collectives: alltoall of 8 ranks, 4 MiB":[27.998,20.677,37.912],
"collectives: sendrecv of 8 ranks, 4 MiB":[73.407,59.193,91.034],
"collectives: all_reduce of 8 ranks, 16 MiB":[96.695,76.724,121.864],
"collectives: all_gather of 8 ranks, 16 MiB":[63.655,49.273,82.235],
"collectives: reduce_scatter of 8 ranks, 16 MiB":[66.908,50.274,89.045],
"collectives: broadcast of 8 ranks, 16 MiB":[64.685,47.129,88.781],
"collectives: alltoall of 8 ranks, 16 MiB":[53.96,40.312,72.228],
"collectives: sendrecv of 8 ranks, 16 MiB":[235.028,194.282,284.32],
"collectives: all_reduce of 8 ranks, 64 MiB":[235.188,193.446,285.937],
"collectives: all_gather of 8 ranks, 64 MiB":[130.496,107.773,158.009],
"collectives: reduce_scatter of 8 ranks, 64 MiB":[135.154,111.067,164.465],
"collectives: broadcast of 8 ranks, 64 MiB":[146.644,117.032,183.749],
"collectives: alltoall of 8 ranks, 64 MiB":[138.005,107.832,176.621],
"collectives: sendrecv of 8 ranks, 64 MiB":[850.807,709.606,1020.105],
"collectives: all_reduce of 8 ranks, 256 MiB":[706.374,595.072,838.494],
"collectives: all_gather of 8 ranks, 256 MiB":[396.598,349.271,450.338],
"collectives: reduce_scatter of 8 ranks, 256 MiB":[400.173,352.488,454.309],
"collectives: broadcast of 8 ranks, 256 MiB":[452.616,383.458,534.248],
"collectives: alltoall of 8 ranks, 256 MiB":[432.68,367.33,509.656],
"collectives: sendrecv of 8 ranks, 256 MiB":[850.807,744.598,972.166],
"collectives: all_reduce of 8 ranks, 1 GiB":[2433.068,2119.236,2793.374],
"collectives: all_gather of 8 ranks, 1 GiB":[1429.608,1259.813,1622.287],
"collectives: reduce_scatter of 8 ranks, 1 GiB":[1437.142,1264.296,1633.618],
"collectives: broadcast of 8 ranks, 1 GiB":[1665.132,1404.053,1974.757],
"collectives: alltoall of 8 ranks, 1 GiB":[1530.891,1332.764,1758.471],
"collectives: sendrecv of 8 ranks, 1 GiB":[1655.765,1451.472,1888.812]}}""",
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
TOGETHER_S = {"collectives": 60, "programs": 40, "own program": 60}
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
        times = predictions[name]["times"] if name else {}
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
    """Yield the numbers of ranks to measure: the most first."""
    yield from (ranks for ranks in (8, 4, 2) if ranks <= count)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

