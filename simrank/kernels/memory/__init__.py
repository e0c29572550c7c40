"""Memory access of kernels: pointers, bounds, loads, stores and atomics on storages.

Read `addresses` (from a pointer to a storage, errors of illegal accesses), `loads_stores`, then
`atomics`.
"""

from simrank.kernels.memory.addresses import pointee, writable_pointee
from simrank.kernels.memory.loads_stores import load, store

__all__ = ["load", "pointee", "store", "writable_pointee"]
