"""Execution of a grid: in lockstep, masked, per thread, or one task per program (K1, K2).

Read `batches` (a grid in lockstep), `programs` (one task per program) and `waits` (waits of one
program), then `masked` and `threads` (divergent programs and threads) and `spins` (waiting loops).
"""
