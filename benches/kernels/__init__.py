"""Collectives as Triton kernels over channels and symmetric memory.

Every module has `kernel`, the collective it is, and the elements of symmetric memory that it needs.
All kernels take the same arguments:

    source, target: This rank's input and output; one tensor for both where the collective is in
        place.
    buffers, pads: Tables of the addresses of all ranks' symmetric buffers and signal pads.
    count: As in NCCL's call: elements that each rank sends (all_reduce: in all; all_gather: its
        part; reduce_scatter, all_to_all: to each rank).
    rank, WORLD_SIZE: Who this is, and how many there are.
    NUM_SLOTS, SLOT: Slots of each link, and elements of each.
"""
