"""Numbers of members that no spawn has numbered; what joins groups with them: `torch.meeting`."""

import multiprocessing

import simrank
from simrank.distributed.membership import join_world, number_of, world_of
from simrank.ranks import require_rank

FORKING = multiprocessing.get_context("fork")


def test_a_process_takes_the_next_number_as_it_joins_and_keeps_it():
    """It stands for the device of its rank in the group; who never joins is told as its rank."""
    found = {}

    def join(rank):
        program = require_rank("test")
        assert program.rank == 1
        number = number_of(program, rank)
        assert number_of(program, 5) == number == program.rank == program.task.rank
        found[rank] = number, int(world_of(program).devices[number])

    def program(rank):
        if rank == 1:
            for group_rank in (3, 0):
                child = FORKING.Process(target=join, args=(group_rank,))
                child.start()
                child.join()
                assert child.exitcode == 0
        assert number_of(require_rank("test"), 7) == rank

    with simrank.Context("hgx_h100", carrier="thread") as ctx:
        ctx.multiprocessing.spawn(program, nprocs=2)
    assert found == {3: (2, 3), 0: (3, 0)}


def test_ranks_of_a_spawn_come_to_the_world_of_another():
    """Their hosts and devices stay."""
    found = []

    def come(rank, world):
        program = require_rank("test")
        found.append((join_world(program, world), join_world(program, world), program.started_rank))

    def program(rank):
        world = world_of(require_rank("test"))
        simrank.multiprocessing.spawn(come, (world,), nprocs=3, share_args=True)
        assert world.devices.tolist() == [0, 0, 1, 2]

    with simrank.Context("hgx_h100") as ctx:
        ctx.multiprocessing.spawn(program, nprocs=1)
    assert found == [(1, 1, 0), (2, 2, 1), (3, 3, 2)]
