"""Triton's driver interface and compiler metadata (rule K5).

Read `driver` (benchmarks in simulated time, compile targets of devices), then `metadata`
(registers, shared memory).
"""
