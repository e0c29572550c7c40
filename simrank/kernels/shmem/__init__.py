"""Symmetric memory libraries in kernels: NVSHMEM, rocSHMEM, Triton-distributed.

Read `libraries` (tables of replaced functions), then `api` (puts, gets, signals, waits), `teams`
(barriers, collectives, multicast addresses).
"""
