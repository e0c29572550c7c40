"""Tests of `simrank.formats.msccl`."""
