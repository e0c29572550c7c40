"""Binding of a kernel's source to the emulation: analysis, rewrite, substitution (rule K1).

Read `bind`, which makes a Python function from a kernel, then `analyse` (properties of the source
that decide how it runs), `rewrite`, and `substitute` (replacements of names).
"""
