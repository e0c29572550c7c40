"""Execution of a grid: in lockstep, masked, per thread, or one task per program (K1, K2).

Read `batches` (a grid in lockstep, masked where its programs diverge), `programs` (one task per
program, its waits and waiting loops), then `threads` (threads that diverge) and `sample`.
"""
