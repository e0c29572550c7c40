"""torch.distributed programs, unchanged, on simulated ranks.

Nothing here is called by programs: `install` names what stands in torch while a Context is entered.
"""
