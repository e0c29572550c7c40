"""Samples of torch's own databases, compiled and compared with eager ones.

Modules, optimizers, higher-order operators and users' Triton kernels, each with a mode of
torch.compile, some with dynamic shapes. `python -m tests.torch.compiled_samples 0 500` prints how
many seeds are right, are refused, or fail as eager ones do, and lists the wrong ones.
"""

from __future__ import annotations

import re
import sys
import warnings
from collections import Counter
from copy import deepcopy
from importlib import import_module
from random import Random
from typing import Any

import torch
import triton
from torch.utils import _pytree as tree
from triton.tools.tensor_descriptor import TensorDescriptor

MODES = (None, "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")
CALLS = 2  # The second one of a mode with CUDA graphs is a replay.
BOUND, BOUND_IN_HALF = 1e-4, 1e-2
IN_HALF = ("Muon",)  # They compute in bfloat16.
REFUSED = ("on simulated CUDA devices", "is not simulated", "simrank: flash", "simrank: efficient")
# Limits of torch 2.13's compiler on any device: of the sizes of flex attention, of a loop's index
# on the host in a mode with CUDA graphs, of a quantised subgraph with dynamic shapes and gradients.
# The last one is the scan alone: while inductor times a candidate for the product in its loop, the
# unknown index is 8192, of rows of four elements. Out of bounds elsewhere, `triton_mm` is wrong.
TORCHS_LIMITS = (
    "NYI: embedding dimension of the query",
    "Expected carried_inputs and body_output to have same metadata",
    "'tuple' object has no attribute 'realize'",
    (
        r": scan simple .*max-autotune.*InductorError: IllegalAccessError: .* in kernel 'triton_mm'"
        r" .* load of element 32768 of 'arg_B', fp32\[2, 2, 2\]"
    ),
)


def _internal(name: str) -> Any:
    """Return a module of torch's tests, in a rank: it looks for a GPU as it is imported."""
    return import_module(f"torch.testing._internal.{name}")


def _is_on(random: Random) -> bool:
    return random.random() < 1 / 2


