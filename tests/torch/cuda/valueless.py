"""Every operator that torch has samples for, with and without values: everything else is equal."""

from __future__ import annotations

import warnings
from itertools import islice
from typing import NamedTuple

import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils import _pytree as tree

from simrank.torch import cuda as simulated
from simrank.torch.cuda import Callbacks
from simrank.torch.cuda.operations import drain_launches, form, start_recording_forms
from tests.torch.cuda.sweep import dtype_of, gradient, moved, name_of

# Importing torch's samples forbids to set flags of cuDNN, for the whole process.
torch.backends.__allow_nonbracketed_mutation_flag = True
SAMPLES = 6
LIMITS = (0, 0)  # Nothing has values.


class Refused(Exception):  # noqa: N818 - of this sweep
    """A call needs a value."""


class Outcome(NamedTuple):
    """What a call leaves, without values.

    Attributes:
        results: Types, shapes, strides, offsets and aliases of its results.
        launched: The forms of what it ran.
        memory: Bytes allocated, their peak, and bytes reserved.
        drawn: The generator's state.
    """

    results: list[object]
    launched: list[object]
    memory: tuple[int, ...]
    drawn: bytes


def _asked(*_args):
    raise Refused


def _shown(sizes, strides):
    """Return strides of which those that say nothing are left out."""
    return [
        None if size < 2 or 0 in sizes else stride
        for size, stride in zip(sizes, strides, strict=True)
    ]


def _launched(operation):
    """Return the fields of an operation that determine its time."""
    operands = [
        (each.dtype, each.sizes, _shown(each.sizes, each.strides), each.is_written)
        for each in (*operation.inputs, *operation.outputs)
    ]
    return (operation.name, operation.flags, operands)


def _described(value, known):
    if not isinstance(value, torch.Tensor):
        return type(value)
    if value.layout is not torch.strided:
        return (value.layout, value.shape)
    storage = value.untyped_storage()
    alias = known.setdefault(storage._cdata, len(known))
    return (
        value.dtype, tuple(value.shape), _shown(value.shape, value.stride()),
        value.storage_offset(), alias, storage.nbytes(), value.device.type,
    )  # fmt: skip


def _outcome(op, sample, call):
    torch.cuda.manual_seed(0)
    torch.cuda.empty_cache()
    value, args, kwargs = tree.tree_map(moved, (sample.input, sample.args, sample.kwargs))
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    drain_launches()
    result = call(op, value, args, kwargs)
    launched = [_launched(form(each.form)) for each in drain_launches()]
    memory = (
        torch.cuda.memory_allocated() - before, torch.cuda.max_memory_allocated() - before,
        torch.cuda.max_memory_reserved(),
    )  # fmt: skip
    known = {}
    for each in tree.tree_leaves((value, args, kwargs)):
        _described(each, known)
    drawn = torch.cuda.get_rng_state().numpy().tobytes()
    return Outcome(
        [_described(r, known) for r in tree.tree_leaves(result)], launched, memory, drawn
    )


def _forward(op, value, args, kwargs):
    return op(value, *args, **kwargs)


def outcomes(ops=op_db, samples=SAMPLES, *, has_values):
    """Return the outcome of each sample, by operator, number and direction."""
    found = {}
    limits = None if has_values else LIMITS
    options = {"callbacks": Callbacks(on_unknown=_asked), "value_limits": limits}
    with warnings.catch_warnings(), simulated.standalone(1, **options):
        warnings.simplefilter("ignore")
        start_recording_forms()
        for op in ops:
            dtype = dtype_of(op)
            torch.manual_seed(0)
            try:
                chosen = list(islice(op.sample_inputs("cpu", dtype, requires_grad=False), samples))
            except Exception:  # noqa: BLE001 - no samples
                continue
            for number, sample in enumerate(chosen):
                calls = [("forward", _forward)]
                if (
                    op.supports_autograd
                    and dtype.is_floating_point
                    and isinstance(sample.input, torch.Tensor)
                ):
                    calls.append(("gradient", gradient))
                for direction, call in calls:
                    key = (name_of(op), number, direction)
                    try:
                        found[key] = _outcome(op, sample, call)
                    except Exception as error:  # noqa: BLE001 - compared
                        found[key] = error.with_traceback(None)
    return found
