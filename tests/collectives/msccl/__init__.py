"""Tests of `simrank.collectives.msccl`."""
