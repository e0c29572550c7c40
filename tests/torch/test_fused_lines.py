"""Compiled kernels are shown by the lines of the program that they fuse."""

import json
import subprocess
import sys

import pytest

from simrank.errors import UnsupportedError
from simrank.torch import fused_lines

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # torch's own.

PROGRAM = """import torch
import torch.nn.functional as F
weight = torch.ones(64, 64, device="cuda", requires_grad=True)


@torch.compile
def layer(x):
    h = F.gelu(x @ weight)
    h = h * 2
    return F.rms_norm(h, (64,))


layer(torch.ones(64, 64, device="cuda")).sum().backward()
"""


@pytest.mark.parametrize("above", ["", "# A comment that moves all lines.\n"])
def test_the_summary_names_the_lines_that_kernels_fuse(tmp_path, monkeypatch, above):
    """Forward and backward; from the cache, too, whose code was compiled for other lines."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    first = 9 if above else 8
    fused = ", ".join(f"train.py:{line}" for line in range(first, first + 3))
    for text in (PROGRAM, above + PROGRAM):
        (tmp_path / "train.py").write_text(text)
        words = ["run", "--nproc-per-node", "2", "--summary", "json", "train.py"]
        command = [sys.executable, "-m", "simrank", *words]
        found = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
    summary = found.stderr[("\n" + found.stderr).rindex("\n{") :]
    listed = json.loads(summary)["kernels"]
    kernels = [kernel for kernel in listed if kernel["name"].startswith("triton_")]
    assert {kernel["lines"] for kernel in kernels} == {fused}
    assert all(not kernel["lines"] for kernel in listed if kernel not in kernels)  # torch's own.
    assert any("backward" in kernel["name"] for kernel in kernels)
    assert all(kernel["num_calls"] == 1 for kernel in kernels)


def test_an_error_names_the_kernels_file():
    """A kernel that the emulator cannot run is found at once."""

    def launch():
        raise UnsupportedError("tl.of_a_test is not emulated")

    with pytest.raises(UnsupportedError) as caught:
        fused_lines.told(launch, "model.py:9", "/cache/ab/cabc.py")()
    assert caught.value.__notes__ == [
        "simrank: in a kernel of model.py:9 that torch.compile has generated: /cache/ab/cabc.py"
    ]
