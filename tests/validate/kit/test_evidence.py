"""Results of kits: what was changed is refused, the rest is shown and fitted."""

import ast
import json
from copy import deepcopy

import pytest

from simrank.config.files import configs_dir
from simrank.config.measured import parse_measured
from simrank.errors import ConfigError
from simrank.validate.kit.evidence import is_evidence, read_evidence
from simrank.validate.kit.script.result import (
    FORMAT,
    VALUES,
    alike,
    chosen,
    differences,
    flat,
    hash_of_parts,
    merged,
    other_hangs,
    sha256,
    summary,
    text_of,
)
from simrank.validate.kit.script.rows import Rows

TITLE = "all_reduce of 2 ranks, 1 KiB"
PARTS = {
    "hgx_h100": text_of(
        {
            "device": "H100",
            "models": ["H100"],
            "times": {"collectives: all_reduce of 2 ranks": {"1 KiB": [10, 8, 12]}},
        }
    ),
    VALUES: text_of({"values": {"programs: ring on 2 ranks": {"ranks": [{"values": [1]}]}}}),
}


def result(**measured):
    """Return a whole result of two GPUs."""
    row = {"kind": "time", "phase": "collectives", "name": TITLE, "time_us": 12.5}
    row |= {"collective": "all_reduce", "bytes": 1024, "ranks": 2, "dtype": "float32"}
    body = {"machine": {"device": {"name": "NVIDIA H100", "count": 2}}, "rows": [row], "hangs": []}
    body |= {"failures": [], "cluster": "hgx_h100", **measured}
    hashes = {name: sha256(text) for name, text in PARTS.items()}
    return {
        "format": FORMAT,
        "version": 1,
        "kit": {"simrank": "0", "hashes": hashes, "predictions_sha256": hash_of_parts(hashes)},
        "cluster": "hgx_h100",
        "predictions": PARTS,
        "measured": body,
        "measured_sha256": sha256(text_of(body)),
    }


def read(document):
    return read_evidence(json.dumps(document), "kit.json")


def test_times_stand_beside_predictions_that_were_never_fitted():
    """Error, and whether they are in the interval."""
    [timed] = read(result()).times()
    assert (timed.time_us, timed.predicted_us, timed.is_inside) == (12.5, 10, False)
    assert timed.error == pytest.approx(-0.2)


def test_collectives_are_a_measured_table():
    """As `simrank calibrate` reads it."""
    [row] = parse_measured(read(result()).table(), "kit.json")
    assert (row.collective, row.num_ranks, row.size_bytes, row.time_us) == (
        "all_reduce", 2, 1024, 12.5,
    )  # fmt: skip
    with pytest.raises(ConfigError, match="collectives of several GPUs"):
        read(result(rows=[])).table()


def change_prediction(document):
    document["predictions"]["hgx_h100"] = PARTS["hgx_h100"].replace("10", "12")


def change_prediction_and_hash(document):
    change_prediction(document)
    document["kit"]["hashes"]["hgx_h100"] = sha256(document["predictions"]["hgx_h100"])


def change_measurement(document):
    document["measured"]["rows"][0]["time_us"] = 10


def change_the_cluster(document):
    document["cluster"] = "hgx_h200"


def take_another_version(document):
    document["version"] = 2


def lose_the_measurements(document):
    del document["measured"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (change_prediction, "a changed prediction"),
        (change_prediction_and_hash, "the hash of the hashes"),
        (change_measurement, "a changed measurement"),
        (change_the_cluster, "cluster: expected 'hgx_h100', got another"),
        (take_another_version, "version: expected 1, or a newer simrank, got 2"),
        (lose_the_measurements, "measured: expected an object"),
    ],
)
def test_a_result_that_was_changed_is_refused(change, words):
    """Whoever makes new hashes for all has other predictions than the registered ones."""
    document = deepcopy(result())
    change(document)
    with pytest.raises(ConfigError, match=words):
        read(document)


def test_a_file_that_ends_early_is_refused_with_its_line():
    """And another JSON file is none."""
    text = json.dumps(result(), indent=1)
    assert is_evidence(text)
    assert not is_evidence('{"results": []}')
    with pytest.raises(ConfigError, match=r"kit.json:\d+: expected a whole file"):
        read_evidence(text[:-40], "kit.json")


def test_predictions_of_no_registered_kit_say_so():
    """Then nothing says when they were made."""
    assert read(result()).registered == ""


