"""Memory of kernels: pointers, bounds, loads, stores and atomics on simulated storages.

Read `addresses` (from a pointer to a storage), `access` (loads and stores), `atomics`, and
`illegal` (what is said of a wrong access).
"""

from simrank.kernels.memory.access import load, store
from simrank.kernels.memory.addresses import pointee, writable_pointee

__all__ = ["load", "pointee", "store", "writable_pointee"]
