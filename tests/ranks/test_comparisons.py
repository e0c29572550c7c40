"""Numbers of ranks that record how they are compared."""

import copy
import json
import os
import pickle
import random
import sys

import pytest

import simrank
import simrank.distributed as dist
from simrank.ranks.comparisons import (
    ComparedInt,
    ComparedText,
    along_axis,
    with_compared_ints,
)
from simrank.ranks.folding import Alone

NODES = {"name": "h100_ib", "nodes": 2}
TABLE = {5: "a", 7: "b"}


def _classes(program, rank=0):
    """Run one of 16 ranks, and return the ranks that it tells apart from itself, by class."""
    context = simrank.Context(NODES, data=False, folding=Alone(16, rank))
    with context:
        context.multiprocessing.spawn(program, (), 16)
    return [each.ranks for each in context.comparisons.classes(rank)]


def _others(*ranks):
    return [tuple(rank for rank in range(16) if rank not in ranks)]


@pytest.mark.parametrize(
    ("compare", "expected"),
    [
        (lambda rank: rank == 5, [(5,)]),
        (lambda rank: rank != 5, [(5,)]),
        (lambda rank: 5 == rank, [(5,)]),  # noqa: SIM300 - the reflected comparison
        (lambda rank: rank < 13, [(13, 14, 15)]),
        (lambda rank: rank >= 12.5, [(13, 14, 15)]),
        (lambda rank: rank % 8 == 3, [(3, 11)]),
        (lambda rank: (rank + 1) * 2 - 1 == 11, [(5,)]),
        (lambda rank: 15 - rank == 1, [(14,)]),
        (lambda rank: divmod(rank, 4)[0] == 3, [(12, 13, 14, 15)]),
        (lambda rank: rank & 1, []),
        (lambda rank: bool(rank & 8), [(8, 9, 10, 11, 12, 13, 14, 15)]),
        (lambda rank: not rank, _others(0)),
        (lambda rank: rank in (3, 4), [(3,), (4,)]),
        (lambda rank: rank in [3, 4], [(3,), (4,)]),
        (lambda rank: rank in {3, 4}, [(3,), (4,)]),
        (lambda rank: TABLE.get(rank, ""), [(5,), (7,)]),
        (lambda rank: rank in TABLE, [(5,), (7,)]),
        (lambda rank: TABLE[rank + 5], [*_others(0, 2), (2,)]),
        (lambda rank: max(rank, 14), [(14, 15)]),
        (lambda rank: rank + 0.5, []),
        (lambda rank: [rank] == [5], [(5,)]),
        (lambda rank: hash(rank) + len(str(rank)), []),
    ],
)
def test_a_comparison_tells_the_ranks_with_another_outcome(compare, expected):
    """On rank 0, of the number and of what is computed of it."""
    assert sorted(_classes(compare)) == expected


def test_a_pattern_is_a_comparison():
    """Of `match`."""

    def program(rank):
        match rank:
            case 6:
                return "six"
            case _:
                return "another"

    assert _classes(program) == [(6,)]


def test_numbers_are_ints_everywhere_else():
    """Pickled, copied, printed, hashed, as an index and as a seed."""
    number = ComparedInt(5, along_axis(16, 16, 1))
    assert type(pickle.loads(pickle.dumps(number))) is int
    assert type(copy.deepcopy(number)) is int
    assert json.dumps({number: [number]}) == '{"5": [5]}'
    assert f"{number} {number:03d} {number!r}" == "5 005 5"
    assert hash(number) == hash(5)
    assert {5: "a"}[number] == "a"
    assert list(range(10))[number] == len(range(number)) == 5
    assert random.Random(number).random() == random.Random(5).random()
    assert number == 5
    assert (number != 5) is False
    assert (number / 2, number**2, -number, ~number) == (2.5, 25, -5, -6)
    assert number * [0] == [0] * 5
    assert number != "5"
    assert sys.getsizeof(int(number)) == sys.getsizeof(5)


def test_group_ranks_tell_apart_ranks_of_all_groups_along_their_axis():
    """Also in groups that the running rank is not in."""

    def program(rank):
        dist.init_process_group("nccl")
        groups = [dist.new_group(range(i, 16, 4)) for i in range(4)]
        dist.get_rank(groups[0]) == 2  # noqa: B015 - it is recorded

    assert _classes(program) == [(8, 9, 10, 11)]


def test_members_of_a_group_with_gaps_are_told_apart_and_others_are_not():
    """The numbers of ranks outside are not known."""

    def program(rank):
        dist.init_process_group("nccl")
        dist.get_rank(dist.new_group([0, 3, 4])) == 2  # noqa: B015 - it is recorded

    assert _classes(program) == [(4,)]


def test_a_line_that_goes_through_many_values_makes_no_classes():
    """It looks for itself in a list of all."""

    def program(rank):
        [each for each in range(16) if each == rank]

    assert _classes(program) == []


SCRIPT = '''
"""A program."""
from __future__ import annotations
import os
rank, local, node = (int(os.environ[name]) for name in ("RANK", "LOCAL_RANK", "GROUP_RANK"))
rank == int("5")
local == 3
node == 1
os.environ["RANK"] == "7"
assert int(3.5) == 3 and int("ff", 16) == 255 and int() == 0
'''


def test_int_of_the_environment_records_comparisons(tmp_path):
    """The program's text calls `int`; all else of it is as before."""
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    context = simrank.Context(NODES, data=False, folding=Alone(16, 0))
    from simrank.multiprocessing.script import run_script

    with context:
        run_script(context.program, script, [], 16)
    found = sorted(each.ranks for each in context.comparisons.classes(0))
    assert found == [(3,), (5,), (7,), (8, 9, 10, 12, 13, 14, 15), (11,)]


def test_numbers_are_plain_in_other_runs():
    """Without folding nothing is recorded."""
    kinds = []

    def program(rank):
        dist.init_process_group("nccl")
        kinds.extend([type(rank), type(dist.get_rank()), type(os.environ["RANK"])])

    with simrank.Context(data=False) as context:
        context.multiprocessing.spawn(program, (), 1)
    assert kinds == [int, int, str]


def test_a_text_is_compared_with_those_of_other_ranks():
    """And is a str otherwise."""
    text = ComparedText("5")
    text.numbers = along_axis(16, 16, 1)
    assert text == "5"
    assert text != "6"
    assert {"5": 1}[text] == 1
    assert type(pickle.loads(pickle.dumps(text))) is str


def test_code_that_binds_int_or_has_no_file_is_left_alone(tmp_path):
    """Its `int` is another one."""
    path = tmp_path / "own.py"
    path.write_text("def f(int): return int(3)\n")
    code = compile(path.read_text(), str(path), "exec")
    assert with_compared_ints(code) is code
    archived = compile("int('3')", "archive.zip/x.py", "exec")
    assert with_compared_ints(archived) is archived
