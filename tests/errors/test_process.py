"""How ranks end other than by returning: types are kept, and notes added."""

import pytest

from simrank.errors import ProcessExitedException, ProcessRaisedException, SpawnException


def test_a_failing_rank_keeps_its_type_and_gains_a_note(run):
    """All root causes are in `errors`."""

    def body(rank, _ctx):
        if rank % 2:
            raise KeyError(rank)

    with pytest.raises(SpawnException) as caught:
        run(body, 4)

    error = caught.value
    assert isinstance(error, ProcessRaisedException)
    assert {rank: type(e) for rank, e in error.errors.items()} == {1: KeyError, 3: KeyError}
    assert error.errors[1].__notes__ == ["simrank: raised by rank 1 at t=0.000 us"]
    assert error.error_index == 1


def test_a_rank_that_exits_with_a_code_is_told_apart_from_one_that_raises(run):
    """As torch: its code is kept, and no traceback is made up."""

    def body(rank, _ctx):
        if rank == 2:
            raise SystemExit(7)

    with pytest.raises(ProcessExitedException) as caught:
        run(body, 4)

    assert (caught.value.error_index, caught.value.exit_code) == (2, 7)
    assert str(caught.value) == "process 2 terminated with exit code 7"
