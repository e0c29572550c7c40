"""Libraries of symmetric memory in kernels: NVSHMEM, rocSHMEM, Triton-distributed.

Read `libraries` (the replacement of each function), then `api` (puts, gets, signals, waits),
`teams` (barriers and collectives) and `multicast`.
"""
