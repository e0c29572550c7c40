"""Copies: values, routes, sharing of links, and what they wait for."""

import pytest

MB = 10**6


def copy_ps(ctx, pairs, size=376 * MB):
    tensors = [(ctx.empty(size, dtype="uint8", device=a), ctx.empty(size, dtype="uint8", device=b))
               for a, b in pairs]  # fmt: skip
    ctx.drain()
    start = ctx.now_ps
    for source, target in tensors:
        target.copy_(source, non_blocking=True)
    ctx.drain()
    return ctx.now_ps - start


def test_a_copy_between_devices_takes_latency_plus_bytes_over_the_link(shapes):
    """376 MB over 376 GB/s: 1 ms plus 0.6 us."""
    assert copy_ps(shapes, [(0, 1)]) == pytest.approx(1e9 + 0.6e6, rel=1e-4)


def test_two_copies_out_of_one_device_share_its_link(shapes):
    """Twice the time; two disjoint pairs do not disturb each other."""
    alone = copy_ps(shapes, [(0, 1)])
    assert copy_ps(shapes, [(0, 1), (0, 2)]) == pytest.approx(2 * alone, rel=0.01)
    assert copy_ps(shapes, [(0, 1), (2, 3)]) == pytest.approx(alone, rel=0.01)


def test_copies_carry_values_and_convert_dtypes(ctx):
    """Device to device, device to host and back."""
    x = ctx.arange(5, device=2)
    y = ctx.empty(5, dtype="float32", device=4)
    y.copy_(x)
    assert y.tolist() == [0, 1, 2, 3, 4]
    host = y.cpu()
    assert host.device == "cpu"
    host[0] = 9
    y.copy_(host)
    assert y.tolist() == [9, 1, 2, 3, 4]


def test_a_copy_from_host_memory_has_read_it_when_it_returns(ctx):
    """The host may reuse its buffer at once."""
    host = ctx.ones(3, device="cpu")
    device = host.cuda()
    host.fill_(5)
    assert device.tolist() == [1, 1, 1]


def test_a_non_blocking_copy_to_the_host_does_not_wait(run):
    """The value is there after a synchronize, and a read of the target waits."""

    def program(_, ctx):
        host = ctx.zeros(2, device="cpu")
        host.copy_(ctx.ones(2), non_blocking=True)
        assert ctx.now_ps == 0
        assert host.tolist() == [1, 1]
        assert ctx.now_ps > 0

    run(program, 1, races="off")  # On a GPU the read races with the copy.


def test_shapes_that_do_not_broadcast_are_an_error(ctx):
    """The message names both shapes."""
    with pytest.raises(RuntimeError, match=r"size of tensor a \(3\) must match .* b \(2\)"):
        ctx.ones(3).copy_(ctx.ones(2))


def test_a_copy_between_devices_is_ordered_on_both(ctx):
    """The target's stream goes on when the bytes have arrived, and has finished its own before."""
    source = ctx.full((1 << 20,), 3.0)
    target = source.to("cuda:1")
    assert (target + 1)[0].item() == 4
    moved = ctx.ones(1 << 20, device="cuda:1").to("cuda:3", non_blocking=True).add_(1)
    assert moved[0].item() == 2
    filled = ctx.zeros(1 << 22, device="cuda:2")
    filled.fill_(7)
    filled.copy_(ctx.ones(1 << 22))
    assert filled[0].item() == 1
