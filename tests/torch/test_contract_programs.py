"""Correct programs of all collectives raise no alarm; each broken term of a contract is named."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import simrank
from simrank.errors import SimrankError

from . import contract_programs as programs

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")
NUM_FAST, NUM_SLOW, NUM_REAL = 3, 200, 200
PARTS = range(10)
BACKENDS = ("nccl", "gloo")


def body(rank, plans, backend, results):
    """Run a rank's plan on its device."""
    dist.init_process_group(backend)
    device = f"cuda:{rank}" if backend == "nccl" else "cpu"
    if backend == "nccl":
        torch.cuda.set_device(rank)
    results[rank] = programs.run_plan(plans[rank], rank, device)
    dist.destroy_process_group()


def run(plans, backend):
    """Run the plans of all ranks; return what each filled, and the findings."""
    results = {}
    with simrank.Context("hgx_h100", races="error", strict=True) as context:
        spawn = context.multiprocessing.spawn
        spawn(body, (plans, backend, results), programs.WORLD, share_args=True)
    return results, context.findings


def check_right(seed, backend):
    """Run a correct program: right numbers, nothing found."""
    steps = programs.program_of(seed, backend)
    results, findings = run([steps] * programs.WORLD, backend)
    for rank in range(programs.WORLD):
        assert results[rank] == programs.expected(steps, rank), (seed, rank)
    assert findings == [], seed


def check_wrong(seed, backend):
    """Run a mutant: an error says so."""
    mutant = programs.mutant_of(programs.program_of(seed, backend), seed)
    with pytest.raises((SimrankError, ValueError, RuntimeError)):
        run(mutant.plans, backend)
        pytest.fail(f"{seed}: rank {mutant.rank}, {mutant.term}: nothing was found")


@pytest.mark.parametrize("backend", BACKENDS)
def test_correct_programs_give_the_right_numbers_without_a_finding(backend):
    """A sample; the slow test runs more."""
    for seed in range(NUM_FAST):
        check_right(seed, backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_each_broken_term_of_a_contract_is_an_error(backend):
    """A sample; the slow test runs more."""
    for seed in range(NUM_FAST):
        check_wrong(seed, backend)


@pytest.mark.slow
@pytest.mark.parametrize("part", PARTS)
def test_many_correct_programs_give_the_right_numbers_without_a_finding(part):
    """2,000 programs in all."""
    for seed in range(1000 + part * NUM_SLOW, 1000 + (part + 1) * NUM_SLOW):
        check_right(seed, BACKENDS[seed % 2])


@pytest.mark.slow
@pytest.mark.parametrize("part", PARTS)
def test_many_broken_terms_of_contracts_are_errors(part):
    """2,000 mutants in all."""
    for seed in range(1000 + part * NUM_SLOW, 1000 + (part + 1) * NUM_SLOW):
        check_wrong(seed, BACKENDS[seed % 2])


@pytest.mark.slow
def test_correct_programs_equal_real_gloo_processes():
    """200 programs: what real processes fill is what the generator expects of the simulator."""
    script = str(Path(programs.__file__))
    output = subprocess.run(
        [sys.executable, "-W", "ignore", script, "0", str(NUM_REAL)],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    ).stdout
    real = json.loads(output)
    for seed in range(NUM_REAL):
        steps = programs.program_of(seed, "gloo")
        simulated, _ = run([steps] * programs.WORLD, "gloo")
        for rank in range(programs.WORLD):
            assert real[rank][seed] == simulated[rank] == programs.expected(steps, rank), seed
