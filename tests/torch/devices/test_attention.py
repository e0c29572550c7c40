"""Fused attention of sequences that are packed behind each other, and of batches."""

import pytest
import torch
from torch.nn.attention.varlen import varlen_attn

import simrank
from simrank.hardware.load import load_cluster
from simrank.torch.devices.attention import attention_flops, attention_of
from simrank.torch.devices.costs import cost_of

from .test_costs import BFLOAT16, operation, tensor
from .test_products import Seen

SPEC = load_cluster("hgx_h100").device
INT32 = 3


def packed(name, num, tokens, *, gradient=False):
    """Return an attention of packed sequences, with 16 heads of 128."""
    parts = [tensor(tokens, 16, 128, dtype=BFLOAT16)] * (4 if gradient else 3)
    offsets = [tensor(num + 1, dtype=INT32)] * 2
    return operation(name, [*parts, *offsets], [tensor(tokens, 16, 128, dtype=BFLOAT16)])


def test_packed_sequences_multiply_as_a_batch_of_them():
    """Four of 4,096 tokens, in a tenth of what one of all would take."""
    found = attention_of(packed("_flash_attention_forward", 4, 4 * 4096))
    assert (found.num_heads, found.num_queries, found.num_keys) == (64, 4096, 4096)
    rows = [tensor(4, 16, 4096, 128, dtype=BFLOAT16)] * 3
    batch = attention_of(operation("_scaled_dot_product_flash_attention", rows, rows[:1]))
    assert attention_flops(found) == attention_flops(batch)
    one = attention_of(packed("_flash_attention_forward", 1, 4 * 4096))
    assert attention_flops(one) == 4 * attention_flops(found)
    behind = [tensor(1, 4 * 4096, 16, 128, dtype=BFLOAT16)] * 3 + [tensor(5, dtype=INT32)] * 2
    efficient = attention_of(operation("_efficient_attention_forward", behind, behind[:1]))
    assert attention_flops(efficient) == attention_flops(found)


def test_the_gradient_of_packed_sequences_has_the_same_shape():
    """Its first operand is the gradient of the output; the model needs two of its five products."""
    forward = attention_of(packed("_flash_attention_forward", 4, 4096))
    backward = attention_of(packed("_flash_attention_backward", 4, 4096, gradient=True))
    assert backward == forward._replace(is_backward=True)
    costs = [
        cost_of(SPEC, packed(name, 4, 4096, gradient="backward" in name))
        for name in ("_flash_attention_forward", "_flash_attention_backward")
    ]
    assert costs[1].flops == 2 * costs[0].flops


@pytest.mark.parametrize("num", [1, 8])
def test_a_program_s_packed_sequences_take_the_time_of_their_products(num):
    """Of `varlen_attn`, without values: below the peak, and less for shorter sequences."""
    seen = Seen()

    def work(rank):
        tokens = 1 << 14
        q, k, v = (torch.empty(tokens, 16, 128, device="cuda", dtype=torch.bfloat16) for _ in "qkv")
        ends = torch.arange(0, tokens + 1, tokens // num, device="cuda", dtype=torch.int32)
        with torch.no_grad():
            varlen_attn(q, k, v, ends, ends, tokens // num, tokens // num)
        torch.cuda.synchronize()

    with simrank.Context("hgx_h100", data=False) as ctx:
        ctx.observe(seen)
        ctx.multiprocessing.spawn(work, nprocs=1)
    found = seen.most
    assert found.flops == 4 * 16 * (1 << 28) / num * 128
    share = found.flops / ((found.complete_ps - found.start_ps) / 1e12) / 989e12
    assert 0.3 < share < 0.7
