"""Step DeepSpeed's fused Adam with torch's operations.

Its kernel is CUDA C++, compiled as an optimizer is made, and simulated devices run no code that is
compiled for a GPU. The formulas are those of its `multi_tensor_adam.cu`: in float32, in place.
"""

from types import SimpleNamespace

import torch
from torch.utils import cpp_extension

_load = cpp_extension.load


def _step(_, __, lists, lr, beta1, beta2, epsilon, step, mode, bias_correction, decay):
    """Step parameters; `lists` are gradients, parameters, and first and second moments."""
    corrections = (1 - beta1**step, 1 - beta2**step) if bias_correction else (1, 1)
    for gradient, parameter, first, second in zip(*lists, strict=True):
        g, p, m, v = (each.float() for each in (gradient, parameter, first, second))
        if mode == 0:  # The decay is part of the gradient; else of the update.
            g = g + decay * p
        m = beta1 * m + (1 - beta1) * g
        v = beta2 * v + (1 - beta2) * g * g
        update = m / corrections[0] / (torch.sqrt(v / corrections[1]) + epsilon)
        if mode == 1:
            update = update + decay * p
        for kept, new in ((parameter, p - lr * update), (first, m), (second, v)):
            kept.data.copy_(new)


def _load_other(name, *args, **kwargs):
    if name == "fused_adam":
        return SimpleNamespace(multi_tensor_adam=_step)
    return _load(name, *args, **kwargs)


cpp_extension.load = _load_other
