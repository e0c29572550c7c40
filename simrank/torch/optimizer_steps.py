"""Hooks of torch's optimizers: phases and memory of steps, probes, and replicas."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from simrank.ranks.current import rank_program
from simrank.torch import cuda, replicas
from simrank.torch.devices import activation

if TYPE_CHECKING:
    from simrank.ranks import Program
    from simrank.ranks.current import SeesSteps

_SEEN = "steps that a probe sees"
HOOK = -1  # A number that torch gives to no hook.


def before_step(optimizer: Any, _: object, __: object) -> None:
    """Note that the rank's operations are an optimizer's from now on."""
    if rank_program() is not None and cuda.is_enabled():
        found = (p.grad for group in optimizer.param_groups for p in group["params"])
        given = (grad for grad in found if grad is not None)
        activation.begin_step(getattr(grad, "_local_tensor", grad) for grad in given)


def after_step(optimizer: Any, _: object, __: object) -> None:
    """Report the end of an optimizer's step to all that follow steps."""
    program = rank_program()
    if program is None:
        return
    if cuda.is_enabled():
        activation.end_step()
    if program.context.probe is not None:
        _tell_probe(program, program.context.probe, optimizer)
    replicas.compare(program, optimizer)


def _tell_probe(program: Program, probe: SeesSteps, optimizer: object) -> None:
    """Report a step, and from now on the next call of a model's forward."""
    probe.stepped(optimizer)
    if _SEEN not in program.local:
        program.local[_SEEN] = True
        modules: Any = import_module("torch.nn.modules.module")
        modules.register_module_forward_pre_hook(lambda *_: probe.begins_step())