def _learns(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.requires_grad


def _own(value: Any) -> Any:
    """Return a leaf with the values of a tensor; other arguments as they are."""
    if not isinstance(value, torch.Tensor):
        return value
    return value.detach().clone().requires_grad_(value.requires_grad)


def _backward(outputs: Any) -> None:
    sums = [leaf.abs().sum() for leaf in tree.tree_leaves(outputs) if _learns(leaf)]
    if sums:
        torch.stack(sums).sum().backward()


# ---- What is compiled: each returns its name, and a function of a compiler ----


def _module(random: Random) -> tuple[str, Any]:
    """Return a module's outputs, gradients and buffers."""
    info, training = random.choice(_internal("common_modules").module_db), _is_on(random)
    given = {"device": "cuda", "dtype": torch.float32, "requires_grad": True, "training": training}
    sample = random.choice(list(info.module_inputs_func(info, **given)))
    made = sample.constructor_input
    module = info.module_cls(*made.args, **made.kwargs).to("cuda").train(training)

    def run(compiler: Any) -> Any:
        own = deepcopy(module)
        call, results = compiler(own), []
        for _ in range(CALLS):
            forward = sample.forward_input
            given = tree.tree_map(_own, (forward.args, forward.kwargs))
            inputs = [each for each in tree.tree_leaves(given) if _learns(each)]
            outputs = call(*given[0], **given[1])
            _backward(outputs)
            results.append((outputs, [each.grad for each in inputs]))
        return results, [each.grad for each in own.parameters()], dict(own.named_buffers())

    return f"{info.name} ({sample.desc}) {training=}", run


def _optimizer(random: Random) -> tuple[str, Any]:
    """Return the parameters after a few compiled steps of an optimizer."""
    info = random.choice(_internal("common_optimizers").optim_db)
    sample = random.choice(info.optim_inputs_func(device="cuda"))
    ways = {"foreach", "fused"}.intersection(info.supported_impls)
    how = random.choice(["", *sorted(ways)])
    options = {**sample.kwargs, how: True} if how and how not in sample.kwargs else sample.kwargs

    def run(compiler: Any) -> Any:
        torch.manual_seed(0)
        shapes = ((4, 3), (3, 3), (5, 2))  # Muon takes matrices alone.
        weights = [torch.randn(shape, device="cuda", requires_grad=True) for shape in shapes]
        optimizer = info.optim_cls(weights, **deepcopy(options))

        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss = torch.stack([(weight**2).sum() for weight in weights]).sum()
            loss.backward()
            if info.only_supports_sparse_grads:
                for weight in weights:
                    weight.grad = weight.grad.to_sparse(1)
            return loss

        step = compiler(optimizer.step)
        for _ in range(CALLS + 1):
            closure()
            step(closure) if info.step_requires_closure else step()
        return [weight.detach() for weight in weights]

    return f"{info.name} ({sample.desc}) {how}", run


def _higher_order(random: Random) -> tuple[str, Any]:
    """Return the outputs and gradients of an operator that takes functions."""
    operators = _internal("hop_db").hop_db
    known = [each for each in operators if torch.float32 in each.supported_dtypes("cuda")]
    info = random.choice(known)
    learns = info.supports_autograd and _is_on(random)
    samples = info.sample_inputs("cuda", torch.float32, requires_grad=learns)
    sample = random.choice(list(samples))

    def run(compiler: Any) -> Any:
        call, results = compiler(info.op), []
        for _ in range(CALLS):
            given = tree.tree_map(_own, (sample.input, sample.args, sample.kwargs))
            outputs = call(given[0], *given[1], **given[2])
            if learns:
                _backward(outputs)
            results.append((outputs, [e.grad for e in tree.tree_leaves(given) if _learns(e)]))
        return results

    return f"{info.name} {info.variant_test_name} {learns=}", run


def _kernel(random: Random) -> tuple[str, Any]:
    """Return the results of a function that launches a kernel of torch's tests."""
    kernels = _internal("triton_utils")
    name = random.choice([name for name in CALLS_OF_KERNELS if hasattr(kernels, name)])
    kernel, call = getattr(kernels, name), CALLS_OF_KERNELS[name]
    block, size = random.choice((16, 32, 128)), random.choice((16, 100, 257))
    kind = random.choice(("numbers", "lambda"))

    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        out = torch.zeros_like(x)
        if kind == "numbers":
            grid = (triton.cdiv(x.numel(), 16),)
        else:
            grid = lambda meta: (triton.cdiv(x.numel(), meta.get("BLOCK_SIZE", 16)),)  # noqa: E731
        call(kernel, grid, x, y, out, block)
        return out * 2

    def run(compiler: Any) -> Any:
        torch.manual_seed(0)
        compiled, results = compiler(function), []
        for length in (size, size, size + 32):
            x, y = (torch.randn(length, device="cuda") for _ in range(2))
            results.append((compiled(x, y), x))
        return results

    return f"{name} {kind} {block=} {size=}", run


def _binary(kernel: Any, grid: Any, x: Any, y: Any, out: Any, block: int) -> None:
    kernel[grid](x, y, out, x.numel(), BLOCK_SIZE=block)


def _binary_by_position(kernel: Any, grid: Any, x: Any, y: Any, out: Any, block: int) -> None:
    kernel[grid](x, y, out, x.numel(), block)


def _tuned(kernel: Any, grid: Any, x: Any, y: Any, out: Any, _: int) -> None:
    kernel[grid](x, y, out, x.numel())


def _order(kernel: Any, grid: Any, x: Any, y: Any, out: Any, block: int) -> None:
    kernel[grid](in_ptr0=x, in_ptr1=y, n_elements=x.numel(), out_ptr=out, BLOCK_SIZE=block)


def _tuned_order(kernel: Any, grid: Any, x: Any, y: Any, out: Any, _: int) -> None:
    kernel[grid](in_ptr0=x, in_ptr1=y, n_elements=x.numel(), out_ptr=out)


def _optional(kernel: Any, grid: Any, x: Any, _y: Any, out: Any, block: int) -> None:
    kernel[grid](x, None, out, x.numel(), ARGS_PASSED="one", BLOCK_SIZE=block)


def _none_and_one(kernel: Any, grid: Any, x: Any, _y: Any, out: Any, block: int) -> None:
    kernel[grid](x, None, out, x.numel(), 1, "one", block)


def _scaling(kernel: Any, grid: Any, x: Any, y: Any, out: Any, block: int) -> None:
    kernel[grid](x, y, out, x.numel(), 2.5, block)


def _boolean(kernel: Any, grid: Any, x: Any, y: Any, out: Any, block: int) -> None:
    kernel[grid](x, y, out, x.numel(), True, BLOCK_SIZE=block)


def _masked(kernel: Any, grid: Any, x: Any, y: Any, out: Any, block: int) -> None:
    kernel[grid](x, y, x > 0, out, x.numel(), BLOCK_SIZE=block)


def _unary(kernel: Any, grid: Any, x: Any, _y: Any, out: Any, block: int) -> None:
    kernel[grid](x, out, x.numel(), BLOCK_SIZE=block)


def _in_place(kernel: Any, _: Any, x: Any, y: Any, out: Any, block: int) -> None:
    out.copy_(x + y)
    kernel[(triton.cdiv(x.numel(), block),)](out, out.numel(), block)  # Once for each element.


def _indirect(kernel: Any, grid: Any, x: Any, _y: Any, out: Any, block: int) -> None:
    kernel[grid](x.clone(), out, x.numel(), BLOCK_SIZE=block, ACTIVATION="add_kernel")


def _constant(kernel: Any, grid: Any, x: Any, _y: Any, out: Any, block: int) -> None:
    kernel[grid](out, x.numel(), block)


def _descriptors(kernel: Any, _: Any, x: Any, y: Any, out: Any, _block: int) -> None:
    given = [TensorDescriptor.from_tensor(each, [32]) for each in (x, y, out)]  # Torch: constants.
    kernel[(triton.cdiv(x.numel(), 32),)](*given, BLOCK_SIZE=32)


CALLS_OF_KERNELS = {
    "add_kernel": _binary, "sub_kernel": _binary_by_position, "add_kernel_with_import": _binary,
    "add_kernel_with_block_ptr": _binary, "cond_op_kernel": _binary_by_position,
    "add_4_times_kernel": _binary, "add_kernel_autotuned": _tuned, "sub_kernel_autotuned": _tuned,
    "add_kernel_autotuned_weird_param_order": _tuned_order, "add_kernel_out_of_order_fn2": _order,
    "add_kernel_with_optional_param": _optional, "add_kernel_with_scaling": _scaling,
    "add_kernel_with_none_param_and_equal_to_1_arg": _none_and_one, "mul2_kernel": _unary,
    "add_kernel_with_boolean_param": _boolean, "masked_add_kernel_with_bool_tensor": _masked,
    "mul2_inplace_kernel": _in_place, "indirection_kernel": _indirect,
    "kernel_with_docstring_double_quotes": _constant, "kernel_with_block_ptr_2d": _unary,
    "kernel_with_docstring_single_quotes": _constant, "kernel_inline_asm_double_quotes": _unary,
    "kernel_with_backslash_in_docstring": _constant, "kernel_inline_asm_single_quotes": _unary,
    "add_kernel_with_tma_1d_new_api": _descriptors,
}  # fmt: skip

FAMILIES = (_module, _optimizer, _higher_order, _kernel)


# ---- Comparison ----


def _attempt(run: Any, compiler: Any) -> tuple[Any, str]:
    torch.manual_seed(0)
    try:
        return run(compiler), ""
    except Exception as error:  # noqa: BLE001 - it is compared
        return None, f"{type(error).__name__}: {error}"


def kind_of_failure(name: str, failure: str, refusal: str) -> str:
    """Return the verdict on a sample whose eager or compiled run raised an error, or both."""
    compiled = f"{name}: {refusal}"
    kinds = {
        "refused": any(text in failure + refusal for text in REFUSED),
        "torch's limit": any(re.search(limit, compiled, re.DOTALL) for limit in TORCHS_LIMITS),
        "as eager": bool(failure and refusal),
    }
    return next((kind for kind, is_so in kinds.items() if is_so), "wrong")


def verdict(seed: int) -> tuple[str, str]:
    """Return how a seed's compiled sample compares with the eager one, and its description.

    In the running rank. The verdict is "right", "refused" (by simrank, by name), "torch's limit",
    "as eager" (both fail), or "wrong" with the reason.
    """
    random = Random(seed)
    family = FAMILIES[seed % len(FAMILIES)]
    mode, dynamic = random.choice(MODES), random.choice((None, True))
    torch._dynamo.reset()
    torch.manual_seed(0)
    name, run = family(random)
    name = f"{seed}: {name}, {mode=}, {dynamic=}"
    expected, failure = _attempt(run, lambda function: function)
    draws_as_eager = torch._inductor.config.patch(fallback_random=True)
    is_loop = family is _higher_order  # Some read their index, which torch's tests capture too.
    loops = torch._dynamo.config.patch(capture_scalar_outputs=is_loop)
    with draws_as_eager, loops:
        found, refusal = _attempt(
            run, lambda function: torch.compile(function, mode=mode, dynamic=dynamic)
        )
    if failure and family is _higher_order and not refusal:  # Some exist in compiled code alone.
        expected, failure = _attempt(run, lambda f: torch.compile(f, backend="aot_eager"))
    if failure or refusal:
        return kind_of_failure(
            name, failure, refusal
        ), f"{name}: eager: {failure}; compiled: {refusal}"
    bound = BOUND_IN_HALF if any(each in name for each in IN_HALF) else BOUND
    try:
        torch.testing.assert_close(
            found, expected, atol=bound, rtol=bound, equal_nan=True, check_stride=False
        )
    except Exception as error:  # noqa: BLE001 - it is compared
        return "wrong", f"{name}: {error}"
    return "right", name


def _main(first: int, last: int) -> None:
    import simrank

    def program(rank: int) -> None:
        torch.cuda.set_device(rank)
        verdicts: Counter[str] = Counter()
        for seed in range(first, last):
            found, text = verdict(seed)
            verdicts[found] += 1
            if found != "right":
                print(f"{found}: {' '.join(text.split())[:600]}", flush=True)  # noqa: T201 - its output
        print(dict(verdicts))  # noqa: T201 - likewise

    warnings.simplefilter("ignore")
    with simrank.Context("hgx_h100") as context:
        context.multiprocessing.spawn(program, (), 1, share_args=True)


if __name__ == "__main__":
    _main(int(sys.argv[1]), int(sys.argv[2]))
