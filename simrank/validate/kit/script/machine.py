"""The machine, without names of hosts, users or folders."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from simrank.validate.kit.script.rows import Rows

QUERY = (
    "name", "driver_version", "power.limit", "power.max_limit", "clocks.max.sm", "clocks.max.mem",
    "clocks.sm", "clocks.mem", "temperature.gpu", "memory.used", "mig.mode.current",
    "pcie.link.gen.current", "pcie.link.width.current", "persistence_mode", "ecc.mode.current",
)  # fmt: skip
MANY = 6  # That every driver knows.
LINK = re.compile(r"^(X|NV\d+|PIX|PXB|PHB|NODE|SYS)$")
KEPT_VARIABLES = ("NCCL_", "CUDA_DEVICE", "CUDA_MODULE", "TORCH_NCCL_")
PLAIN_VALUE = re.compile(r"^[A-Za-z0-9,.^:_-]{1,24}$")
PRIVATE_VARIABLES = ("SOCKET_IFNAME", "HOSTID", "FILE", "COMM_ID", "IB_HCA", "DEVICES")


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
    """Return facts of GPUs, links, drivers, host and libraries."""
    found: dict[str, Any] = {
        "gpus": gpus(),
        "links": links(command("nvidia-smi", "topo", "-m")),
        "other_processes": len(
            command("nvidia-smi", "--query-compute-apps=pid", "--format=csv,noheader").split()
        ),
        "system": platform.system(),
        "cpu": cpu(),
        "cores": os.cpu_count(),
        "numa_nodes": numa_nodes(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "variables": variables(),
    }
    if torch.cuda.is_available():
        properties = torch.cuda.get_device_properties(0)
        found["device"] = {
            "name": properties.name,
            "count": torch.cuda.device_count(),
            "memory_bytes": properties.total_memory,
            "num_sms": properties.multi_processor_count,
            "capability": list(torch.cuda.get_device_capability(0)),
        }
        found["nccl"] = list(torch.cuda.nccl.version())
    return found


def gpus() -> list[dict[str, str]]:
    """Return the facts of nvidia-smi about each GPU."""
    for names in (QUERY, QUERY[:MANY]):  # Old drivers do not know the last ones.
        text = command("nvidia-smi", f"--query-gpu={','.join(names)}", "--format=csv,noheader")
        lines = [line.split(", ") for line in text.splitlines() if line.strip()]
        if lines:
            return [dict(zip(names, line, strict=False)) for line in lines]
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
    """Return a text without folders, and without the names of host and user."""
    text = re.sub(r"(?<![\w.])/[^\s'\",:;)]*/", "", text)
    private = [platform.node(), os.environ.get("USER", ""), os.environ.get("LOGNAME", "")]
    for word in private:
        if len(word) > 2:
            text = text.replace(word, "(private)")
    return text


def clocks(rows: Rows) -> None:
    """Note the clocks and the power of GPUs at the end of a phase."""
    names = ("clocks.sm", "clocks.mem", "power.draw", "temperature.gpu")
    text = command("nvidia-smi", f"--query-gpu={','.join(names)}", "--format=csv,noheader")
    rows.add("fact", "clocks", values=[line.split(", ") for line in text.splitlines()])
