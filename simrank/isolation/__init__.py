"""Rank isolation: the state that each rank has for itself, as a process of its own would.

docs/rank-state.md lists each kind of state, the way in which it becomes the rank's own, and the
module that does it. Read `stdlib.py` next: the names of the standard library, one by one, and the
patches that are installed as the first Context is entered.
"""
