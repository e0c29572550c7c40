"""State that torch keeps per process or per native thread, made each rank's own.

docs/rank-state.md lists it. `turns.TorchState` puts a rank's state in place as its turn begins and
takes it back as the turn ends; the other modules hold one kind of state each.
"""
