"""What triton asks a driver for, and what the real compiler says about a kernel (rule K5).

Read `driver` (benchmarks in simulated time), `tuning` (autotuners), `targets` (what a device's
kernels are compiled for), then `metadata` (registers, shared memory).
"""
