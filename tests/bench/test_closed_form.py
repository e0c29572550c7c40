"""The algorithm `nccl` of benchmarks."""

import pytest

import simrank
from simrank.cli import main
from simrank.errors import ConfigError

CONFIG = {"cluster": "hgx_h100", "collectives": ["all_reduce"], "algorithms": ["nccl"],
          "sizes": ["1 KiB", "1 GiB"]}  # fmt: skip


def test_rows_are_those_of_predict_with_everything_that_it_knows():
    """Out of place and in place alike; nothing ran, so nothing is checked."""
    rows = simrank.bench.run(CONFIG)
    found = simrank.predict("all_reduce", ["1 KiB", "1 GiB"])
    assert [row["in_place"] for row in rows] == [False, True] * 2
    for row, time_us, algorithm, protocol in zip(
        rows[::2], found.time_us, found.algorithm, found.protocol, strict=True
    ):
        assert (row["time_us"], row["algorithm"], row["protocol"]) == (time_us, algorithm, protocol)
        assert row["cost_level"] == "nccl"
        assert row["calibration"] == found.calibration
        assert row["interval_us"][0] < row["time_us"] < row["interval_us"][1]
        assert row["num_wrong"] is None


@pytest.mark.parametrize(
    "collective", ["all_gather", "reduce_scatter", "broadcast", "all_to_all_v", "sendrecv"]
)
def test_every_collective_can_be_predicted(collective):
    """With nccl-tests' bus bandwidth."""
    rows = simrank.bench.run(CONFIG | {"collectives": [collective]})
    assert rows
    assert all(0 < row["busbw_GBps"] < 500 for row in rows)


def test_the_first_benchmark_of_a_newcomer_shows_intervals_beside_what_was_measured(capsys):
    """And says what its constants were fitted to."""
    with pytest.raises(SystemExit) as caught:
        main(["bench", "hgx_h100"])
    assert caught.value.code in (0, None)
    out = capsys.readouterr().out
    auto, _, ring = out.partition("# all_reduce ring")
    assert "90% interval  measured   error" in auto
    assert "nvls Simple" in auto
    assert "# Measured time inside the 90% interval in 28 of 31 rows" in auto
    assert "21 % up to 32 KiB, 11 % to 1 MiB, 3 % to 64 MiB, 2 % above" in auto
    assert "constants fitted to 106 series of 25 sites (platform hopper: " in auto
    assert "# No 90% interval and no error: ring is forced" in ring
    assert not {"measured", "error"} & set(ring.splitlines()[2].split())


def test_faults_options_and_other_spellings_are_refused():
    """The closed forms know none of them."""
    fault = {"faults": [{"slow": 1, "factor": 2}]}
    with pytest.raises(ConfigError, match="no faults with the algorithm nccl"):
        simrank.bench.run(CONFIG | fault)
    with pytest.raises(ConfigError, match="to fix: write `nccl`"):
        simrank.bench.run(CONFIG | {"algorithms": ["ncll"]})
    with pytest.raises(ConfigError, match="no options, as nccl chooses them"):
        simrank.bench.run(CONFIG | {"algorithms": {"nccl": {"num_channels": 2}}})
