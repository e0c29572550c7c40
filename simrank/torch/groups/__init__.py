"""torch.distributed's process groups and stores, on simrank's; start in `group.py`.

`group.SimulatedGroup` has the collectives, `registry` makes the groups of each rank, `dispatch`
sends calls through torch's dispatcher where a mode observes them.
"""
