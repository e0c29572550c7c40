"""simrank: a multi-GPU program in one Python process, with real numbers and simulated time.

Start with `Context` and `multiprocessing.spawn`. Inside a rank, torch's factories and dtypes are
here too (`simrank.zeros`, `simrank.bfloat16`). Names are imported when they are first used, so
`import simrank` costs next to nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from simrank.ranks.current import register_default_context

if TYPE_CHECKING:
    from simrank import bench, distributed, errors, explore, multiprocessing
    from simrank.context import Context
    from simrank.device import Event, Stream, Tensor

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
]
_FACTORIES = (
    "arange", "as_tensor", "empty", "empty_like", "eye", "from_numpy", "full", "full_like",
    "linspace", "manual_seed", "ones", "ones_like", "rand", "rand_like", "randint", "randint_like",
    "randn", "randn_like", "randperm", "tensor", "zeros", "zeros_like",
)  # fmt: skip
_DTYPES = (
    "bfloat16", "bool", "float16", "float32", "float64", "float8_e4m3fn", "float8_e5m2", "int16",
    "int32", "int64", "int8", "uint8",
)  # fmt: skip
_PLACES = {
    "Context": "simrank.context",
    "Event": "simrank.device",
    "Stream": "simrank.device",
    "Tensor": "simrank.device",
}


def __getattr__(name: str) -> Any:  # noqa: ANN401 - whatever the name stands for
    if name in _PLACES:
        return getattr(import_module(_PLACES[name]), name)
    if name in _FACTORIES:
        return getattr(import_module("simrank.device.tensors.factories"), name)
    if name in _DTYPES:
        return import_module("simrank.device").DTYPES[name]
    if name in __all__:
        return import_module(f"simrank.{name}")
    raise AttributeError(f"module 'simrank' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, *_FACTORIES, *_DTYPES, "__version__"])


register_default_context(lambda num_ranks: __getattr__("Context").for_ranks(num_ranks))
