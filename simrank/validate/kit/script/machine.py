"""The machine, without names of hosts, users or folders."""

from __future__ import annotations

import os
import platform
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from simrank.validate.kit.script.rows import Rows

QUERY = (
    "name", "driver_version", "power.limit", "power.max_limit", "clocks.max.sm", "clocks.max.mem",
    "clocks.sm", "clocks.mem", "temperature.gpu", "memory.used", "mig.mode.current",
    "pcie.link.gen.current", "pcie.link.width.current", "persistence_mode", "ecc.mode.current",
)  # fmt: skip
BUSY_S = 5.0
MANY = 6  # That every driver knows.
LINK = re.compile(r"^(X|NV\d+|PIX|PXB|PHB|NODE|SYS)$")
KEPT_VARIABLES = (
    "NCCL_", "CUDA_DEVICE", "CUDA_MODULE", "CUDA_LAUNCH", "TORCH_NCCL_", "TORCH_ALLOW_TF32",
    "NVIDIA_TF32", "PYTORCH_CUDA", "PYTORCH_ALLOC", "PYTORCH_NO_CUDA", "TRITON_INTERPRET",
    "CUBLAS_",
)  # fmt: skip
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
