"""Triton's driver on simulated devices, and the real compiler's facts of kernels (rule K5).

Read `driver` (benchmarks in simulated time), `tuning` (autotuners), `targets` (what a device's
kernels are compiled for), then `metadata` (registers, shared memory).
"""
