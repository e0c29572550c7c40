"""Filters of warnings: each rank's own, in blocks that are held while others run."""

# Blocks that are held across a wait are what this is about.
# ruff: noqa: PT030, PT031

import decimal
import time
import warnings

import pytest

import simrank


def test_blocks_that_ranks_hold_at_the_same_time_are_their_own(run):
    """One ignores, one records, one raises; the program's filters are what they were."""
    before, seen = (warnings.filters, list(warnings.filters), warnings.showwarning), {}

    def program(rank, ctx):
        time.sleep(0.1 * rank)
        with warnings.catch_warnings(record=rank == 1) as log:
            warnings.simplefilter(["ignore", "always", "error"][rank])
            time.sleep(1)
            try:
                warnings.warn(f"of {rank}", UserWarning, stacklevel=1)
                seen[rank] = [str(each.message) for each in log or ()]
            except UserWarning as error:
                seen[rank] = error
            time.sleep(1 - 0.3 * rank)

    run(program, 3)
    assert seen[0] == []
    assert seen[1] == ["of 1"]
    assert isinstance(seen[2], UserWarning)
    assert (warnings.filters, list(warnings.filters), warnings.showwarning) == before


def test_pytest_warns_in_ranks_sees_the_warnings_of_its_rank(run):
    """Blocks that overlap without being nested."""

    def program(rank, ctx):
        time.sleep(0.1 * rank)
        with pytest.warns(UserWarning, match=f"of {rank}") as record:
            time.sleep(1)
            warnings.warn(f"of {rank}", UserWarning, stacklevel=1)
        assert len(record) == 1

    run(program, 3)


def test_a_filter_that_a_rank_sets_for_good_ends_with_it(run):
    """As its process would; the next run starts with the program's."""
    before = list(warnings.filters)

    def program(rank, ctx):
        warnings.simplefilter("ignore")
        warnings.filterwarnings("error", message="other")
        assert len(warnings.filters) == len(before) + 2
        warnings.showwarning = print
        warnings.warn("nobody sees it", UserWarning, stacklevel=1)
        warnings.resetwarnings()
        assert warnings.filters == []

    run(program, 2)
    assert warnings.filters == before
    assert type(warnings) is type(simrank)


def test_a_rank_may_show_warnings_its_own_way(run):
    """By `warnings.showwarning`, as ever."""
    shown = []

    def program(rank, ctx):
        warnings.simplefilter("always")
        if rank == 0:
            warnings.showwarning = lambda message, *rest: shown.append(str(message))
            time.sleep(1)
            warnings.warn("of 0", UserWarning, stacklevel=1)
        else:
            with pytest.warns(UserWarning):
                time.sleep(2)
                warnings.warn("of 1", UserWarning, stacklevel=1)

    run(program, 2)
    assert shown == ["of 0"]


def test_a_block_of_the_main_program_is_the_ranks_too(ctx):
    """What it records comes from ranks as well."""
    with warnings.catch_warnings(record=True) as log:
        warnings.simplefilter("always")
        ctx.multiprocessing.spawn(lambda rank: warnings.warn("w", UserWarning, 1), nprocs=2)
    assert len(log) == 2


def test_decimal_contexts_are_a_ranks_own(run):
    """As everything that is kept in contextvars."""

    def program(rank, ctx):
        with decimal.localcontext() as context:
            context.prec = 3 + rank
            time.sleep(1)
            assert str(decimal.Decimal(1) / 3) == "0." + "3" * (3 + rank)
            time.sleep(rank)

    run(program, 3)
    assert decimal.getcontext().prec == 28
