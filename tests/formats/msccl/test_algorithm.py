"""MSCCL programs as schedules: proved, played, and in the table of algorithms."""

import numpy as np
import pytest

import simrank
from simrank.collectives import (
    DataPlayer,
    Problem,
    algorithms_for,
    build,
    play_data,
    play_time,
)
from simrank.collectives import algorithms as table
from simrank.collectives import data as play_module
from simrank.collectives.algorithms import auto_algorithms
from simrank.collectives.problem import REDUCING
from simrank.collectives.proof import prove
from simrank.collectives.reference import count_wrong
from simrank.errors import ConfigError, ScheduleError
from simrank.formats.msccl import (
    forced_algorithms,
    prove_program,
    register_msccl,
    schedule_of,
)
from simrank.hardware import load_cluster

from .programs import RIGHT, WRITTEN, Block, named, program, ring_all_reduce, text_of, xml

NVLINK_BYTES_PER_S = 376e9  # Of one GPU of hgx_h100, one way, as its file says.


def sizes(problem):
    """Return elements of input and output."""
    n, m = problem.world_size, problem.count
    large = {"all_reduce": (m, m), "all_gather": (m, n * m), "reduce_scatter": (n * m, m)}
    return large.get(problem.collective, (n * m, n * m))


def wrong(schedule, problem, play=play_data, reduce_op="sum"):
    """Return how many elements are wrong after playing random data."""
    rng = np.random.default_rng(1)
    num_inputs, num_outputs = sizes(problem)
    inputs = [rng.integers(-9, 9, num_inputs).astype(np.float32) for _ in range(problem.world_size)]
    before = [array.copy() for array in inputs]
    outputs = [np.full(num_outputs, np.nan, np.float32) for _ in inputs]
    play(schedule, inputs, outputs=outputs, reduce_op=reduce_op)
    assert all(map(np.array_equal, inputs, before)), "inputs are not written"
    return count_wrong(problem, before, outputs, reduce_op=reduce_op)


@pytest.mark.parametrize("name", RIGHT)
def test_programs_are_proved_and_leave_the_reference(name):
    """For as many elements as chunks, for uneven chunks, and for more chunks than elements."""
    made = named(name)
    assert prove_program(made).flaw is None
    for count in (1, 7, 24, 1001):
        problem = Problem(made.collective, made.world_size, count)
        schedule = schedule_of(made, problem)
        assert prove(schedule, problem).flaw is None
        assert wrong(schedule, problem) == 0
        if problem.collective in REDUCING:
            assert wrong(schedule, problem, reduce_op="avg") == 0


@pytest.mark.parametrize("name", RIGHT)
def test_stacked_buffers_give_the_same(name, monkeypatch):
    """The player for many ranks with small chunks."""
    monkeypatch.setattr(play_module, "MAX_COMPILED_STEPS", 0)
    made = named(name)
    for count in (1, 7, 24):
        problem = Problem(made.collective, made.world_size, count)
        assert wrong(schedule_of(made, problem), problem) == 0


@pytest.mark.parametrize("name", WRITTEN)
def test_files_of_msccls_tool_take_what_their_bytes_take(name):
    """Of 64 MiB per rank and more: the busiest rank's bytes, and at most a tenth besides."""
    made, network = named(name), load_cluster("hgx_h100")
    n = made.world_size
    problem = Problem(made.collective, n, 1 << 24)
    sent_bytes = (1 << 26) * (2 * (n - 1) / n if made.collective == "all_reduce" else n - 1)
    times = play_time(
        *(schedule_of(made, problem), np.zeros(n, np.int64)),
        network=network, devices=np.arange(n), itemsize=4,
    )  # fmt: skip
    least_ps = sent_bytes * 1e12 / NVLINK_BYTES_PER_S
    assert least_ps < times.max() < 1.1 * least_ps


def test_outputs_may_lie_over_inputs():
    """As in a call in place."""
    made = named("ring")
    problem = Problem("all_reduce", 4, 10)
    arrays = [np.arange(10.0) * (rank + 1) for rank in range(4)]
    DataPlayer(schedule_of(made, problem)).play(arrays, outputs=arrays)
    assert all((array == np.arange(10.0) * 10).all() for array in arrays)


