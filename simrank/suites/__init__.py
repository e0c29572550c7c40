"""`pytest --simrank=8`: a suite written for torchrun runs unchanged, every test on all ranks.

Each rank has a pytest session of its own, as under `torchrun -m pytest`, with its own copies of
conftests and test modules (`session`). They live in one simulation (`world`), which the real
session drives test by test (`driver`): its tests are stand-ins (`nodes`), and what the ranks
report becomes one report each (`reports`).
"""
