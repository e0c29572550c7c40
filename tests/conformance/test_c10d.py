"""The c10d table: right on the simulator, and equal to real gloo processes where torch is there."""

import importlib.util
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

import simrank
import simrank.distributed as dist
from simrank.trace import Timeline

PROGRAMS = Path(__file__).with_name("c10d.py")
_spec = importlib.util.spec_from_file_location("c10d_programs", PROGRAMS)
c10d = importlib.util.module_from_spec(_spec)
sys.modules[_spec.name] = c10d
_spec.loader.exec_module(c10d)

TABLE = c10d.cases()
OPS = list(dict.fromkeys(case.op for case in TABLE))
# nccl has no tags and no any-source receives; its host goes on before a Work is complete.
GLOO_ONLY = ("any_source", "tags", "isendirecv", "work", "groups", "wrong_arguments")
CONTIGUOUS = ("all_to_all_single", "sendrecv", "isendirecv", "batch")


def simulated(table, backend="gloo", device="cpu", *, observer=None, **options):
    """Return the results of each rank on the simulator."""
    results = {}

    def program(rank, ctx):
        dist.init_process_group(backend)

        def factory(values, dtype):
            return ctx.tensor(values, dtype=dtype, device=device)

        results[rank] = c10d.run_table(dist, factory, table)

    with simrank.Context("hgx_h100", **options) as ctx:
        if observer is not None:
            ctx.observe(observer)
        ctx.multiprocessing.spawn(program, (ctx,), nprocs=c10d.WORLD)
    return results


@pytest.mark.parametrize("op", [op for op in OPS if op not in GLOO_ONLY])
def test_host_and_device_tensors_give_the_same_numbers(op):
    """Both backends agree wherever both admit the case."""
    table = [case for case in TABLE if case.op == op and case.shape != "transposed"]
    host, device = simulated(table), simulated(table, "nccl", None)
    for rank in range(c10d.WORLD):
        for case, ours, theirs in zip(table, host[rank], device[rank], strict=True):
            if not any(str(result).startswith("raises") for result in (ours, theirs)):
                assert ours == theirs, case


@pytest.mark.parametrize("op", OPS)
def test_a_case_does_not_raise_unless_the_backend_lacks_it(op):
    """Only what gloo does not carry raises."""
    table = [case for case in TABLE if case.op == op and op != "wrong_arguments"]
    results = simulated(table)[0]
    for case, result in zip(table, results, strict=True):
        lacks = case.dtype == "int16" or case.reduce_op in ("AVG", "BAND", "BOR", "BXOR")
        lacks = lacks or (case.shape == "transposed" and case.op in CONTIGUOUS)
        assert lacks or not str(result).startswith("raises"), (case, result)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("every", [pytest.param(1, marks=pytest.mark.slow), 5])
def test_ranks_on_threads_give_the_same_results_and_timelines(op, every, tmp_path):
    """Every number, every error, and every byte of the trace."""
    table = [case for case in TABLE if case.op == op][::every]
    results, traces = [], []
    for carrier in ("greenlet", "thread"):
        timeline = Timeline()
        results.append(simulated(table, observer=timeline, carrier=carrier))
        timeline.write(tmp_path / carrier)
        traces.append((tmp_path / carrier).read_bytes())
    assert results[0] == results[1]
    assert traces[0] == traces[1]


def test_any_source_receives_are_reported_where_they_exist():
    """On gloo rank 0 receives from every peer."""
    (result,) = simulated([c10d.Case("any_source")])[0]
    assert [rank for rank, _ in result] == [1, 2, 3]


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_another_seed_gives_the_same_numbers(seed):
    """Equal times in another order change no result of the table."""
    assert simulated(TABLE, seed=seed) == simulated(TABLE)


@pytest.fixture(scope="session")
def real(tmp_path_factory):
    """Return the results of each rank on real gloo processes."""
    if importlib.util.find_spec("torch") is None:
        pytest.skip("torch is not installed: nothing real to compare with")
    folder = tmp_path_factory.mktemp("c10d")
    command = [sys.executable, "-W", "ignore", str(PROGRAMS), str(folder)]
    subprocess.run(command, check=True, capture_output=True, timeout=100)
    return [pickle.loads((folder / str(rank)).read_bytes()) for rank in range(c10d.WORLD)]


@pytest.mark.conformance
@pytest.mark.parametrize("op", OPS)
def test_results_equal_those_of_real_processes(op, real):
    """Every case, on every rank: numbers, copies, returned values, types of errors."""
    chosen = [number for number, case in enumerate(TABLE) if case.op == op]
    table = [TABLE[number] for number in chosen]
    results = simulated(table)
    wrong = [
        (rank, case, ours, real[rank][number])
        for rank in range(c10d.WORLD)
        for number, case, ours in zip(chosen, table, results[rank], strict=True)
        if ours != real[rank][number]
    ]
    assert not wrong
