"""Chakra's execution traces (MLCommons): a file per rank, in JSON or protobuf.

Reading order: `nodes` (what both forms hold), `wire`, `text`, `read` (to a trace).
"""
