"""Simulated cost of kernels (rule K4).

Read `launches` (a whole launch, from its statistics), then `accesses` (one program's accesses).
"""
