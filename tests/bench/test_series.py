"""The series of a benchmark: every combination of its lists but size and form."""

import pytest

import simrank
from simrank import bench
from simrank.bench.series import series_of
from simrank.collectives import algorithms as table
from simrank.config import bench_config_from_mapping, load_bench_config
from simrank.errors import ConfigError, UnsupportedError
from tests.formats.msccl.programs import text_of

SMALL = {"cluster": "hgx_h100", "collectives": ["all_reduce"], "sizes": ["1 KiB"]}


def series(**change):
    """Return the series of a small benchmark."""
    return list(series_of(bench_config_from_mapping({**SMALL, **change})))


def test_roots_and_reduce_operations_count_only_where_they_are_used():
    """An all_gather is one series, whatever the roots and operations."""
    options = {"num_ranks": 3, "root": "all", "redops": "all"}
    assert len(series(collectives=["all_gather"], **options)) == 1
    assert len(series(collectives=["all_reduce"], **options)) == 5
    assert len(series(collectives=["reduce"], **options)) == 15
    assert [each.root for each in series(collectives=["gather"], **options)] == [0, 1, 2]


def test_a_root_is_named_where_it_is_not_the_first():
    """So that series of one collective differ."""
    titles = [each.title for each in series(collectives=["broadcast"], num_ranks=2, root="all")]
    assert titles == [
        "broadcast auto float32 on 2 ranks of hgx_h100",
        "broadcast auto float32 root 1 on 2 ranks of hgx_h100",
    ]


def test_an_uneven_exchange_runs_the_algorithms_of_the_even_one():
    """all_to_all_v has no table of its own; sendrecv has nothing to choose."""
    (named,) = series(collectives=["all_to_all_v"], algorithms=["pairwise"])
    assert named.call_name == "all_to_all"
    assert [each.algorithm for each in series(collectives=["sendrecv"])] == ["auto"]


@pytest.fixture
def four(tmp_path, monkeypatch):
    """A folder with an algorithm of four ranks, and a benchmark that names it."""
    monkeypatch.setattr(table, "_TABLE", dict(table._TABLE))
    (tmp_path / "own.xml").write_text(text_of("ring"))
    (tmp_path / "bench.yaml").write_text(
        "cluster: {name: hgx_h100, cost_level: schedule}\n"
        "collectives: [all_reduce, all_gather]\nnum_ranks: [4, 8]\n"
        "algorithms:\n- own.xml\n- ring\nsizes: [1 KiB]\nin_place: false\n"
    )
    return tmp_path


def test_files_are_algorithms_beside_the_others(four):
    """Their paths begin at the benchmark; they run what they say that they compute, and right."""
    config = load_bench_config(four / "bench.yaml")
    found = [(each.algorithm, each.collective, each.num_ranks) for each in series_of(config)]
    assert found[0] == ("msccl:own", "all_reduce", 4)
    assert [name for name, *_ in found].count("msccl:own") == 1
    rows = bench.run(four / "bench.yaml")
    assert [row["algorithm"] for row in rows[:2]] == ["msccl:own", "ring"]
    assert [row["num_wrong"] for row in rows] == [0] * 5
    assert rows[0]["time_us"] == pytest.approx(rows[1]["time_us"], rel=0.1)


def test_a_file_of_what_is_not_called_is_refused(four):
    """With its place in the benchmark; and so are options of a file."""
    text = (four / "bench.yaml").read_text()
    (four / "bench.yaml").write_text(text.replace("[4, 8]", "8"))
    with pytest.raises(ConfigError) as caught:
        list(series_of(load_bench_config(four / "bench.yaml")))
    assert "bench.yaml:4: algorithms" in str(caught.value)
    wanted = "expected all_gather on 8 ranks or all_reduce on 8 ranks, got all_reduce on 4 ranks"
    assert wanted in str(caught.value)
    with pytest.raises(ConfigError, match="has no option 'x'"):
        series(num_ranks=4, algorithms={str(four / "own.xml"): {"x": 1}})


def test_a_kernel_without_triton_is_one_line_with_the_cure(monkeypatch):
    """Once, not per algorithm; the status is that of every missing package."""
    monkeypatch.setattr("simrank.bench.series.find_spec", lambda _: None)
    kernel = {"kernel": "benches.kernels.ring_all_reduce"}
    config = {"cluster": "hgx_h100", "collectives": ["all_reduce"], "sizes": ["1 KiB"]}
    with pytest.raises(UnsupportedError) as caught:
        bench.run({**config, "algorithms": {"one": kernel, "two": kernel}})
    assert str(caught.value) == "triton is not installed; to fix: pip install triton"


# ---- the algorithm `nccl` of benchmarks ----

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


def test_faults_options_and_other_spellings_are_refused():
    """The closed forms know none of them."""
    fault = {"faults": [{"slow": 1, "factor": 2}]}
    with pytest.raises(ConfigError, match="no faults with the algorithm nccl"):
        simrank.bench.run(CONFIG | fault)
    with pytest.raises(ConfigError, match="to fix: write `nccl`"):
        simrank.bench.run(CONFIG | {"algorithms": ["ncll"]})
    with pytest.raises(ConfigError, match="no options, as nccl chooses them"):
        simrank.bench.run(CONFIG | {"algorithms": {"nccl": {"num_channels": 2}}})
