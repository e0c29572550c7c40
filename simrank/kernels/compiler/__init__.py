"""Triton's driver interface and compiler metadata (rule K5).

Read `driver` (benchmarks in simulated time), `tuning` (autotuners), `targets` (compile targets of
devices), then `metadata` (registers, shared memory).
"""
