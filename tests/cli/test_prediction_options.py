"""`--set KEY=VALUE`: a planner's what-if without a file."""

import json

import pytest

import simrank
from simrank.cli import main


def run(capsys, *args):
    with pytest.raises(SystemExit) as caught:
        main([*args])
    out = capsys.readouterr()
    return caught.value.code or 0, out.out, out.err


def times(capsys, *changed):
    args = ("predict", "--cluster", "h100_ib", "--nodes", "8", "--size", "1GiB", "--json", "-")
    status, out, _ = run(capsys, *args, *(part for each in changed for part in ("--set", each)))
    assert status == 0
    return json.loads(out)["rows"][0]


def test_half_the_cards_take_twice_as_long_for_large_sizes(capsys):
    """And so do cards of half the rate; the assumed rate widens the interval."""
    usual = times(capsys)
    fewer, slower = times(capsys, "nics=4"), times(capsys, "nic_bandwidth=23.75 GB/s")
    for each in (fewer, slower):
        assert each["time_us"] == pytest.approx(2 * usual["time_us"], rel=0.25)
    widths = [each["high_us"] / each["time_us"] for each in (usual, slower)]
    assert widths[1] > widths[0]


def test_the_python_function_takes_the_same_mapping(capsys):
    """`nccl` beside the name of a cluster."""
    cluster = {"name": "h100_ib", "nodes": 8, "nccl": {"nics": 4}}
    found = simrank.predict("all_reduce", "1 GiB", cluster=cluster)
    assert found.time_us[0] == times(capsys, "nics=4")["time_us"]


def test_explain_shows_what_was_changed_as_assumed(capsys):
    """Beside the sources of the others."""
    args = ("explain", "--cluster", "h100_ib", "--set", "nic_latency=5 us", "--size", "1KiB")
    status, out, _ = run(capsys, *args)
    assert status == 0
    assert "assumed, beside the cluster's name" in " ".join(out.split())


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ("nics", "--set: expected KEY=VALUE, for example nics=4, got nics"),
        ("nisc=4", "write `nics`"),
        ("memroy=40 GiB", "write `memory`"),
        ("memory=0 GiB", "expected a size above 0 B"),
        ("oversubscription=2", "change a copy of the file"),
        ("links.bandwidth=2", "--set: expected a key of the block nccl or device"),
        ("device.clocks=idle", "boost"),
        ("clocks=idle", "boost"),
        ("device.l2_cach=1 MB", "write `l2_cache`"),
        ("nics=many", "cluster h100_ib"),
        ("nics={", "--set: expected a value in YAML after nics="),
    ],
)
def test_wrong_changes_are_refused_by_name(capsys, changed, expected):
    """With what to do for questions that closed forms cannot answer."""
    status, _, err = run(capsys, "predict", "--cluster", "h100_ib", "--set", changed)
    assert status == 2
    if expected != "cluster h100_ib":
        assert expected in " ".join(err.split())
    else:
        assert "nics" in err
