"""Hooks of torch's optimizers: phases and memory of steps, probes, comparison of replicas."""

from __future__ import annotations

import functools
import zlib
from importlib import import_module
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np

from simrank.distributed.replicas import OptimizerStep
from simrank.engine import user_site
from simrank.ranks.current import rank_program
from simrank.torch import cuda
from simrank.torch.devices import activation
from simrank.torch.devices.buffers import buffer_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from simrank.distributed.replicas import Replicas
    from simrank.ranks import Program
    from simrank.ranks.current import SeesSteps


# ---- comparison of DistributedDataParallel's replicas after each optimizer step ----

_MODELS = "replicated models"  # In `Program.local`: optimizers and steps, by model.


def recording_init(original: Callable[..., None]) -> Callable[..., None]:
    """Wrap the constructor of DistributedDataParallel: record the rank's replicated models."""

    @functools.wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        program = rank_program()
        if program is not None and _replicas_of(program) is not None:
            models = program.local.setdefault(_MODELS, WeakKeyDictionary())
            models[self] = WeakKeyDictionary()

    return init


def compare_replicas(program: Program, optimizer: Any) -> None:
    """Hash the parameters that an optimizer has stepped, by replicated model."""
    replicas = _replicas_of(program)
    if replicas is None:
        return
    stepped = {id(p) for group in optimizer.param_groups for p in group["params"]}
    for number, (model, steps) in enumerate(program.local.get(_MODELS, {}).items()):
        hashes = _hashes_of(model, stepped)
        if not hashes or model._join_config.enable:  # noqa: SLF001 - Steps are uneven in a Join.
            continue
        order = list(steps).index(optimizer) if optimizer in steps else len(steps)
        steps[optimizer] = steps.get(optimizer, 0) + 1
        step = OptimizerStep(number, order, steps[optimizer])
        simulated = model.process_group.simulated
        replicas.note(simulated, program.rank or 0, step, hashes, user_site())


def _replicas_of(program: Program) -> Replicas | None:
    found: Replicas | None = getattr(program.context, "replicas", None)
    return found


def _hashes_of(model: Any, stepped: set[int]) -> dict[str, int]:
    """Return a hash of each replicated parameter, by name."""
    hashes = {}
    for name, parameter in model.module.named_parameters():
        if id(parameter) not in stepped or name in model.parameters_to_ignore:
            continue
        tensor = buffer_of(parameter)
        storage = tensor.storage
        if storage.has_values and not storage.pending_writes(tensor.array):
            hashes[name] = zlib.crc32(np.ascontiguousarray(tensor.array).view(np.uint8).data)
    return hashes


# ---- hooks ----

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
    compare_replicas(program, optimizer)


def _tell_probe(program: Program, probe: SeesSteps, optimizer: object) -> None:
    """Report a step, and from now on the next call of a model's forward."""
    probe.stepped(optimizer)
    if _SEEN not in program.local:
        program.local[_SEEN] = True
        modules: Any = import_module("torch.nn.modules.module")
        modules.register_module_forward_pre_hook(lambda *_: probe.begins_step())
