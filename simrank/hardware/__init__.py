"""The simulated cluster: devices, links, routes and what they cost; start with `cluster.py`."""

from simrank.hardware.cluster import Cluster, Paths, build_cluster, load_cluster
from simrank.hardware.spec import CollectiveSpec, DeviceSpec

__all__ = ["Cluster", "CollectiveSpec", "DeviceSpec", "Paths", "build_cluster", "load_cluster"]
