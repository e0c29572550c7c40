"""Clusters in formats of other tools; start with `nccl_topology.read_topology`.

Each module reads one format, and returns what a cluster's YAML would hold; `devices` says which
built-in cluster has a device.
"""
