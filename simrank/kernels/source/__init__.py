"""A kernel's source: analysed, rewritten, and bound to the emulation (rule K1).

Read `bind`, which makes a Python function of a kernel, then `analyse` (what its source says of how
it must run), `rewrite` and `substitute` (what stands for each name).
"""
