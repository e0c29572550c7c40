"""A small good cluster, and what is said when a piece of it is another."""

import pytest

from simrank.config import load_cluster_config
from simrank.errors import ConfigError

GOOD = """\
name: own4
source: assumed
device:
  name: toy
  count: 4
  memory: 1 GB
  memory_bandwidth: 1 TB/s
  num_sms: 10
  peak_flops: {float32: 1 TFLOPS}
  kernel_floor: 1 us
  launch_overhead: 0 us
  host_link: 10 GB/s
switches: [switch0]
links:
  - between: [each gpu, switch0]
    bandwidth: 450 GB/s
    latency: 1 us
collectives:
  launch_latency: 1 us
  step_overhead: 1 us
  num_channels: 1
  buffer: 4 MiB
"""


def complaint(tmp_path, old, new):
    """Return the message for a good cluster in which a piece of text is another."""
    assert old in GOOD
    path = tmp_path / "own.yaml"
    path.write_text(GOOD.replace(old, new))
    with pytest.raises(ConfigError) as caught:
        load_cluster_config(path)
    return str(caught.value).replace(f"{tmp_path}/", "")
