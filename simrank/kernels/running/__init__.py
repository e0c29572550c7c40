"""How the programs of a grid run: in lockstep, masked, thread by thread, or one task each (K1, K2).

Read `batches` (a grid in lockstep), `programs` (a task each) and `waits` (how one waits), then
`masked` and `threads` (who goes another way is left out) and `spins` (loops that may wait).
"""
