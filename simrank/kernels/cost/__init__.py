"""Costs of kernels in simulated time (rule K4).

Read `launches` (a whole launch, from what it did), then `accesses` (one program, as it goes).
"""
