"""The JSON file of nccl-tests."""

import json
from pathlib import Path

import pytest

from simrank.bench.json_parts import read_parts
from simrank.bench.measured_text import is_nccl_tests_json, nccl_tests_rows
from simrank.errors import ConfigError

# nccl-tests documents no output: this one is written as its src/util.cu writes (file version 2).
TEXT = (Path(__file__).parent / "nccl_tests" / "all_reduce.json").read_text()


def rows_of(text, **options):
    (run,) = read_parts(text, "out.json")
    assert is_nccl_tests_json(run)
    return nccl_tests_rows(run, **options)


def changed(change):
    """Return the text after a change of its data."""
    data = json.loads(TEXT)
    change(data)
    return json.dumps(data)


def test_command_devices_and_sizes_make_rows():
    """Each device stands for the GPUs of its process; sizes of nothing are left out."""
    rows = rows_of(TEXT)
    assert [(row.collective, row.num_ranks, row.dtype) for row in rows] == [
        ("all_reduce", 8, "float32")
    ] * 2
    assert [(row.size_bytes, row.time_us) for row in rows] == [(1024, 30.25), (1 << 20, 61.5)]
    assert rows[0].ranks_per_host == (4, 4)


def test_what_is_not_said_may_be_said():
    """As for the output on the screen."""
    text = changed(lambda data: (data["args"].clear(), data["config"].clear()))
    (row, _) = rows_of(text, collective="allreduce", num_ranks=8)
    assert (row.collective, row.num_ranks, row.ranks_per_host) == ("all_reduce", 8, ())


@pytest.mark.parametrize(
    ("said", "got"),
    [
        ({"num_ranks": 16}, "1.875 times algbw, as all_reduce has on 16 ranks, got 1.75 times, as"),
        ({"collective": "alltoall"}, "0.875 times algbw, as all_to_all has on 8 ranks, got 1.75"),
    ],
)
def test_what_is_said_against_the_bandwidths_is_refused(said, got):
    """The file knows better."""
    with pytest.raises(ConfigError, match=got):
        rows_of(TEXT, **said)


def test_a_run_that_was_split_is_on_the_ranks_of_a_group():
    """NCCL_TESTS_SPLIT makes communicators of some of the ranks."""

    def split(data):
        data["config"]["devices"][1].update(group=1)
        for result in data["results"]:
            placed = result["out_of_place"]
            placed["bus_bw"] = placed["alg_bw"] * 1.5

    assert rows_of(changed(split))[0].num_ranks == 4


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d["args"].clear(), "expected a collective: .* got none"),
        (lambda d: d.pop("config"), "config: expected an object, got nothing"),
        (lambda d: d["config"].update(ngpus="4"), 'config.ngpus: expected a whole .* got "4"'),
        (lambda d: d["config"]["devices"].clear(), "config.devices: expected 1 to .* got 0"),
        (lambda d: d["results"].clear(), "results: expected a size above 0, got none"),
        (lambda d: d["results"][1].update(type="f33"), "type: expected one of"),
        (lambda d: d["results"][1].update(size=-1), r"results\[1\].size: expected a whole"),
        (lambda d: d["results"][1].update(out_of_place=None), "out_of_place: .* got null"),
        (
            lambda d: d["results"][1]["out_of_place"].update(time="nan"),
            r'results\[1\].out_of_place.time: expected a time in microseconds above 0, got "nan"',
        ),
        (
            lambda d: d["results"][1].update(out_of_place={"cpu_time": 3.0}),
            "expected the devices' time, got cpu_time: run it without -C",
        ),
    ],
)
def test_what_is_wrong_is_named_with_its_key(change, message):
    """File, line, key, what was expected and what was found."""
    with pytest.raises(ConfigError, match=message) as caught:
        rows_of(changed(change))
    assert str(caught.value).startswith("out.json:1: ")
