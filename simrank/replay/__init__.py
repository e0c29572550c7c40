"""Replay of recorded operations of other tools on a simulated cluster; start with `run`."""
