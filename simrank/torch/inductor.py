"""Inductor in ranks: its kernels run in the emulator, and ranks share what it has compiled.

A graph is compiled once for all devices of a kind: its key in inductor's cache leaves out the
device's index, and the code that a rank loads names the rank's own device.
"""

from __future__ import annotations

import ctypes
import functools
import re
import sys
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch

from simrank.engine.callsite import skip_folder
from simrank.errors import UnsupportedError
from simrank.ranks.current import in_ranks, rank_program
from simrank.torch import fused_lines
from simrank.torch.cuda.streams import as_one_launch, captured_graph

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    Patches = list[tuple[Any, str, Any]]


# ---- Kernels ----


def of_errors(module: Any) -> Patches:
    """Return the patches of inductor's `exc`: what a rank can do without Triton."""
    kind = module.TritonMissing
    original = kind.__init__

    @functools.wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        if rank_program() is not None:
            to_fix = "pip install triton; or set SIMRANK_COMPILE=eager to run functions uncompiled"
            self.args = (f"{self.args[0]}\n  to fix: {to_fix}", *self.args[1:])

    return [(kind, "__init__", init)]


def of_kernels(module: Any) -> Patches:
    """Return the patches of inductor's `triton_heuristics`: kernels are launched as a user's."""
    kind = module.CachingAutotuner
    make, precompile, run = kind.__init__, kind.precompile, kind.run

    @functools.wraps(make)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        make(self, *args, **kwargs)
        self.simrank_lines = fused_lines.lines_of(self.inductor_meta.get("kernel_name", ""))
        self.simrank_launch = None

    @functools.wraps(precompile)
    def prepare(self: Any, *args: Any, **kwargs: Any) -> None:
        """Compile nothing in ranks: the emulator does, at the launch."""
        if rank_program() is None:
            precompile(self, *args, **kwargs)
        else:
            # Registers and spills are in a call's time; no choice is made by their numbers.
            launcher = SimpleNamespace(n_regs=0, n_spills=0, shared=0, config=self.configs[0])
            self.launchers = [launcher]

    @functools.wraps(run)
    def launch(self: Any, *args: Any, **kwargs: Any) -> Any:
        """Launch the kernel on the rank's current stream."""
        if rank_program() is None:
            return run(self, *args, **kwargs)
        if self.simrank_launch is None:
            self.precompile()
            file = self.fn.fn.__code__.co_filename
            self.simrank_launch = fused_lines.with_lines(_launcher(self), self.simrank_lines, file)
        self.simrank_launch(args, kwargs)
        return None

    return [(kind, "__init__", init), (kind, "precompile", prepare), (kind, "run", launch)]


