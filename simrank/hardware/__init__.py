"""The simulated cluster: devices, links, routes and what they cost; start with `cluster.py`."""

from simrank.hardware.cluster import Cluster, Paths, build_cluster, load_cluster
from simrank.hardware.roofline import kernel_ps
from simrank.hardware.sharing import max_min_rates
from simrank.hardware.spec import CollectiveSpec, DeviceSpec

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
