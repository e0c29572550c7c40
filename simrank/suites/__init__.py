"""`pytest --simrank=8`: run a suite for torchrun unchanged, every test on all ranks.

Each rank has a pytest session of its own, as under `torchrun -m pytest`, with its own copies of
conftests and test modules. They live in one simulation (`session`), which the real session drives
test by test (`driver`): its tests are patches, and what the ranks report becomes one report each.

Tests marked with `ranks` are the other half. `marker` reads what one asks for and where it runs.
Its body runs on simulated ranks (`on_simulated_ranks`), or on real processes: `on_processes` in the
main program, `worker_body` in a worker. `outcomes` makes one failure of what ranks raised;
`properties` are Hypothesis'.
"""
