"""The simulated cluster: devices, links, routes and costs; start with `cluster.py`."""

from typing import TYPE_CHECKING, Any

from simrank.hardware.cluster import Cluster, Paths
from simrank.hardware.load import load_cluster
from simrank.hardware.roofline import kernel_ps
from simrank.hardware.sharing import max_min_rates
from simrank.hardware.spec import CollectiveSpec, DeviceSpec

if TYPE_CHECKING:
    from simrank.hardware.build import build_cluster

__all__ = [
    "Cluster",
    "CollectiveSpec",
    "DeviceSpec",
    "Paths",
    "build_cluster",
    "kernel_ps",
    "load_cluster",
    "max_min_rates",
]


def __getattr__(name: str) -> Any:  # noqa: ANN401 - any value
    """Import `build` on demand: it reads configurations, and `import simrank` must not."""
    if name != "build_cluster":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from simrank.hardware.build import build_cluster  # noqa: PLC0415 - that is the point

    return build_cluster
