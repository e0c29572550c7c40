"""Traces of other tools, replayed on a simulated cluster; start with `run.replay`.

Reading order: `trace` (the data), `goal` and `chakra` (readers), `run`.
"""
