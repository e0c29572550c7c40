"""torchtitan's trainer, as it is installed: its layouts equal its model on one device."""

import importlib.util

import pytest

pytest.importorskip("torch", reason="torch is not installed")
if importlib.util.find_spec("torchtitan") is None:
    pytest.skip("torchtitan is not installed", allow_module_level=True)

from simrank.equality.judge import prepared
from simrank.equality.layout import Layout
from simrank.equality.runs import RunOptions

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(600)]
IS_OLD = importlib.util.find_spec("torchtitan.trainer") is None
OLD = """
from torchtitan.config import JobConfig
from simrank.equality.adapters import TorchTitan
config = JobConfig()
config.model.name, config.model.flavor = NAME, "debugmodel"
program = TorchTitan(config, batch_size=4, seq_len=32)
"""
NEW = """
from importlib import import_module
from simrank.equality.adapters import TorchTitan
registry = import_module("torchtitan.models." + NAME + ".config_registry")
config = getattr(registry, NAME + "_debugmodel")()
config.model_spec.model.layers = config.model_spec.model.layers[:2]
config.parallelism.spmd_backend = "partial_dtensor"
program = TorchTitan(config, batch_size=4, seq_len=32)
"""


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("llama3", {"dp_shard": 4}),
        ("llama3", {"dp_replicate": 2, "tp": 2}),
        ("deepseek_v3", {"dp_shard": 2, "ep": 2}),
    ],
)
def test_a_layout_equals_the_single_model(name, sizes, tmp_path):
    """With every tensor aligned."""
    path = tmp_path / "titan.py"
    path.write_text((OLD if IS_OLD else NEW).replace("NAME", repr(name)))
    checks, _ = prepared(RunOptions(str(path)), [Layout(sizes)], tmp_path)
    verdict = checks(0)
    assert verdict.found is None
    assert verdict.tally.count > 200
    assert verdict.tally.worst < 0.2
