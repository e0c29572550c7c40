"""The corpus: right results, and the same bits in every mode."""

import numpy as np
import pytest

import simrank

from .corpus_runs import RUNS, Bench

MODES = ("batched", "one-by-one", "masked", "shuffled")


@pytest.fixture(scope="session")
def outcomes():
    """Results of every kernel of the corpus in every mode, by name; or what was raised."""
    found = {}

    def run_all(ctx):
        for name, run in RUNS.items():
            for mode in MODES:
                bench = Bench(ctx, mode)
                try:
                    run(bench)
                    found[name, mode] = bench.results
                except Exception as error:  # noqa: BLE001 - raised by the test of its kernel
                    found[name, mode] = error

    with simrank.Context("hgx_h100") as ctx:
        ctx.multiprocessing.spawn(lambda _rank: run_all(ctx), nprocs=1)
    return found


def results(outcomes, name, mode):
    if isinstance(outcomes[name, mode], Exception):
        raise outcomes[name, mode]
    return outcomes[name, mode]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", RUNS)
def test_results_equal_float64_within_their_rounding(outcomes, name, mode):
    """Against numpy, for each kernel of the corpus."""
    for found, wanted, tolerance in results(outcomes, name, mode):
        np.testing.assert_allclose(found.astype(np.float64), wanted, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", RUNS)
def test_batched_one_by_one_and_shuffled_programs_give_the_same_bits(outcomes, name):
    """No kernel of the corpus depends on the order of its programs."""
    first, *others = (results(outcomes, name, mode) for mode in MODES)
    for other in others:
        for (found, _, _), (same, _, _) in zip(first, other, strict=True):
            assert found.tobytes() == same.tobytes()
