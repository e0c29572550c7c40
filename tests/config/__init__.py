"""Tests of `simrank.config`."""
