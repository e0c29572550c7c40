"""What triton asks a driver for, and what the real compiler says about a kernel (rule K5).

Read `driver` (targets, benchmarks in simulated time), then `metadata` (registers, shared memory).
"""
