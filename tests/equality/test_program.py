"""A program with steps of its own: its axes, the single program's values, its gradients."""

import pytest

pytest.importorskip("torch", reason="torch is not installed")

from simrank.equality.check import prepared
from simrank.equality.layout import Layout
from simrank.equality.runs import Options
from simrank.errors import ConfigError, SimrankError

PROGRAM = """
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

class Session:
    exported = {}
    def __init__(self, model, mesh):
        self.parts, self.mesh = [model], mesh
        self.sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    def step(self, index, note_gradients):
        x = torch.randn(8, 6, generator=torch.Generator().manual_seed(index)).cuda()
        x = x.to(self.parts[0][0].weight.dtype)
        if self.mesh is not None:
            x = x.chunk(self.mesh["dp"].size())[self.mesh["dp"].get_local_rank()]
        self.sgd.zero_grad()
        loss = self.parts[0](x).square().mean()
        loss.backward()
        NOTE
        torch.nn.utils.clip_grad_norm_(self.parts[0].parameters(), 1e-3)
        self.sgd.step()
        return loss

class Trainer:
    axes, shared_axes = ("pp", "dp"), ("ep",)
    def start(self, setting):
        model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4))
        if setting.initial is None:
            return Session(setting.prepare(model), None)
        assert setting.sizes == {"pp": 1, "dp": 2, "ep": 2}
        setting.move(model)
        for layer in (model[0], model[2], model):
            fully_shard(layer, mesh=setting.mesh["dp"])
        FILL
        return Session(model, setting.mesh)

program = Trainer()
"""


def checked(folder, note="note_gradients()", fill="setting.fill([model])", **sizes):
    """Return the verdict on a program with a layout."""
    path = folder / "trainer.py"
    path.write_text(PROGRAM.replace("NOTE", note).replace("FILL", fill))
    layouts = [Layout(sizes or {"ep": 2, "dp": 2, "pp": 1})]
    checks, notes = prepared(Options(str(path)), layouts, folder)
    assert notes == []
    return checks(0)


def test_axes_are_the_programs_and_shared_ones_lie_over_its_ranks(tmp_path):
    """`ep` has no ranks of its own; FSDP's parts get the single program's values."""
    verdict = checked(tmp_path)
    assert str(verdict.layout) == "pp1 x dp2 x ep2"
    assert verdict.layout.num_ranks == 2
    assert verdict.found is None
    assert verdict.tally.count > 10


def test_a_fault_in_its_steps_is_found(tmp_path):
    """Gradients are compared as they are before they are clipped to nearly nothing."""
    twice = "[p.grad.mul_(2) for p in self.parts[0].parameters() if self.mesh]; note_gradients()"
    found = checked(tmp_path, twice).found
    assert (found.direction, found.axes) == ("gradients", ("dp",))
    assert "2 times" in found.cause


def test_values_that_are_not_given_to_ranks_are_found(tmp_path):
    """Each rank then has drawn its own."""
    found = checked(tmp_path, fill="pass").found
    assert found.direction == "initial values"


def test_a_step_that_notes_no_gradients_is_an_error(tmp_path):
    """They would never be compared."""
    with pytest.raises(SimrankError, match="note_gradients"):
        checked(tmp_path, "pass")


def test_an_axis_that_the_program_does_not_have_is_refused(tmp_path):
    """With those that it has."""
    with pytest.raises(ConfigError, match="pp, dp, ep"):
        checked(tmp_path, tp=2)
