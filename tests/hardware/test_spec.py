"""What generation a GPU is of, by its name, and its clock."""

import pytest

from simrank.hardware import load_cluster
from simrank.hardware.spec import clock_hz, compute_capability


@pytest.mark.parametrize(
    ("name", "capability"),
    [
        ("NVIDIA A100 80GB", (8, 0)),
        ("nvidia l40s", (8, 9)),
        ("GH200", (9, 0)),
        ("GB200", (10, 0)),
        ("GB300", (10, 3)),
        ("NVIDIA B300 SXM6", (10, 3)),
        ("MI300X", None),
        ("a device of tomorrow", None),
    ],
)
def test_the_name_of_a_gpu_says_its_compute_capability(name, capability):
    """As NVIDIA lists them; others have none."""
    assert compute_capability(name) == capability


@pytest.mark.parametrize(
    ("cluster", "ghz"), [("hgx_a100", 1.41), ("hgx_h100", 1.98), ("gb300_nvl72", 2.11)]
)
def test_the_clock_follows_from_the_rate_of_fp32(cluster, ghz):
    """As the data sheets have it."""
    assert clock_hz(load_cluster(cluster).device) == pytest.approx(ghz * 1e9, rel=0.01)
