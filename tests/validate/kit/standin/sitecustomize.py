"""Fake GPUs in plain processes: nccl's calls over gloo, and clocks that count calls.

On PYTHONPATH with `STANDIN_GPUS` set, torch on the CPU says that it has so many H100. Operations
take 5 us and collectives 20 us of a clock of the process, which `time.perf_counter` and events
read; those without data take 2 ms, for a phase repeats short ones more often.
`STANDIN_FAILURE=PHASE:HOW,...` plants a failure in phases: out_of_memory, crash, raise, hang.
"""

import os
import sys
import time
from types import SimpleNamespace

OPERATION_S, COLLECTIVE_S = 5e-6, 20e-6
PLANTED_AT = 20  # Operations before a planted failure.
NAME = os.environ.get("STANDIN_NAME", "NVIDIA H100 80GB HBM3")

if "STANDIN_GPUS" in os.environ:
    sys.modules["triton"] = None  # It looks for a driver.
    import torch
    import torch.distributed as dist
    from torch.overrides import TorchFunctionMode

    clock = [0.0]
    failures = dict(each.split(":") for each in os.environ.get("STANDIN_FAILURE", ":").split(","))
    planted = failures.get(sys.argv[2] if sys.argv[1:2] == ["--worker"] else "", "")
    seen = [0]

    def plant() -> None:
        seen[0] += 1
        if not planted or seen[0] < PLANTED_AT:
            return
        if planted == "out_of_memory" and seen[0] < PLANTED_AT + 2:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")
        if planted == "raise":
            raise RuntimeError(f"CUDA error: unspecified launch failure in {os.getcwd()}/kernel.cu")
        if planted == "crash" and os.environ.get("RANK") == "0":
            os.kill(os.getpid(), 11)
        if planted == "hang":
            time.sleep(600)

    # Tensors without data where no value is read: matrix products of real size cost nothing.
    phases = {"launches", "copies", "products", "attention", "kernels"}
    device = "meta" if set(sys.argv) & phases else "cpu"
    operation_s = OPERATION_S if device == "cpu" else 2e-3
    if device == "meta":  # Operators would import it, which takes as long as torch itself.
        torch._dynamo = SimpleNamespace(disable=lambda fn, *_, **__: fn)
        sys.modules["torch._dynamo"] = torch._dynamo

    def on_host(value):
        return device if isinstance(value, str) and value.startswith("cuda") else value

    class OnHost(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            plant()
            clock[0] += operation_s
            given = {k: on_host(v) for k, v in (kwargs or {}).items() if k != "pin_memory"}
            if func is torch.Tensor.cuda:
                return args[0].clone()
            if "pin_memory" in (kwargs or {}):
                given["device"] = device
            return func(*map(on_host, args), **given)

    class Event:
        def __init__(self, enable_timing=False):
            self.at = 0.0

        def record(self):
            self.at = clock[0]

        def elapsed_time(self, other):
            return (other.at - self.at) * 1e3

    class Graph:
        def replay(self):
            clock[0] += OPERATION_S

    class Capture:
        def __init__(self, graph):
            pass

        def __enter__(self):
            pass

        def __exit__(self, *_):
            pass

    def timed(name, original):
        def call(*args, **kwargs):
            plant()
            clock[0] += COLLECTIVE_S
            return original(*args, **kwargs)

        return call

    cuda = torch.cuda
    cuda.is_available = lambda: True
    cuda.device_count = lambda: int(os.environ["STANDIN_GPUS"])
    cuda.get_device_name = lambda *_: NAME
    cuda.get_device_capability = lambda *_: (9, 0)
    cuda.get_device_properties = lambda *_: SimpleNamespace(
        name=NAME, total_memory=85 << 30, multi_processor_count=132
    )
    cuda.nccl = SimpleNamespace(version=lambda: (2, 30, 4))
    cuda.set_device = lambda _: None
    cuda.synchronize = lambda *_: None
    cuda.empty_cache = lambda *_: None
    cuda.mem_get_info = lambda: (1 << 22, 85 << 30)  # Little: sizes stay small.
    cuda.Event, cuda.CUDAGraph, cuda.graph = Event, Graph, Capture
    time.perf_counter = lambda: clock[0]
    begin = dist.init_process_group

    def over_gloo(*_, backend=None, device_id=None, **given):
        return begin("gloo", **given)

    dist.init_process_group = over_gloo
    for name in (
        "all_reduce", "broadcast", "all_gather_into_tensor", "reduce_scatter_tensor",
        "all_to_all_single", "batch_isend_irecv", "barrier", "recv", "send",
    ):  # fmt: skip
        setattr(dist, name, timed(name, getattr(dist, name)))
    OnHost().__enter__()
