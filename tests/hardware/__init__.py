"""Tests of `simrank.hardware`."""
