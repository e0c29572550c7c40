"""The program of a plan's models: every layout trains the same model, and a plan runs it."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from simrank.config.files import configs_dir

pytest.importorskip("torch", reason="torch is not installed")

PROGRAM = configs_dir() / "models" / "train.py"
MODEL = """\
source: assumed
licence: none
layers: 4
hidden: 64
ffn: 128
heads: 8
kv_heads: 4
head_dim: 16
vocab: 256
rope_theta: 10000.0
seq: 64
"""
EXPERTS = "experts: 8\ntop_k: 2\nexpert_ffn: 64\nqk_norm: true\n"


def simrank(*words, cwd=None):
    """Run a command in a process of its own, as torch's process group is of the whole process."""
    command = [sys.executable, "-m", "simrank", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=cwd)


@pytest.fixture
def norms(tmp_path):
    """Return the norms of two steps' gradients of a layout on so many ranks."""

    def run(more, ranks, options):
        path = tmp_path / "model.yaml"
        path.write_text(MODEL + more)
        where = "--cluster", "hgx_h100", "--nproc-per-node", ranks
        wrapper = Path(__file__).with_name("model_gradients.py")
        words = PROGRAM, "--model", path, "--seq", 64, "--batch", 4, *options.split()
        ended = simrank("run", *where, wrapper, *words)
        assert ended.returncode == 0, ended.stderr
        return [float(text) for text in dict.fromkeys(re.findall(r"norm (\S+)", ended.stdout))]

    return run


@pytest.mark.slow
@pytest.mark.parametrize(
    ("more", "layouts"),
    [
        ("", {"--tp 2 --recompute half": 4, "--pp 2": 2, "--cp 2": 2, "--replicate 2": 4}),
        (EXPERTS, {"--ep 2": 2, "--ep 2 --tp 2": 4, "--pp 2 --ep 2": 4}),
    ],
)
def test_all_layouts_have_the_gradients_of_one_device(norms, more, layouts):
    """As far as bfloat16 has them, of the second step, too."""
    whole = norms(more, 1, "")
    assert len(whole) == 2
    for options, ranks in layouts.items():
        assert norms(more, ranks, options) == pytest.approx(whole, rel=0.02), options


@pytest.mark.slow
def test_a_plan_of_a_model_ends_with_a_command_that_runs(tmp_path):
    """On two devices; the rows are steps that fit."""
    path = tmp_path / "tiny.yaml"
    path.write_text(MODEL)
    folder = tmp_path / "kept"
    words = "--model", path, "--gpus", "2xh100", "--batch", 2, "--jobs", 1, "--save", folder
    ended = simrank("plan", *words)
    assert ended.returncode == 0, ended.stderr
    *_, stack, best = ended.stdout.splitlines()
    assert stack.startswith("# Times are those of torch")
    command = best.removeprefix(f"# The best: cd {folder} && simrank ").split()
    assert command[:3] == ["run", "--shape-only", "--cluster"]
    ended = simrank(*command, cwd=folder)
    assert ended.returncode == 0, ended.stderr
    assert "training steps: " in ended.stderr
