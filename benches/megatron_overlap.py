"""Linear layers of Megatron that exchange activations beside their products, part by part.

They stand for Transformer Engine's userbuffers (`tp_comm_overlap`), which need a GPU to be built:
of a sequence that is split over ranks, one part is exchanged while another one is multiplied.
"""

from __future__ import annotations

import fused_weight_gradient_mlp_cuda
import torch
import torch.distributed as dist
from megatron.core.tensor_parallel.layers import (
    ColumnParallelLinear,
    LinearWithGradAccumulationAndAsyncCommunication,
    RowParallelLinear,
)

NUM_PARTS = 4  # As many as NeMo's configurations of H100 have.


def gathered_product(x, weight, group):
    """Return x of all ranks times a weight, and x of all ranks in parts.

    Args:
        x: This rank's part of the sequence, [sequence, batch, width].
        weight: [width, other width].
        group: The ranks.
    """
    size, batch = group.size(), x.shape[1]
    parts, works = [], []
    for part in x.flatten(0, 1).chunk(NUM_PARTS):
        parts.append(part.new_empty(size, *part.shape))
        works.append(dist.all_gather_into_tensor(parts[-1], part, group=group, async_op=True))
    product = x.new_empty(size, NUM_PARTS, parts[0].shape[1], weight.shape[1])
    for number, work in enumerate(works):
        work.wait()
        product[:, number] = (parts[number].flatten(0, 1) @ weight).view_as(product[:, number])
    return product.view(-1, batch, weight.shape[1]), parts


def scattered_product(x, weight, group):
    """Return this rank's part of the sum over ranks of products, [sequence, batch, width]."""
    size, batch = group.size(), x.shape[1]
    rows = x.reshape(size, NUM_PARTS, -1, x.shape[2])
    product = x.new_empty(NUM_PARTS, rows.shape[2], weight.shape[1])
    works = []
    for number in range(NUM_PARTS):
        whole = rows[:, number].flatten(0, 1) @ weight
        works.append(dist.reduce_scatter_tensor(product[number], whole, group=group, async_op=True))
    for work in works:
        work.wait()
    return product.view(-1, batch, weight.shape[1])


class _Gathered(LinearWithGradAccumulationAndAsyncCommunication):
    """The product of a sequence of all ranks: backward is Megatron's, which overlaps."""

    @staticmethod
    @torch.amp.custom_fwd(device_type="cuda")
    def forward(ctx, x, weight, bias, group):
        """Return the output of all ranks' x."""
        ctx.save_for_backward(x, weight)
        ctx.main_grad, ctx.use_bias, ctx.tp_group = weight.main_grad, bias is not None, group
        ctx.gradient_accumulation_fusion = ctx.sequence_parallel = True
        ctx.allreduce_dgrad, ctx.wgrad_deferral_limit, ctx.grad_output_buffer = False, None, None
        output, _ = gathered_product(x, weight.t(), group)
        return output if bias is None else output + bias

    @staticmethod
    def backward(ctx, grad):
        """Return the gradients of x, weight and bias."""
        found = LinearWithGradAccumulationAndAsyncCommunication.backward(ctx, grad)
        return *found[:3], None


class _Scattered(torch.autograd.Function):
    """The sum over ranks of products, split over ranks along the sequence."""

    @staticmethod
    def forward(ctx, x, weight, group):
        """Return this rank's part of the output."""
        ctx.save_for_backward(x, weight)
        ctx.main_grad, ctx.group = weight.main_grad, group
        return scattered_product(x, weight.t(), group)

    @staticmethod
    def backward(ctx, grad):
        """Return the gradient of x; the weight's is added to those of other micro-batches."""
        x, weight = ctx.saved_tensors
        of_x, parts = gathered_product(grad.contiguous(), weight, ctx.group)
        whole_grad = torch.stack(parts, dim=1).view(len(x), -1, grad.shape[2])
        is_single = ctx.main_grad.dtype == torch.float32
        name = f"wgrad_gemm_accum_fp{32 if is_single else 16}"
        getattr(fused_weight_gradient_mlp_cuda, name)(x, whole_grad, ctx.main_grad)
        weight.grad_added_to_main_grad = True
        return of_x, torch.empty_like(weight), None


class OverlappedColumnLinear(ColumnParallelLinear):
    """A layer whose input is gathered part by part."""

    def _forward_impl(self, input, weight, bias, **options):  # noqa: A002 - Megatron's name
        """Return the output of the whole sequence."""
        if not options["sequence_parallel"]:
            return super()._forward_impl(input, weight, bias=bias, **options)
        return _Gathered.apply(input, weight, bias, options["tp_group"])


class OverlappedRowLinear(RowParallelLinear):
    """A layer whose output is scattered part by part."""

    def forward(self, input_):
        """Return this rank's part of the output, and the bias."""
        if not self.sequence_parallel:
            return super().forward(input_)
        output = _Scattered.apply(input_, self.weight, self.tp_group)
        return (output, self.bias) if self.skip_bias_add else (output + self.bias, None)
