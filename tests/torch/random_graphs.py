"""Random graphs of torch's operators, to hold compiled code against eager.

`python -m tests.torch.random_graphs 100` prints how many are right in fp32 and in bf16.
"""

from __future__ import annotations

import sys
from random import Random
from typing import Any

import torch
from torch.nn import functional as F  # noqa: N812 - torch's habit

ONE = {
    "sin": torch.sin, "tanh": torch.tanh, "gelu": F.gelu, "silu": F.silu, "relu": torch.relu,
    "sigmoid": torch.sigmoid, "abs": torch.abs, "square": torch.square, "neg": torch.neg,
    "softmax": lambda x: torch.softmax(x, -1), "norm": lambda x: F.layer_norm(x, x.shape[-1:]),
    "rms": lambda x: F.rms_norm(x, x.shape[-1:]), "t": lambda x: x.transpose(-1, -2),
    "mean": lambda x: x.mean(-1, keepdim=True).expand_as(x), "clamp": lambda x: x.clamp(-1, 1),
    "sum": lambda x: x - x.sum(0, keepdim=True) / x.shape[0], "flip": lambda x: x.flip(0),
    "cumsum": lambda x: x.cumsum(-1) / x.shape[-1], "roll": lambda x: x.roll(3, -1),
    "amax": lambda x: x - x.amax(-1, keepdim=True),
    "where": lambda x: torch.where(x > 0, x, 0.1 * x),
    "half": lambda x: torch.cat([x[:, ::2], x[:, 1::2]], 1), "exp": lambda x: torch.exp(-x.abs()),
    "contiguous": lambda x: x.transpose(0, 1).contiguous(),
    "rsqrt": lambda x: torch.rsqrt(x * x + 1),
}  # fmt: skip
TWO = {
    "add": torch.add, "sub": torch.sub, "mul": torch.mul, "maximum": torch.maximum,
    "mm": lambda x, y: x @ y / x.shape[-1], "div": lambda x, y: x / (y.abs() + 1),
    "lerp": lambda x, y: torch.lerp(x, y, 0.3), "atan2": lambda x, y: torch.atan2(x, y.abs() + 1),
    "outer": lambda x, y: x + y.mean(0), "linear": lambda x, y: F.linear(x, y) / x.shape[-1],
}  # fmt: skip
SIZES = (5, 16, 33, 64)


class Graph:
    """A function of two square matrices: a few operators, each of what was there before.

    Attributes:
        steps: Names of operators, and which values they take.
        size: Rows and columns.
    """

    def __init__(self, seed: int) -> None:
        random = Random(seed)
        self.size = random.choice(SIZES)
        self.steps: list[tuple[str, tuple[int, ...]]] = []
        for num_values in range(2, 2 + random.randint(3, 12)):
            kinds: dict[str, Any] = random.choice([ONE, TWO])
            taken = tuple(random.randrange(num_values) for _ in range(1 + (kinds is TWO)))
            self.steps.append((random.choice(sorted(kinds)), taken))

    def __call__(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Compute it."""
        values = [x, y]
        for name, taken in self.steps:
            operator: Any = ONE.get(name) or TWO[name]
            values.append(operator(*(values[index] for index in taken)))
        return tuple(values[-2:])


def compare(seed: int, dtype: torch.dtype) -> None:
    """Compare a compiled graph and its gradients with eager ones, in the running rank.

    The reference in bfloat16 is the graph in fp32 on the same inputs: compiled code rounds less
    often than eager. Its bound is four roundings of the largest value.
    """
    graph = Graph(seed)
    torch.manual_seed(seed)
    inputs = [torch.randn(graph.size, graph.size, device="cuda").to(dtype) for _ in range(2)]
    found = _results(torch.compile(graph.__call__, fullgraph=True), inputs)
    expected = _results(graph, [x.float() for x in inputs])
    for one, other in zip(found, expected, strict=True):
        if dtype == torch.float32:
            torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)
        else:
            error = (one.float() - other).abs().max()
            assert error <= 2**-5 * max(float(other.abs().max()), 1.0), (graph.steps, float(error))


def _results(function: Any, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    leaves = [x.clone().requires_grad_() for x in inputs]
    outputs = function(*leaves)
    sum(output.float().sum() for output in outputs).backward()
    gradients = [torch.zeros_like(x) if x.grad is None else x.grad for x in leaves]
    return [*(output.detach() for output in outputs), *gradients]


def _main() -> None:
    import simrank

    def program(rank: int) -> None:
        torch.cuda.set_device(rank)
        for dtype in (torch.float32, torch.bfloat16):
            wrong = []
            for seed in range(int(sys.argv[1])):
                torch._dynamo.reset()
                try:
                    compare(seed, dtype)
                except Exception as error:  # noqa: BLE001 - it is counted
                    wrong.append((seed, type(error).__name__, str(error)[:200]))
            print(dtype, "wrong or refused:", len(wrong), *wrong, sep="\n  ")  # noqa: T201 - its output

    with simrank.Context("hgx_h100") as context:
        context.multiprocessing.spawn(program, (), 1, share_args=True)


if __name__ == "__main__":
    _main()
