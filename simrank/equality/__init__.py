"""Parallel equals single: whether a layout computes what one device computes.

`program.py` is what the user gives, `tape.py` what a run of it recorded, `alignment.py` finds where
a rank's tensors lie in those of the single program, `judge.py` compares and names the first
difference, `causes.py` explains it; `runs.py` runs the programs, and `verdict.py` prints.
"""
