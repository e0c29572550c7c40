"""Traces of other tools, replayed on a simulated cluster; start with `run.replay`.

Reading order: `trace` (the data), `goal` (a reader), `player` (what one rank does), `run`.
"""
