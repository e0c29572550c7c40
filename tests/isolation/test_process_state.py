"""What each rank has for itself: random numbers, environment, arguments."""

import os
import random
import sys
import time
from random import randint

import numpy as np

import simrank


def test_each_rank_draws_its_own_numbers_and_the_same_in_every_run(run):
    """`random` and numpy's global generator, also under names bound earlier."""
    found = {}

    def program(rank, ctx, turn):
        values = [random.random(), randint(0, 10**9), np.random.rand(), np.random.randint(10**9)]
        ctx.wait(ctx.timer(1000))
        found[turn, rank] = [*values, random.gauss(0, 1), np.random.normal()]

    for turn in range(2):
        run(program, 3, turn)
    assert found[0, 0] == found[1, 0]
    assert len({tuple(values) for values in found.values()}) == 3


def test_another_seed_draws_other_numbers(run):
    """The Context's seed decides."""
    found = []

    def program(rank, ctx):
        found.append((random.random(), np.random.rand()))

    run(program, 1, seed=0)
    run(program, 1, seed=1)
    assert found[0][0] != found[1][0]
    assert found[0][1] != found[1][1]


def test_ranks_leave_the_process_generators_alone(run):
    """Seeding and drawing in a rank does not move the state outside."""
    random.seed(3)
    np.random.seed(3)
    expected = random.Random(3).random(), np.random.RandomState(3).rand()

    def program(rank, ctx):
        random.seed(7)
        np.random.seed(7)
        assert random.random() == random.Random(7).random()
        assert np.random.rand() == np.random.RandomState(7).rand()

    run(program, 2)
    assert (random.random(), np.random.rand()) == expected


def test_a_generator_without_a_seed_repeats_from_run_to_run(run):
    """numpy.random.default_rng() in a rank; two of them differ."""
    found = []

    def program(rank, ctx):
        found.append([np.random.default_rng().random() for _ in range(2)])

    run(program, 2)
    run(program, 2)
    assert found[:2] == found[2:]
    assert len({value for pair in found for value in pair}) == 4


def test_interleaved_ranks_do_not_disturb_each_others_sequences(run):
    """Each rank's seeded sequence is what it would be alone."""

    def program(rank, ctx):
        random.seed(rank)
        alone = random.Random(rank)
        for _ in range(5):
            assert random.random() == alone.random()
            ctx.wait(ctx.timer(100))

    run(program, 4)


def test_each_rank_has_torchruns_variables():
    """RANK, LOCAL_RANK, WORLD_SIZE and friends, for 12 ranks on two nodes."""
    found = {}

    def program(rank):
        names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK")
        found[rank] = [int(os.environ[name]) for name in names]

    with simrank.Context({"name": "h100_ib", "nodes": 2}) as ctx:
        ctx.multiprocessing.spawn(program, nprocs=12)
    assert found[0] == [0, 0, 12, 8, 0]
    assert found[11] == [11, 3, 12, 4, 1]


def test_a_rank_changes_only_its_own_environment(run):
    """Setting, deleting and listing; the process and the siblings do not see it."""
    os.environ["SIMRANK_TEST_SHARED"] = "before"

    def program(rank, ctx):
        assert os.environ["SIMRANK_TEST_SHARED"] == "before"
        os.environ["SIMRANK_TEST_SHARED"] = str(rank)
        os.environ["SIMRANK_TEST_OWN"] = "x"
        ctx.wait(ctx.timer(1000))
        assert os.getenv("SIMRANK_TEST_SHARED") == str(rank)
        assert "SIMRANK_TEST_OWN" in list(os.environ)
        del os.environ["SIMRANK_TEST_OWN"]
        assert os.environ.get("SIMRANK_TEST_OWN") is None

    try:
        run(program, 3)
        assert os.environ["SIMRANK_TEST_SHARED"] == "before"
        assert "SIMRANK_TEST_OWN" not in os.environ
        assert "RANK" not in os.environ
    finally:
        del os.environ["SIMRANK_TEST_SHARED"]


def test_what_a_parent_sets_later_is_not_seen_by_those_it_has_started(run):
    """Neither by one that has read the name, nor by one that has changed its own environment."""
    name = "SIMRANK_TEST_LATER"

    def inner(rank):
        if rank == 1:
            os.environ["SIMRANK_TEST_OWN"] = "x"
        assert os.environ.get(name) is None
        time.sleep(2e-6)
        assert os.environ.get(name) is None
        assert name not in list(os.environ)

    def program(rank, ctx):
        started = ctx.multiprocessing.spawn(inner, nprocs=2, join=False)
        time.sleep(1e-6)
        os.environ[name] = f"rank {rank}"
        assert started.join()
        ctx.multiprocessing.spawn(later, (f"rank {rank}",), nprocs=2)

    def later(rank, expected):
        assert os.environ[name] == expected

    run(program, 2)


def test_an_inner_spawn_inherits_the_environment_of_its_parent_rank(run):
    """As a child process would; RANK is its own."""

    def inner(rank):
        assert os.environ["SIMRANK_TEST_PARENT"] == "rank 1"
        assert os.environ["WORLD_SIZE"] == "3"

    def program(rank, ctx):
        os.environ["SIMRANK_TEST_PARENT"] = f"rank {rank}"
        if rank == 1:
            ctx.multiprocessing.spawn(inner, nprocs=3)
        assert os.environ["WORLD_SIZE"] == "2"

    run(program, 2)


def test_each_rank_has_its_own_argv(run):
    """A rank may consume its arguments; the others and the process keep theirs."""
    before = list(sys.argv)

    def program(rank, ctx):
        assert sys.argv == before
        sys.argv.append(f"--rank={rank}")
        ctx.wait(ctx.timer(1000))
        assert sys.argv[-1] == f"--rank={rank}"
        assert len(sys.argv) == len(before) + 1
        assert [*sys.argv][:-1] == before

    run(program, 3)
    assert sys.argv == before
    assert type(sys.argv) is list


def test_an_inner_spawn_inherits_the_command_line_of_its_parent_rank(run):
    """A copy of it."""
    seen = {}

    def inner(rank):
        sys.argv.append(str(rank))
        seen[rank] = sys.argv[-2:]

    def program(rank, ctx):
        sys.argv.append("outer")
        ctx.multiprocessing.spawn(inner, nprocs=2)
        seen["outer"] = sys.argv[-1]

    run(program, 1)
    assert seen == {0: ["outer", "0"], 1: ["outer", "1"], "outer": "outer"}


def test_everything_is_restored_when_the_last_context_exits():
    """The module functions and os.environ's storage are the originals again."""
    originals = (random.random, np.random.rand, os.putenv, os.environ._data)
    with simrank.Context("hgx_h100"), simrank.Context("hgx_h100"):
        assert random.random is not originals[0]
    assert (random.random, np.random.rand, os.putenv, os.environ._data) == originals
    assert os.environ._data is originals[3]
