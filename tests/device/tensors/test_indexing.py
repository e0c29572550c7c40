"""Masks and index tensors: what waits for values, and what does not."""


def test_writing_by_a_mask_or_index_and_reading_by_an_index_wait_for_nothing(run):
    """Only the shape of a mask's selection depends on values (D4)."""

    def program(_, ctx):
        x, index = ctx.arange(6, dtype=ctx.float32), ctx.tensor([4, 1])
        x[x > 3] = -1.0
        x[index] = 9.0
        picked = x[index]
        assert ctx.now_ps == 0
        assert x[x > 0].tolist() == [9, 2, 3, 9]
        assert ctx.now_ps > 0
        assert picked.tolist() == [9, 9]

    run(program, 1)


def test_a_mask_waits_for_itself_and_not_for_what_it_selects_from(run):
    """The barrier of x[mask] is scoped to the mask."""

    def program(_, ctx):
        x, mask = ctx.zeros(2**12, 2), ctx.tensor([True, False] * 2**11)
        with ctx.stream(ctx.Stream()):
            for _ in range(10):
                ctx.empty(2**28).fill_(1)
            y = x + 1
        y[mask]
        assert ctx.now_ps < 1_000_000_000

    run(program, 1, data=False)
