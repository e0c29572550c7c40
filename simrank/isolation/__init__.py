"""Rank isolation: the state that each rank has for itself, as a process of its own would.

Read `table.py` first: it lists the names that a rank owns, shares or may not use. `stdlib.py`
installs the patches when the first Context enters. The other modules hold one kind of state each:
`clock`, `locks` and `threads` (waits in simulated time), `output`, `process_state` and `files`
(dispatched to the running rank), `private_modules` and `module_globals` (swapped at each turn).
"""
