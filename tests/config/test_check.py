"""What `simrank check` recognises."""

import json
import re
from functools import cache
from pathlib import Path

import pytest
import yaml

from simrank.cli import main
from simrank.config import check_file, configs_dir
from simrank.config.check import KINDS, schema
from simrank.errors import ConfigError


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("hgx_h100", "cluster hgx_h100: 1 node(s) of 8 devices"),
        ("clusters/h100_ib.yaml", "cluster h100_ib: 2 node(s) of 8 devices"),
        ("bench/mi300x.yaml", "benchmark of all_reduce on mi300x"),
        ("measured/gb200x72_coreweave_allreduce.csv", "measured table with 5 rows"),
    ],
)
def test_a_file_is_recognised_by_its_keys(name, words):
    """Clusters, benchmarks and tables."""
    path = configs_dir() / name

    assert check_file(path if path.exists() else name) == words


def test_a_bad_table_is_found_through_its_benchmark(tmp_path):
    """What a file refers to is checked with it."""
    (tmp_path / "own.csv").write_text("op\n")
    path = tmp_path / "bench.yaml"
    path.write_text("cluster: hgx_h100\ncollectives: [all_reduce]\nmeasured: own.csv\n")
    with pytest.raises(ConfigError, match=r"own.csv:1: expected the columns"):
        check_file(path)


@pytest.mark.parametrize("text", ["{}\n", "foo: 1\n"])
def test_an_unknown_kind_of_file_is_refused(tmp_path, text):
    """With the keys that were found."""
    path = tmp_path / "own.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"expected a cluster .* or a benchmark"):
        check_file(path)


@pytest.mark.parametrize("path", ["none.yaml", "."])
def test_what_cannot_be_read_is_a_config_error(path):
    """A missing file and a folder."""
    with pytest.raises(ConfigError, match="expected a readable file"):
        check_file(path)


# ---- JSON Schemas of the YAML forms ----

ROOT = Path(__file__).resolve().parents[2]
SHIPPED = sorted(ROOT.glob("configs/*/*.yaml"))
# Only a command writes pooled constants: no editor completes them.
SHIPPED = [path for path in SHIPPED if path.parent.name != "pooled"]
TYPES = {
    "string": str, "integer": int, "number": (int, float), "boolean": bool, "array": list,
    "object": dict, "null": type(None),
}  # fmt: skip


def fits(value, form, whole):
    """Return whether a value is as a schema says, in the words that ours use."""
    if "$ref" in form:
        part = whole["$defs"][form["$ref"].removeprefix("#/$defs/")]
        return fits(value, part, whole)
    return all(CHECKS[word](value, form, whole) for word in form if word in CHECKS)


def is_of_type(value, form, _):
    """Return whether a value has one of the types."""
    kinds = form["type"] if isinstance(form["type"], list) else [form["type"]]
    is_flag = isinstance(value, bool)
    return any(isinstance(value, TYPES[kind]) and is_flag == (kind == "boolean") for kind in kinds)


def has_keys(value, form, whole):
    """Return whether all keys of a mapping are known, and their values fit."""
    known, others = form.get("properties", {}), form.get("additionalProperties", True)
    for key, part in value.items() if isinstance(value, dict) else ():
        allowed = known.get(key, others)
        if allowed is False or (allowed is not True and not fits(part, allowed, whole)):
            return False
    return True


CHECKS = {
    "type": is_of_type,
    "properties": has_keys,
    "additionalProperties": has_keys,
    "required": lambda v, f, _: not isinstance(v, dict) or set(f["required"]) <= set(v),
    "anyOf": lambda v, f, w: any(fits(v, one, w) for one in f["anyOf"]),
    "oneOf": lambda v, f, w: sum(fits(v, one, w) for one in f["oneOf"]) == 1,
    "enum": lambda v, f, _: any(v == one and type(v) is type(one) for one in f["enum"]),
    "const": lambda v, f, _: v == f["const"],
    "minimum": lambda v, f, _: not isinstance(v, int) or v >= f["minimum"],
    "minItems": lambda v, f, _: not isinstance(v, list) or len(v) >= f["minItems"],
    "maxItems": lambda v, f, _: not isinstance(v, list) or len(v) <= f["maxItems"],
    "minProperties": lambda v, f, _: not isinstance(v, dict) or len(v) >= f["minProperties"],
    "items": lambda v, f, w: not isinstance(v, list) or all(fits(i, f["items"], w) for i in v),
    "prefixItems": lambda v, f, w: (
        not isinstance(v, list) or all(map(fits, v, f["prefixItems"], [w] * len(v)))
    ),
}
SAYS_NOTHING = {"$schema", "$defs", "title", "description", "examples", "default", "$ref"}


def words_of(form):
    """Yield every word of a schema that says what fits."""
    for word, part in form.items():
        yield word
        if word in ("properties", "$defs"):
            for one in part.values():
                yield from words_of(one)
        for one in part if isinstance(part, list) else [part]:
            if isinstance(one, dict) and word not in ("properties", "$defs"):
                yield from words_of(one)