def test_the_shipped_kit_is_registered_and_whole():
    """Its hashes are those of its predictions, and it is small enough to be read."""
    folder = configs_dir() / "evidence"
    text = (folder / "kit.py").read_text()
    assert len(text) < 200_000
    constants = {
        ast.unparse(node.targets[0]): ast.literal_eval(node.value)
        for node in ast.parse(text).body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) in ("KIT", "PARTS")
    }
    hashes = {name: sha256(part) for name, part in constants["PARTS"].items()}
    total = hash_of_parts(hashes)
    assert constants["KIT"]["predictions_sha256"] == total
    assert total in (folder / "kits.csv").read_text()
    assert f"their hash is {total}" in ast.get_docstring(ast.parse(text))
    assert VALUES in hashes


def test_a_gpu_is_found_by_its_model():
    """H20 is no H200, and neither is a part of one, or a card."""
    known = {
        "a": {"models": ["H20"], "num_sms": 78},
        "b": {"models": ["H200"], "num_sms": 132},
        VALUES: {},
    }
    assert chosen(known, "NVIDIA H200", 132) == "b"
    assert chosen(known, "NVIDIA H20-3e") == "a"
    others = ("NVIDIA T4", "NVIDIA H200 NVL", "NVIDIA H200 MIG 1g.18gb")
    assert [chosen(known, name) for name in others] == ["", "", ""]
    assert chosen(known, "NVIDIA H200", 60) == ""
    cards = {"c": {"models": ["RTX PRO 6000"], "num_sms": 188}}
    assert chosen(cards, "NVIDIA RTX PRO 6000 Blackwell Server Edition", 188) == "c"
    assert chosen(cards, "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", 188) == ""
    assert chosen(cards, "NVIDIA RTX 6000 Ada Generation", 142) == ""


def test_other_values_orders_and_hangs_are_said():
    """Of the first rank where they differ."""
    known = {
        "programs: ring on 2 ranks": {"ranks": [{"values": [1], "calls": ["a"]}] * 2},
        "kernels: add": {"sample": [1.0, 2.0]},
        "hangs: x on 2 ranks": {"calls": [["recv"], []], "ended": [1]},
    }
    mine = [{"values": [1], "calls": ["a"]}, {"values": [1], "calls": ["b"]}]
    rows = [
        {"kind": "value", "phase": "programs", "name": "ring on 2 ranks", "ranks": mine},
        {
            "kind": "value",
            "phase": "kernels",
            "name": "add",
            "sample": [1.0, 2.5],
            "is_right": True,
        },
    ]
    assert differences(known, rows) == [
        "programs, ring on 2 ranks: other calls on rank 1",
        "kernel add: other values than predicted",
    ]
    hang = {"name": "x on 2 ranks", "hung": True, "calls": [["recv"], []], "ended": [1]}
    assert other_hangs(known, [hang]) == []
    assert other_hangs(known, [hang | {"ended": []}]) == [
        "x on 2 ranks: other calls, or other ranks wait"
    ]
    assert other_hangs(known, [hang | {"hung": False}]) == ["x on 2 ranks: ended without an error"]


def test_parts_of_ranks_become_one_row():
    """In the order of the ranks, beside the other rows."""
    parts = [
        {"kind": "part", "phase": "p", "name": "ring", "rank": rank, "values": [rank], "calls": []}
        for rank in (1, 0)
    ]
    [note, ring] = merged([{"kind": "note", "phase": "p"}, *parts])
    assert note["kind"] == "note"
    assert [each["values"] for each in ring["ranks"]] == [[0], [1]]


def test_a_summary_has_a_line_per_phase():
    """With the share of times in their interval."""
    rows = result()["measured"]["rows"]
    [line] = summary(flat(json.loads(PARTS["hgx_h100"])["times"]), rows)
    assert line == (
        "collectives: 1 items, measured / predicted: median 1.25, 1.25 to 1.25; "
        "0 of the 1 with an interval are inside"
    )


def test_pairs_of_gpus_that_are_slow_are_said():
    """Beside the median of all pairs."""
    each_us = {"0 to 1": 10.0, "0 to 2": 11.0, "1 to 2": 19.0}
    row = {"kind": "time", "phase": "pairs", "name": "64 MiB between 2 of 3 GPUs", "time_us": 11.0}
    lines = summary({}, [row | {"each_us": each_us}])
    assert lines == ["GPU 1 to 2, 64 MiB between 2 of 3 GPUs: 1.7 times the median"]


def test_numbers_that_json_lacks_are_texts(tmp_path):
    """And a value that is not a number is that of the prediction, if that is none, too."""
    rows = Rows(tmp_path / "rows", 1.0)
    rows.add("value", "kernels", sample=[1.0, float("nan")], error=float("inf"))
    [row] = [json.loads(line) for line in (tmp_path / "rows").read_text().splitlines()]
    assert (row["sample"], row["error"]) == ([1.0, "nan"], "inf")
    assert alike([1.0, "nan"], [1.0, "nan"])
    assert not alike([1.0, "nan"], [1.0, 2.0])
