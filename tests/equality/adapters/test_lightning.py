"""Lightning's Trainer, as it is installed: its strategies equal it on one device."""

import importlib.util

import pytest

pytest.importorskip("torch", reason="torch is not installed")
if not any(map(importlib.util.find_spec, ("pytorch_lightning", "lightning"))):
    pytest.skip("lightning is not installed", allow_module_level=True)

from simrank.equality.judge import prepared
from simrank.equality.layout import Layout
from simrank.equality.runs import RunOptions

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(600)]
PROGRAM = """
import torch
import LIBRARY as pl
from LIBRARY.strategies import FSDPStrategy, ModelParallelStrategy
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from simrank.equality.adapters import Lightning

class Net(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
    def configure_model(self):
        mesh = getattr(self, "device_mesh", None)
        if mesh is not None:
            plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
            parallelize_module(self.net, mesh["tensor_parallel"], plan)
            fully_shard(self.net, mesh=mesh["data_parallel"])
    def training_step(self, batch, index):
        x, y = batch
        loss = nn.functional.mse_loss(self.net(x), y, reduction=REDUCTION)
        self.log("loss", loss, sync_dist=True)
        return loss
    def configure_optimizers(self): return torch.optim.AdamW(self.parameters(), lr=0.01)

def batch(step):
    drawn = torch.Generator().manual_seed(step)
    return torch.randn(8, 8, generator=drawn), torch.randn(8, 1, generator=drawn)

program = Lightning(Net, batch, STRATEGY, micro_batches=2, trainer=OPTIONS)
"""
CLIPPED = "{'gradient_clip_val': 0.1}"
BOTH = "ModelParallelStrategy(sizes['dp'], sizes['tp'])"


def judged(folder, strategy, layout, options=CLIPPED, reduction="mean"):
    """Return the verdict on a strategy."""
    is_whole = importlib.util.find_spec("lightning") is not None
    library = "lightning.pytorch" if is_whole else "pytorch_lightning"
    text = PROGRAM.replace("LIBRARY", library).replace("STRATEGY", f"lambda sizes: {strategy}")
    path = folder / "lit.py"
    path.write_text(text.replace("OPTIONS", options).replace("REDUCTION", repr(reduction)))
    checks, _ = prepared(RunOptions(str(path)), [Layout(layout)], folder)
    return checks(0)


@pytest.mark.parametrize(
    ("strategy", "layout", "options"),
    [
        ("'ddp'", {"dp": 2}, CLIPPED),
        ("FSDPStrategy(auto_wrap_policy={nn.Linear})", {"dp": 2}, "{}"),
        (BOTH, {"dp": 2, "tp": 2}, CLIPPED),
    ],
)
def test_a_strategy_equals_one_device(strategy, layout, options, tmp_path):
    """With gradients that are accumulated, and clipped."""
    verdict = judged(tmp_path, strategy, layout, options)
    assert verdict.found is None
    assert verdict.tally.count > 25
    assert verdict.unaligned == []


def test_a_sum_that_ddp_averages_is_found(tmp_path):
    """Lightning divides by the micro-batches, too."""
    found = judged(tmp_path, "'ddp'", {"dp": 2}, reduction="sum").found
    assert (found.direction, found.axes) == ("gradients", ("dp",))
    assert found.cause.startswith("0.25")