def _launcher(autotuner: Any) -> Callable[..., Any]:
    """Return a function that launches a kernel, with its first configuration.

    The generated code passes no declared constants, and a placeholder for None.
    """
    config, fn = autotuner.configs[0], autotuner.fn
    constants = autotuner._create_compile_meta(config)["constants"]  # noqa: SLF001 - torch's way
    declared = {parameter.name for parameter in fn.params if parameter.is_constexpr}
    passed = [name for name in fn.arg_names if name not in declared or name not in constants]
    options = {
        "num_warps": config.num_warps,
        "num_stages": config.num_stages,
        "enable_fp_fusion": autotuner.triton_meta.get("enable_fp_fusion", True),
        **config.kwargs,
        **constants,
    }

    def launch(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        given, grid = autotuner._interpret_args_grid(args, config)  # noqa: SLF001 - torch's way
        kwargs.pop("stream")
        kwargs.pop("benchmark_run", None)
        return fn[grid](**{**dict(zip(passed, given, strict=False)), **kwargs, **options})

    return launch


def of_helpers(module: Any) -> Patches:
    """Return the patches of inductor's `triton_helpers`: ranks have their own driver."""
    name = "set_driver_to_gpu"
    return [(module, name, in_ranks(lambda: None, getattr(module, name)))]


def of_workers(module: Any) -> Patches:
    """Return the patches of inductor's `async_compile`: no processes that compile."""
    name = "get_compile_threads"
    return [(module, name, in_ranks(lambda: 1, getattr(module, name)))]


def of_benchmarks(module: Any) -> Patches:
    """Return the patches of inductor's `benchmarking`: one simulated call is timed."""
    kind = module.InductorBenchmarker
    return [(kind, "benchmark_gpu", in_ranks(_timed_once, kind.benchmark_gpu))]


def of_codegen(module: Any) -> Patches:
    """Return the patches of inductor's `codegen.triton`: comments; no files of simulated times."""
    kind = module.TritonScheduling
    name = "benchmark_codegened_module"
    original = getattr(kind, name)

    @functools.wraps(original)
    def benchmark(self: Any, mod: Any, *args: Any, **kwargs: Any) -> Any:
        """Time it in each run: the file says for which code, not for which device."""
        if rank_program() is None:
            return original(self, mod, *args, **kwargs)
        file = Path(mod.__file__).with_suffix(".kernel_perf")
        file.unlink(missing_ok=True)
        try:
            return original(self, mod, *args, **kwargs)
        finally:
            file.unlink(missing_ok=True)

    return [*fused_lines.of_comments(module), (kind, name, benchmark)]


def _timed_once(_: Any, call: Callable[[], Any], *, return_mode: str = "min", **__: Any) -> Any:
    """Return the simulated milliseconds of a call; every call takes the same time."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    call()
    end.record()
    torch.cuda.synchronize()
    taken_ms = start.elapsed_time(end)
    return [taken_ms] if return_mode == "all" else taken_ms


def of_graphs(module: Any) -> Patches:
    """Return the patches of inductor's `compile_fx`: CUDA graphs, and what is not supported."""
    return [
        (module, "cudagraphify", in_ranks(_replaying, module.cudagraphify)),
        (module, "compile_fx", _unless_in_cpp(module.compile_fx, module.config)),
    ]


def _unless_in_cpp(original: Callable[..., Any], config: Any) -> Callable[..., Any]:
    """Wrap `compile_fx`: C++ that launches kernels would call the driver, which is not there."""

    @functools.wraps(original)
    def compile_fx(model: Any, inputs: Sequence[Any], *args: Any, **kwargs: Any) -> Any:
        if rank_program() is not None and config.cpp_wrapper and _is_on_cuda(model, inputs):
            raise UnsupportedError(
                "AOTInductor (aoti_compile_and_package, aot_compile, cpp_wrapper) is not simulated "
                "for CUDA: its C++ would call the CUDA driver\n"
                "  to fix: use torch.compile without cpp_wrapper; package the model on a real GPU"
            )
        return original(model, inputs, *args, **kwargs)

    return compile_fx


def _is_on_cuda(model: Any, inputs: Sequence[Any]) -> bool:
    """Return whether a graph has CUDA tensors: inputs, parameters, or ones that it makes."""
    state = () if not isinstance(model, torch.nn.Module) else model.state_dict().values()
    tensors = (value for value in (*inputs, *state) if isinstance(value, torch.Tensor))
    if any(tensor.device.type == "cuda" for tensor in tensors):
        return True
    return isinstance(model, torch.fx.GraphModule) and any(_named_devices(model))


def _replaying(model: Callable[[list[Any]], Any], *_: object, **__: object) -> Callable[..., Any]:
    """Return a compiled function whose calls after the first are one launch each.

    Its outputs are new tensors: those of a replayed graph last until the next replay.
    """
    is_first = True

    def run(inputs: list[Any]) -> Any:
        nonlocal is_first
        if is_first or captured_graph() is not None:
            is_first = False
            return model(inputs)
        results: list[Any] = []
        as_one_launch(lambda: results.append(model(inputs)))
        return results[0]

    return run


# ---- Devices ----

_FROM_CUDA = (
    "Event", "Stream", "current_device", "current_stream", "device", "device_count",
    "exchange_device", "get_device_properties", "maybe_exchange_device", "memory_allocated",
    "set_device", "set_stream", "stream", "synchronize",
)  # fmt: skip


def of_devices(module: Any) -> Patches:
    """Return the patches of Dynamo's `device_interface`: names that it has bound at its import."""
    interface = module.CudaInterface
    found: Patches = [
        (interface, name, staticmethod(in_ranks(_asking_cuda(name), getattr(interface, name))))
        for name in _FROM_CUDA
    ]
    worker = interface.Worker
    own = in_ranks(_asking_cuda("get_device_properties"), worker.get_device_properties)
    bindings: Any = import_module("torch._C")
    layout = "_conv_determine_backend_memory_format"
    chosen = getattr(bindings, layout)
    return [
        *found,
        (bindings, layout, _unless_on_device(chosen)),
        (worker, "get_device_properties", staticmethod(own)),
        (interface, "get_raw_stream", staticmethod(_raw_stream)),
    ]


def _unless_on_device(original: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap the choice of a convolution's layout: a CPU build would choose its own kernel's."""

    @functools.wraps(original)
    def chosen(x: Any, weight: Any, backend: Any) -> Any:
        is_own = rank_program() is not None and x.device.type == "cuda"
        return None if is_own else original(x, weight, backend)

    return chosen


def _raw_stream(index: int) -> int:
    bindings: Any = import_module("torch._C")
    return int(bindings._cuda_getCurrentRawStream(index))  # noqa: SLF001 - torch's name


def _asking_cuda(name: str) -> Callable[..., Any]:
    def ask(*args: Any, **kwargs: Any) -> Any:
        return getattr(torch.cuda, f"_{name}" if "exchange" in name else name)(*args, **kwargs)

    return ask


_kinds: list[tuple[str, int]] = []  # The kind of device that inductor's caches know.


def forget_other_devices() -> None:
    """Clear inductor's caches of devices of another kind: those of a Context before."""
    properties = torch.cuda.get_device_properties()
    kind = properties.name, properties.multi_processor_count
    if _kinds and _kinds[0] != kind:
        modules = sys.modules
        modules["torch._dynamo.device_interface"].caching_worker_device_properties.clear()
        if (utils := modules.get("torch._inductor.utils")) is not None:
            utils.clear_caches()
        if (hints := modules.get("torch._inductor.runtime.hints")) is not None:
            hints.DeviceProperties.create.cache_clear()
        if (cache := modules.get("torch._inductor.codecache")) is not None:
            cache.CacheBase.get_system.cache_clear()
    _kinds[:] = [kind]


# ---- Cache ----

_SHARED = "-any-device"  # Ends the keys of graphs for any device of a kind.
_keyed: list[int] = []  # Index of the device whose graph's key is being made.
_loaded: list[int] = []  # Index of the device for which code is being loaded.
_INDICES = re.compile(
    r"(?<=_DeviceGuard\()\d+|(?<=set_device\()\d+|(?<=get_raw_stream\()\d+|(?<=cuda:)\d+"
    r"|(?<=type='cuda', index=)\d+"
)


def of_cache(module: Any) -> Patches:
    """Return the patches of inductor's `codecache`."""
    _tell_c_of_python()
    cache, files = module.FxGraphCache, module.PyCodeCache
    longer = "add_ephemeral_timeout_increase_for_distributed"
    pickler, details = module.FxGraphCachePickler, module.FxGraphHashDetails
    return [
        # Compiling takes no simulated time.
        (module, longer, in_ranks(lambda _: 0, getattr(module, longer))),
        (cache, "prepare_key", staticmethod(_keyed_for_any_device(cache.prepare_key))),
        (cache, "load_with_key", staticmethod(_loaded_for_device(cache.load_with_key))),
        (pickler, "__init__", _without_index(pickler.__init__)),
        (pickler, "dumps", _naming_no_index(pickler.dumps)),
        (details, "__init__", _without_current_device(details.__init__)),
        (files, "load_by_key_path", classmethod(_for_own_device(files.load_by_key_path.__func__))),
    ]


def _tell_c_of_python() -> None:
    """Set in C's environment what inductor's kernels for the CPU ask for; ranks have their own."""
    guards: Any = import_module("torch._C._dynamo.guards")
    address = str(guards._torchinductor_pyobject_tensor_data_ptr)  # noqa: SLF001 - torch's name
    ctypes.CDLL(None).setenv(b"_TORCHINDUCTOR_PYOBJECT_TENSOR_DATA_PTR", address.encode(), 1)


def _device_of(inputs: Sequence[Any]) -> int | None:
    """Return the index of the only CUDA device of tensors; None if there is none or several."""
    tensors = (value for value in inputs if isinstance(value, torch.Tensor))
    indices = {tensor.device.index for tensor in tensors if tensor.device.type == "cuda"}
    return indices.pop() if len(indices) == 1 else None


def _named_devices(graph: torch.fx.GraphModule) -> Iterator[str]:
    """Yield the indices of devices that a graph's code names."""
    for module in graph.modules():
        if isinstance(module, torch.fx.GraphModule):
            yield from _INDICES.findall(module.code)


def _keyed_for_any_device(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def prepare_key(gm: Any, example_inputs: Sequence[Any], *args: Any, **kwargs: Any) -> Any:
        index = None if rank_program() is None else _device_of(example_inputs)
        if index is None or {str(index)}.union(_named_devices(gm)) != {str(index)}:
            return original(gm, example_inputs, *args, **kwargs)
        _keyed.append(index)
        try:
            found, info = original(gm, example_inputs, *args, **kwargs)
        finally:
            _keyed.pop()
        return (None if found is None else (found[0] + _SHARED, found[1])), info

    return prepare_key


def _without_index(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        if _keyed:
            kwargs["device_id_agnostic"] = True
        original(self, *args, **kwargs)

    return init


def _naming_no_index(original: Callable[..., bytes]) -> Callable[..., bytes]:
    @functools.wraps(original)
    def dumps(self: Any, obj: Any) -> bytes:
        data = original(self, obj)
        if _keyed:  # Constants in the text of the graph's code.
            data = data.replace(b"type='cuda', index=%d)" % _keyed[-1], b"type='cuda')")
        return data

    return dumps


def _without_current_device(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        if _keyed and getattr(self, "default_cuda_device_index", None) == _keyed[-1]:
            self.default_cuda_device_index = "the inputs'"

    return init


def _loaded_for_device(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def load(key: str, lines: Any, inputs: Sequence[Any], *args: Any, **kwargs: Any) -> Any:
        index = _device_of(inputs) if key.endswith(_SHARED) else None
        if index is None:
            return original(key, lines, inputs, *args, **kwargs)
        _loaded.append(index)
        try:
            graph, info = original(key, lines, inputs, *args, **kwargs)
        finally:
            _loaded.pop()
        if graph is not None:
            graph.device_idxs = type(graph.device_idxs)([index])
        return graph, info

    return load


def _for_own_device(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def load(cls: Any, key: str, path: str, *args: Any, **kwargs: Any) -> Any:
        if rank_program() is None:
            return original(cls, key, path, *args, **kwargs)
        skip_folder(str(Path(path).parent.parent))
        with open(path, encoding="utf-8") as file:
            text = file.read()
        own = _INDICES.sub(str(_loaded[-1]), text) if _loaded else text
        if own != text:
            key, path = cls.write(own)
        fused_lines.note_code(own)
        return original(cls, key, path, *args, **kwargs)

    return load
