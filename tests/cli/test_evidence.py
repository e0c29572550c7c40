"""Results of kits on the command line."""

import json

import pytest

from simrank.cli.kit import CLUSTERS
from simrank.hardware.load import load_cluster
from simrank.validate.compare.comparison import models_of
from tests.validate.kit.test_evidence import PARTS, change_prediction, result


@pytest.fixture
def simrank(cli):
    """Run a command; return what it prints."""

    def run(*args, status=0):
        found, out, err = cli(*args)
        assert found == status, err
        return out + err

    return run


@pytest.fixture
def kit_json(tmp_path):
    path = tmp_path / "kit.json"
    path.write_text(json.dumps(result(), indent=1))
    return str(path)


def test_accuracy_shows_error_bias_and_coverage(simrank, kit_json, tmp_path):
    """With the state of the kit's predictions."""
    page = tmp_path / "rows.json"
    said = simrank("accuracy", kit_json, "--json", str(page))
    assert "2 x NVIDIA H100" in said
    assert "not registered" in said
    assert "collectives      1        20 %  -20 %" in said
    assert "0 of 1" in said
    [row] = json.loads(page.read_text())["rows"]
    assert (row["time_us"], row["predicted_us"]) == (12.5, 10)


def test_compare_says_what_differs(simrank, tmp_path):
    """And exits with 1."""
    ring = {"kind": "value", "phase": "programs", "name": "ring on 2 ranks"}
    path = tmp_path / "kit.json"
    path.write_text(json.dumps(result(rows=[ring | {"ranks": [{"values": [2]}]}]), indent=1))
    said = simrank("compare", str(path), status=1)
    assert "differs: programs, ring on 2 ranks: other values on rank 0" in said


def test_calibrate_takes_the_collectives(simrank, kit_json, tmp_path):
    """On the kit's cluster."""
    out = tmp_path / "mine.yaml"
    simrank("calibrate", kit_json, "--out", str(out))
    assert "hgx_h100" in out.read_text()


def test_a_changed_prediction_is_refused(simrank, tmp_path):
    """By each command."""
    document = json.loads(json.dumps(result()))
    change_prediction(document)
    path = tmp_path / "kit.json"
    path.write_text(json.dumps(document, indent=1))
    for command in ("accuracy", "compare", "calibrate"):
        assert "a changed prediction" in simrank(command, str(path), status=2)


def test_a_machine_without_gpus_has_a_result_that_is_shown(simrank, tmp_path):
    """And nothing was compared."""
    machine = {"device": None, "nccl": None, "torch": "2.13"}
    note = {"kind": "note", "phase": "kernels", "text": "triton is not installed"}
    failure = {"phase": "machine", "reason": "torch sees no GPU"}
    path = tmp_path / "kit.json"
    whole = result(machine=machine, rows=[note], failures=[failure])
    path.write_text(json.dumps(whole, indent=1))
    said = simrank("accuracy", str(path)) + simrank("compare", str(path))
    assert "no GPU" in said
    assert "nothing was compared" in said
    assert "left out: kernels: triton is not installed" in said
    assert "collectives of several GPUs" in simrank("calibrate", str(path), status=2)


def test_compare_runs_no_json_file(simrank, tmp_path):
    """It is no program."""
    path = tmp_path / "other.json"
    path.write_text("{}")
    assert "a kit's result" in simrank("compare", str(path), status=2)


def test_options_of_other_tables_are_refused(simrank, kit_json):
    """They would change nothing."""
    for option, value in (("--nodes", "2"), ("--collective", "broadcast")):
        assert "kit's result" in simrank("accuracy", kit_json, option, value, status=2)


def test_each_gpu_of_a_kit_has_a_model_of_its_own():
    """Or its predictions would be another's."""
    models = [models_of(load_cluster(name).device.name)[0] for name in CLUSTERS]
    assert len(set(models)) == len(models)
    assert PARTS
