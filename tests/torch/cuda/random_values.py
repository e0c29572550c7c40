"""Random programs on tensors some of which lack values: what can be read is right."""

from __future__ import annotations

import random

import torch

from simrank.torch import cuda as simulated
from simrank.torch.cuda import Callbacks

LIMITS = (64, 256)  # Bytes: a few numbers, and a few more integers.
_SHAPES = [(4,), (3, 5), (8, 8), (2, 3, 4), (20,), (1,), ()]


class Refused(Exception):  # noqa: N818 - of these programs
    """A value is unknown."""


def _asked(*_args):
    raise Refused


def _integers(x, rng):
    return torch.arange(x.numel(), device="cuda").reshape(x.shape) % rng.randint(1, 5)


def _slots(x, rng):
    """Return a view of some elements, contiguous or not."""
    for dim, size in enumerate(x.shape):
        if size > 1 and rng.random() < 0.6:
            x = x.narrow(dim, rng.randrange(size - 1), rng.randint(1, size - 1))
    return x.t() if x.dim() == 2 and rng.random() < 0.3 else x


def _copied(x, y, rng):
    target = _slots(x, rng)
    target.copy_(y.flatten()[:1].expand(target.shape) if rng.random() < 0.5 else target * 1)


def _put(x, y, rng):
    index = torch.tensor([rng.randrange(max(x.shape[0], 1))], device="cuda")
    x.index_put_((index,), y.flatten()[0].to(x.dtype))


IN_PLACE = [
    lambda x, y, rng: x.add_(y.flatten()[0].to(x.dtype)),
    lambda x, _, rng: x.mul_(rng.randint(0, 3)),
    lambda x, _, __: x.zero_(),
    lambda x, _, rng: _slots(x, rng).fill_(rng.randint(0, 9)),
    lambda x, _, rng: _slots(x, rng).zero_(),
    _copied,
    lambda x, y, rng: _slots(x, rng).add_(y.flatten()[-1].to(x.dtype)),
    lambda x, _, rng: _put(x, _, rng) if x.dim() else None,
    lambda x, _, __: x.clamp_(0, 4),
    lambda x, y, __: torch._foreach_add_([x, y], 1),
    lambda x, y, __: torch._foreach_copy_([x], [y.flatten()[0].expand(x.shape).to(x.dtype)]),
    lambda x, _, __: x.normal_() if x.is_floating_point() else x.random_(0, 7),
    lambda x, _, rng: x.masked_fill_(_integers(x, rng) > 1, 2),
    lambda x, y, __: (
        torch.sum(y, 0, out=x) if y.dim() == 1 and x.dtype == y.dtype and not x.dim() else None
    ),
]
MAKING = [
    lambda x, y, _: torch.cat([x.flatten(), y.flatten().to(x.dtype)]),
    lambda x, _, rng: _slots(x, rng),
    lambda x, _, rng: _slots(x, rng).clone(),
    lambda x, _, __: x.sum(),
    lambda x, _, __: x.float().cumsum(0) if x.dim() else x + 1,
    lambda x, y, __: x.flatten()[0] + y.flatten()[0],
    lambda x, _, __: torch.ones_like(x),
    lambda x, _, __: x.long(),
    lambda x, _, __: x.float() / 2,
    lambda x, _, rng: torch.where(_integers(x, rng) > 1, x, 0),
    lambda x, _, __: x.flatten().argsort(),
    lambda x, _, __: x.flatten()[:4].repeat(3),
    lambda x, _, __: x.reshape(-1),
    lambda x, _, __: x.expand(2, *x.shape),
    lambda x, _, rng: x.flatten()[_integers(x.flatten(), rng)],
    lambda x, y, __: torch.stack([x.sum(), y.sum().to(x.sum().dtype)]),
    lambda x, _, __: torch.randn(4, device="cuda") + x.flatten()[0],
    lambda x, _, __: x.cpu().cuda(),
    lambda x, _, __: (x.cpu() + 1).cuda(),
]


def _made(rng):
    shape = rng.choice(_SHAPES)
    if rng.random() < 0.5:
        return torch.randint(0, 9, shape, device="cuda")
    return torch.randn(shape, device="cuda")


def _run(seed):
    """Run a program; return what its tensors hold after each step, None where that is unknown."""
    rng = random.Random(seed)
    torch.cuda.manual_seed(seed)
    tensors, seen = [_made(rng) for _ in range(4)], []
    for _ in range(14):
        x, y = rng.choice(tensors), rng.choice(tensors)
        operation = rng.choice(IN_PLACE + MAKING)
        state = rng.getstate()
        try:
            made = operation(x, y, rng)
        except RuntimeError as error:
            if "values that this run" in str(error):
                raise
            made = None  # Its arguments do not fit, which both runs say.
        rng.setstate(state)
        rng.random()
        if operation in MAKING and made is not None:
            tensors.append(made)
        for tensor in tensors:
            for element in tensor.reshape(-1)[:6].unbind():
                try:
                    seen.append(element.item())
                except Refused:
                    seen.append(None)
    return seen


def values_of(seeds, *, has_values):
    """Return all elements read by each program, by seed; None is an unknown one."""
    options = {"callbacks": Callbacks(on_unknown=_asked)}
    options["value_limits"] = None if has_values else LIMITS
    found = {}
    with simulated.standalone(1, **options):
        for seed in seeds:
            try:
                found[seed] = _run(seed)
            except Refused:
                found[seed] = None  # A mask is unknown, say: the program ends there.
    return found
