"""A program with steps of its own: its axes, the single program's values, its gradients."""

import gc

import pytest

pytest.importorskip("torch", reason="torch is not installed")

from simrank.engine import collector
from simrank.equality.judge import prepared
from simrank.equality.layout import Layout
from simrank.equality.runs import RunOptions
from simrank.errors import ConfigError, SimrankError
from simrank.torch.cuda.library import native

PROGRAM = """
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

class Trainer:
    axes, shared_axes = ("pp", "dp"), ("ep",)
    def train(self, setting, training):
        model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4))
        if setting.initial is None:
            setting.prepare(model)
        else:
            assert setting.sizes == {"pp": 1, "dp": 2, "ep": 2}
            setting.move(model)
            for layer in (model[0], model[2], model):
                fully_shard(layer, mesh=setting.mesh["dp"])
            FILL
        WATCH
        sgd = torch.optim.SGD(model.parameters(), lr=0.1)
        for index in range(STEPS):
            training.begin()
            x = torch.randn(8, 6, generator=torch.Generator().manual_seed(index)).cuda()
            x = x.to(setting.dtype)
            if setting.mesh is not None:
                x = x.chunk(setting.mesh["dp"].size())[setting.mesh["dp"].get_local_rank()]
            sgd.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            NOTE
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
            sgd.step()
            training.end(loss)

program = Trainer()
"""


LINES = {
    "FILL": "setting.fill([model])",
    "WATCH": "training.watch([model])",
    "STEPS": "training.num_steps",
    "NOTE": "training.note_gradients()",
}


def checked(folder, changed=None, **sizes):
    """Return the verdict on a program with a layout, some of whose lines are others."""
    path, program = folder / "trainer.py", PROGRAM
    for name, line in {**LINES, **(changed or {})}.items():
        program = program.replace(name, line)
    path.write_text(program)
    layouts = [Layout(sizes or {"ep": 2, "dp": 2, "pp": 1})]
    checks, notes = prepared(RunOptions(str(path)), layouts, folder)
    assert notes == []
    return checks(0)


def test_axes_are_the_programs_and_shared_ones_lie_over_its_ranks(tmp_path):
    """`ep` has no ranks of its own; FSDP's parts get the single program's values."""
    verdict = checked(tmp_path)
    assert str(verdict.layout) == "pp1 x dp2 x ep2"
    assert verdict.layout.num_ranks == 2
    assert verdict.found is None
    assert verdict.tally.count > 10


def test_models_die_with_their_context(tmp_path, monkeypatch):
    """The next one would look for garbage among all objects, at 0.3 s beside torch."""
    end, left = collector.end, []

    def counted():
        gc.collect()
        left.append(native().simrank_num_live_blocks())
        end()

    monkeypatch.setattr(collector, "end", counted)
    assert checked(tmp_path).found is None
    assert len(left) > 2
    assert not any(left)


def test_a_fault_in_its_steps_is_found(tmp_path):
    """Gradients are compared as they are before they are clipped to nearly nothing."""
    twice = "[p.grad.mul_(2) for p in model.parameters() if setting.mesh]; " + LINES["NOTE"]
    found = checked(tmp_path, {"NOTE": twice}).found
    assert (found.direction, found.axes) == ("gradients", ("dp",))
    assert "2 times" in found.cause


def test_values_that_are_not_given_to_ranks_are_found(tmp_path):
    """Each rank then has drawn its own."""
    found = checked(tmp_path, {"FILL": "pass"}).found
    assert found.direction == "initial values"


def test_a_micro_batch_that_counts_twice_is_found(tmp_path):
    """The single program trains again for each part of its batch."""
    halves = "halves = [model(half).square().mean() / 2 for half in x.chunk(2)]; loss = sum(halves)"
    again = "for each in halves + (halves[1:] if setting.mesh else []): each.backward(GRAPH)"
    changed = {
        "loss = model(x).square().mean()": halves,
        "loss.backward()": again.replace("GRAPH", "retain_graph=True"),
    }
    found = checked(tmp_path, changed).found
    assert found.cause.startswith("micro-batches do not count alike (0: 1, 1: 2 times)")


@pytest.mark.parametrize(
    ("name", "line", "words"),
    [
        ("NOTE", "pass", "has to call note_gradients"),
        ("WATCH", "pass", "has to call watch"),
        ("STEPS", "1", "ended after 1 of 2 steps"),
    ],
)
def test_a_program_that_leaves_out_a_call_is_refused(name, line, words, tmp_path):
    """What it would have recorded would never be compared."""
    with pytest.raises(SimrankError, match=words):
        checked(tmp_path, {name: line})


def test_an_axis_that_the_program_does_not_have_is_refused(tmp_path):
    """With those that it has."""
    with pytest.raises(ConfigError, match="pp, dp, ep"):
        checked(tmp_path, tp=2)
