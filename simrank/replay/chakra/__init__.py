"""Chakra's execution traces, of MLCommons: a file per rank, in JSON or in protobuf's wire format.

Reading order: `nodes` (what both forms hold), `wire`, `text`, `read` (to a trace).
"""
