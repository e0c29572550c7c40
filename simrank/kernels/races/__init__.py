"""Races between programs of kernels, and signals that are never reset.

Read `happens` (programs that wait and publish, each with a vector clock), then `lockstep`
(programs of one launch that do neither), `reads` and `signals`.
"""
