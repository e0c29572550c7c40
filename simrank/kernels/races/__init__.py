"""Races between programs of kernels, and stale signals.

Read `happens_before` (programs that wait and publish, each with a vector clock), then `launch_log`
(programs of one launch that do neither) and `program_checks` (accesses of one program).
"""
