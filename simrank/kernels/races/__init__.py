"""Races between programs of kernels, and stale signals.

Read `happens` (programs that wait and publish, each with a vector clock), then `lockstep`
(programs of one launch that do neither) and `reads`.
"""
