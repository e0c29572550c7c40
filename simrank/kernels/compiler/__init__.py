"""Triton's driver interface and compiler metadata (rule K5).

Read `driver` (benchmarks in simulated time, compile targets of devices) and `tuning` (autotuners),
then `metadata` (registers, shared memory).
"""
