"""Tests of `kit.py`, with fake GPUs."""