def test_a_program_may_write_its_input():
    """On a device that clobbers the caller's buffer; here a copy is written."""
    gpus = []
    for rank in range(2):
        block = Block(1 - rank, 1 - rank)
        block.do("s", ("i", 0))
        block.do("rrc", ("i", 0), ("i", 0))
        block.do("cpy", ("i", 0), ("o", 0))
        gpus.append([block])
    problem = Problem("all_reduce", 2, 5)
    assert wrong(schedule_of(program("allreduce", 1, gpus), problem), problem) == 0


def test_a_program_that_computes_something_else_is_refused(tmp_path):
    """With the first chunk that is wrong."""
    *args, options = ring_all_reduce(3)
    steps = args[2][1][0].steps
    steps[-1] = (*steps[-1][:2], ("o", 1), *steps[-1][3:])  # The last chunk goes elsewhere.
    path = tmp_path / "bad.xml"
    path.write_text(xml(*args, **options))
    with pytest.raises(ScheduleError, match=r"bad\.xml: is no all_reduce: at the end OUTPUT"):
        register_msccl(path)


@pytest.fixture
def own_table(monkeypatch):
    """A table of algorithms that is forgotten."""
    monkeypatch.setattr(table, "_TABLE", dict(table._TABLE))


@pytest.fixture
def ring(tmp_path, own_table):
    """The path of a ring of four, as text."""
    path = tmp_path / "my.ring.xml"
    path.write_text(text_of("ring"))
    return str(path)


def test_a_file_becomes_a_line_of_the_table(ring):
    """For its number of ranks only, and never chosen by `auto`."""
    found = register_msccl(ring)
    assert found == register_msccl(ring) == ("all_reduce", "msccl:my.ring", 4)
    assert found.name in algorithms_for("all_reduce", 4)
    assert found.name not in algorithms_for("all_reduce", 8)
    assert found.name not in auto_algorithms("all_reduce", 4)
    problem = Problem("all_reduce", 4, 100)
    assert wrong(build(problem, found.name), problem) == 0
    with pytest.raises(ValueError, match="runs on 4 ranks, not on 8"):
        build(Problem("all_reduce", 8, 100), found.name)


def test_another_file_of_the_same_name_gets_a_number(ring, tmp_path):
    """So does the same file after it was edited."""
    first = register_msccl(ring)
    (tmp_path / "my.ring.xml").write_text(text_of("ring without copies"))
    second = register_msccl(ring)
    assert (first.name, second.name) == ("msccl:my.ring", "msccl:my.ring#2")


def test_names_that_are_no_files_are_left_alone(ring):
    """A path computes what it is asked for, or is refused."""
    given = {"all_gather": "direct", "broadcast": ("chain", {"num_chunks": 2}), "all_reduce": ring}
    assert forced_algorithms(given) == {
        "all_gather": ("direct", {}),
        "broadcast": ("chain", {"num_chunks": 2}),
        "all_reduce": ("msccl:my.ring", {}),
    }
    with pytest.raises(ConfigError, match="expected one of all_gather, got coll of all_reduce"):
        forced_algorithms({"all_gather": ring})


def test_uneven_sizes_and_other_collectives_are_refused():
    """A program knows one division of its buffers."""
    with pytest.raises(ValueError, match="is an all_gather of equal blocks on 4 ranks"):
        schedule_of(named("hierarchical"), Problem("all_gather", 4, 0, splits=(1, 2, 3, 4)))
    with pytest.raises(ValueError, match="is an all_gather"):
        schedule_of(named("hierarchical"), Problem("all_reduce", 4, 4))


def test_the_package_says_where_errors_belong():
    """A schedule that is wrong is a file that is wrong."""
    error = ScheduleError("what", *(f"place {number}" for number in range(40)))
    assert isinstance(error, simrank.errors.ConfigError)
    assert len(str(error).splitlines()) == simrank.errors.MAX_REPORT_LINES
    assert str(error).endswith("and 26 more")
    assert error.problems == ()
