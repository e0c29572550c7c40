"""Every operator of torch's own samples: what is charged for its bytes alone is on a list."""

import os
import warnings
from pathlib import Path

import pytest
import torch

import simrank
from simrank.hardware.roofline import BY_BYTES
from simrank.torch.devices import costs, rank_devices

LISTED = Path(__file__).with_name("charged_by_bytes.txt")
TYPES = (torch.float32, torch.bfloat16, torch.complex64, torch.float64, torch.int64)
# What torch's samples ask for that no simulated GPU has, or that this build cannot compute.
REFUSED = ("Could not run 'aten::", "not implemented for", "setStorage", "cpu")


def on_the_device(value):
    """Return a sample's argument with its tensors on the GPU."""
    if isinstance(value, torch.Tensor):
        return value.detach().to("cuda").requires_grad_(value.requires_grad)
    if type(value) in (list, tuple):
        return type(value)(map(on_the_device, value))
    return "cuda" if isinstance(value, torch.device) else value


def run_sample(call, sample):
    """Run an operator forward and, where it can, backward; return a refusal's text."""
    named = {name: on_the_device(each) for name, each in sample.kwargs.items()}
    try:
        found = call(on_the_device(sample.input), *map(on_the_device, sample.args), **named)
        first = next((o for o in (found if isinstance(found, tuple) else [found])), None)
        if isinstance(first, torch.Tensor) and first.requires_grad:
            first.sum().abs().backward()
    except (RuntimeError, AttributeError) as error:
        return str(error)
    return ""


@pytest.mark.slow
def test_an_operator_without_a_formula_is_one_that_is_known_to_move_its_bytes(monkeypatch):
    """600 operators in five types. A new name: give it a formula, or see that it has no products.

    `SIMRANK_UPDATE=1` writes the list again.
    """
    # Changes torch's flags where it is imported: here, in a process of slow tests.
    from torch.testing._internal.common_methods_invocations import op_db

    by_bytes, others, refusals = set(), set(), set()
    charge = costs.cost_of

    def noted(spec, operation):
        cost = charge(spec, operation)
        (by_bytes if cost.basis == BY_BYTES else others).add(operation.name)
        return cost

    monkeypatch.setattr(rank_devices, "cost_of", noted)

    def work(_):
        for each in op_db:
            if each.name.startswith("jiterator"):
                continue  # Of CUDA's compiler at run time.
            for dtype in TYPES:
                if dtype not in each.dtypes:
                    continue
                learns = each.supports_autograd and dtype.is_floating_point
                samples = each.sample_inputs("cpu", dtype, requires_grad=learns)
                for _number, sample in zip(range(20), samples, strict=False):
                    refusals.add(run_sample(each, sample))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        simrank.multiprocessing.spawn(work, nprocs=1)
    assert not [text for text in refusals if text and not any(each in text for each in REFUSED)]
    found = "".join(f"{name}\n" for name in sorted(by_bytes - others))
    if os.environ.get("SIMRANK_UPDATE"):
        LISTED.write_text(found)
    assert len(others) > 300
    assert found == LISTED.read_text()
