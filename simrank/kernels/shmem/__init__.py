"""Libraries of symmetric memory in kernels: NVSHMEM, rocSHMEM, Triton-distributed.

Read `libraries` (who stands for which function), then `api` (puts, gets, signals, waits), `teams`
(barriers and collectives) and `multicast`.
"""