@pytest.mark.parametrize("kind", KINDS)
def test_shipped_schemas_are_those_of_the_models(kind):
    """`simrank schema --to configs/schemas` writes them anew."""
    path = ROOT / "configs" / "schemas" / f"{kind}.schema.json"
    assert json.loads(path.read_text()) == schema(kind)
    assert set(words_of(schema(kind))) <= set(CHECKS) | SAYS_NOTHING, "what `fits` knows"


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_shipped_files_name_their_schema_and_fit_it(path):
    """So an editor completes and checks them."""
    named = re.match(r"# yaml-language-server: \$schema=(\S+)\n", path.read_text())[1]
    whole = json.loads((path.parent / named).read_text())
    assert whole["title"] == f"simrank {path.parent.name.removesuffix('s')}"
    assert fits(yaml.safe_load(path.read_text()), whole, whole)


CLUSTER = (ROOT / "configs/clusters/hgx_h100.yaml").read_text()
BENCH = "cluster: {name: h100_ib, nodes: 2}\ncollectives: [all_reduce]\n"
SWEEP = "program: steps.mlp\nclusters: [hgx_h100]\nparameters: {size: [1, 2], tp: 4}\n"
OWN = "name: mine\ndevice: {like: hgx_h100, count: 4}\nswitches: [sw]\nlinks:\n"
OWN += "  - {between: [each gpu, sw], bandwidth: {forward: 1 GB/s, backward: 2 GB/s},\n"
OWN += "     latency: 1 us, source: assumed}\n"
FAULTS = "faults:\n  - {kill: 3, at: 2 ms}\n  - {slow: [1, 2], factor: 1.5}\n"
FAULTS += "  - {delay_arrivals: all, up_to: 20 us, probability: 0.1}\n"
FAULTS += "  - {drop_link: gpu3 -> nvswitch, at: 1 ms}\n  - {slow_link: a <-> b, factor: 4}\n"
GOOD = [
    ("cluster", CLUSTER),
    ("cluster", OWN),
    ("bench", BENCH),
    ("bench", BENCH + "sizes: {from: 8 B, to: 1 KiB, step: 8 B}\nnum_ranks: [2, 4]\nredops: sum\n"),
    ("bench", BENCH + "sizes: 8 MiB\nalgorithms: {ring: {num_loops: 2}, auto: }\nin_place: both\n"),
    ("bench", BENCH + FAULTS.replace("a <-> b", "gpu3 <-> nvswitch")),
    ("sweep", SWEEP + "num_ranks: tp\niterations: {timed: 3}\n"),
    ("faults", FAULTS),
]
BAD = [
    ("cluster", CLUSTER.replace("memory: 81089 MiB", "memory: 80")),
    ("cluster", CLUSTER.replace("num_sms:", "num_smss:")),
    ("cluster", CLUSTER.replace("multicast: true", "multicast: 1")),
    ("cluster", OWN.replace("like: hgx_h100, ", "")),
    ("cluster", OWN.replace("forward", "forwards")),
    ("bench", BENCH.replace("cluster:", "clusters:")),
    ("bench", BENCH + "clusters: [hgx_h100]\n"),
    ("bench", BENCH + "sizes: [8]\n"),
    ("bench", BENCH + "dtypes: [float31]\n"),
    ("bench", BENCH + "in_place: perhaps\n"),
    ("bench", BENCH + "iterations: {timed: many}\n"),
    ("sweep", SWEEP + "data: 1\n"),
    ("sweep", SWEEP.replace("{size: [1, 2], tp: 4}", "{}")),
    ("faults", FAULTS.replace("at: 2 ms", "at: 2 ms, at_collective: 3")),
    ("faults", FAULTS.replace("kill: 3", "kill: -3")),
    ("faults", FAULTS + "  - {crash: 3}\n"),
]


schema_of = cache(schema)


@pytest.mark.parametrize(("kind", "text"), GOOD)
def test_what_simrank_takes_fits_the_schema(kind, text, tmp_path):
    """The ways in which a key may be written, too."""
    path = tmp_path / "file.yaml"
    path.write_text(text)
    if kind != "sweep":  # Its program is not there.
        check_file(path)
    assert fits(yaml.safe_load(text), schema_of(kind), schema_of(kind))


@pytest.mark.parametrize(("kind", "text"), BAD)
def test_what_is_wrong_in_form_does_not_fit_the_schema(kind, text, tmp_path):
    """Neither does simrank take it."""
    path = tmp_path / "file.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError):
        check_file(path)
    assert not fits(yaml.safe_load(text), schema_of(kind), schema_of(kind))


def test_every_key_of_a_file_says_what_it_is():
    """In the words of the model's docstring; an editor shows them."""
    for kind in ("cluster", "bench", "sweep"):
        without = [
            key for key, form in schema(kind)["properties"].items() if "description" not in form
        ]
        assert without in ([], ["cluster"])


def test_the_command_writes_them_to_stdout_or_a_folder(tmp_path, capsys):
    """One kind, or all; a kind that there is not is bad usage."""

    def run(*args):
        with pytest.raises(SystemExit) as stop:
            main(["schema", *args])
        return stop.value.code or 0, capsys.readouterr()

    assert json.loads(run("faults")[1].out) == schema("faults")
    assert json.loads(run()[1].out) == {kind: schema(kind) for kind in KINDS}
    folder = tmp_path / "new" / "schemas"
    _, shown = run("--to", str(folder))
    assert shown.out.splitlines() == [str(folder / f"{kind}.schema.json") for kind in KINDS]
    assert json.loads((folder / "bench.schema.json").read_text()) == schema("bench")
    status, shown = run("clusters")
    assert status == 2
    assert (
        "expected one of cluster, bench, sweep, plan, model, faults, measured, calibration, got"
        in shown.err
    )
    assert "write `cluster`" in shown.err
