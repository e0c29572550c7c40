"""simrank: a multi-GPU program in one Python process, with real numbers and simulated time.

Start with `Context` and `multiprocessing.spawn`. Inside a rank, torch's names are here too, of
the running rank: `simrank.zeros`, `simrank.bfloat16`, `simrank.cat`, `simrank.cuda.set_device`.
Names are imported when they are first used, so `import simrank` costs next to nothing; type
checkers read them in `__init__.pyi`.
"""

from functools import partial
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from simrank.isolation import libraries
from simrank.ranks.current import register_default_context
from simrank.ranks.extensions import register_extension

if TYPE_CHECKING:
    from simrank import bench, distributed, errors, explore, multiprocessing, validate
    from simrank.context import Context
    from simrank.device import Event, Stream, Tensor
    from simrank.planning.predict import predict, predict_attention, predict_gemm

__version__ = "0.1.0"
__all__ = [
    "Context",
    "Event",
    "Stream",
    "Tensor",
    "bench",
    "distributed",
    "errors",
    "explore",
    "multiprocessing",
    "predict",
    "predict_attention",
    "predict_gemm",
    "validate",
]
_PLACES = {
    "Context": "simrank.context",
    "Event": "simrank.device",
    "Stream": "simrank.device",
    "Tensor": "simrank.device",
    "predict": "simrank.planning.predict",
    "predict_attention": "simrank.planning.predict",
    "predict_gemm": "simrank.planning.predict",
}


def __getattr__(name: str) -> Any:  # noqa: ANN401 - any value
    if name in _PLACES:
        return getattr(import_module(_PLACES[name]), name)
    if name in __all__:
        return import_module(f"simrank.{name}")
    if not name.startswith("_"):
        names = import_module("simrank.device.tensors.namespace")
        if name in names.MODULE_NAMES:
            value = getattr(names.CURRENT, name)
            if names.is_everybodys(name):  # The next look at it is Python's own.
                globals()[name] = value
            return value
    raise AttributeError(f"module 'simrank' has no attribute {name!r}")


def __dir__() -> list[str]:
    names = import_module("simrank.device.tensors.namespace").MODULE_NAMES
    return sorted([*__all__, *names, "__version__"])


def _patches_of(place: str, name: str, module: ModuleType) -> list[tuple[Any, str, Any]]:
    """Return the patches of a module, from an adapter that is imported with it."""
    found: list[tuple[Any, str, Any]] = getattr(import_module(f"simrank.{place}"), name)(module)
    return found


register_default_context(lambda num_ranks: __getattr__("Context").for_ranks(num_ranks))
register_extension(lambda: import_module("simrank.isolation.extension").RankIsolation())
register_extension(lambda: import_module("simrank.kernels.extension").KernelExtension())
libraries.register("torch", lambda: import_module("simrank.torch.install").LIBRARY)
for _module, _place, _name in (
    ("concurrent.futures.process", "multiprocessing.children", "of_executor"),
    ("multiprocessing", "multiprocessing.children", "of_module"),
    ("multiprocessing.connection", "multiprocessing.pipes", "of_connection"),
    ("multiprocessing.context", "multiprocessing.children", "of_context"),
    ("multiprocessing.pool", "multiprocessing.pools", "of_pool"),
    ("multiprocessing.process", "multiprocessing.children", "of_process"),
    ("zmq", "multiprocessing.zmq_patches", "of_package"),
    ("zmq.asyncio", "multiprocessing.zmq_patches", "of_asyncio"),
    ("zmq.sugar.context", "multiprocessing.zmq_patches", "of_context"),
    ("zmq.sugar.poll", "multiprocessing.zmq_patches", "of_poll"),
    ("zmq.sugar.socket", "multiprocessing.zmq_patches", "of_socket"),
    ("torch._dynamo", "torch.dynamo", "of_package"),
    ("torch._dynamo.backends.registry", "torch.rank_state.caches", "of_registries"),
    ("torch._dynamo.convert_frame", "torch.dynamo", "of_conversion"),
    ("torch._dynamo.decorators", "torch.dynamo", "of_decorators"),
    ("torch._dynamo.eval_frame", "torch.dynamo", "of_frames"),
    ("torch._dynamo.device_interface", "torch.inductor", "of_devices"),
    ("torch._dynamo.output_graph", "torch.fused_lines", "of_graphs"),
    ("torch._inductor.async_compile", "torch.inductor", "of_workers"),
    ("torch._inductor.codecache", "torch.inductor", "of_cache"),
    ("torch._inductor.codegen.triton", "torch.inductor", "of_codegen"),
    ("torch._inductor.compile_fx", "torch.inductor", "of_graphs"),
    ("torch._inductor.exc", "torch.inductor", "of_errors"),
    ("torch._inductor.runtime.benchmarking", "torch.inductor", "of_benchmarks"),
    ("torch._inductor.runtime.triton_helpers", "torch.inductor", "of_helpers"),
    ("torch._inductor.runtime.triton_heuristics", "torch.inductor", "of_kernels"),
    ("torch._export.serde.serialize", "torch.rank_state.settings", "of_globals"),
    ("torch._subclasses.fake_tensor", "torch.rank_state.caches", "of_fake_tensors"),
    ("torch.distributed._dist2", "torch.rank_state.caches", "of_registries"),
    ("torch.distributed.elastic.rendezvous.api", "torch.rank_state.caches", "of_registries"),
    ("torch.distributed.fsdp._debug_utils", "torch.rank_state.caches", "of_fsdp_profiler"),
    ("torch.distributed.launcher.api", "torch.unsupported", "of_launcher"),
    ("torch.distributed.tensor._api", "torch.rank_state.caches", "of_dtensors"),
    ("torch.distributed.tensor._collective_utils", "torch.rank_state.caches", "of_meshes"),
    ("torch.distributed.tensor._random", "torch.rank_state.caches", "of_random"),
    ("torch.distributed.tensor._redistribute", "torch.rank_state.caches", "of_redistribution"),
    ("torch.distributed.tensor._sharding_prop", "torch.rank_state.sharding", "of_sharding"),
    ("torch.export._trace", "torch.rank_state.settings", "of_globals"),
    ("torch.utils.cpp_extension", "torch.unsupported", "of_extensions"),
    ("torch.utils.flop_counter", "torch.rank_state.caches", "of_registries"),
):
    libraries.register_part(_module, partial(_patches_of, _place, _name))
