"""Autotuners keep what they find for each program; nothing goes to a file."""

import pytest
import triton
import triton.language as tl

import simrank


@triton.autotune(
    configs=[triton.Config({"BLOCK": size}) for size in (16, 1024)],
    key=["n"],
    restore_value=["y"],
    cache_results=True,
)
@triton.jit
def add(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < n
    tl.store(y + at, tl.load(x + at, mask=mask) + tl.load(y + at, mask=mask), mask=mask)


def grid(meta):
    return (triton.cdiv(meta["n"], meta["BLOCK"]),)


def test_ranks_tune_one_kernel_side_by_side(run):
    """Each restores its own values, and launches what it has found itself."""
    found = {}

    def body(rank, ctx):
        n = 2048 + 16 * rank
        x, y = ctx.ones(n), ctx.full((n,), 10.0 * rank)
        for _ in range(2):
            add[grid](x, y, n)
        assert y.tolist() == [10.0 * rank + 2] * n
        found[rank] = [*add.cache]

    run(body, 4)
    assert [keys[0][0] for _, keys in sorted(found.items())] == [2048, 2064, 2080, 2096]
    assert all(len(keys) == 1 for keys in found.values())


def test_another_context_tunes_anew_and_no_file_is_written_or_read(tmp_path, monkeypatch):
    """A real GPU would find them, of the same architecture as the simulated one."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    times_ps = []
    for _ in range(2):
        with simrank.Context.for_ranks(1) as ctx:
            x, y = ctx.ones(4096), ctx.zeros(4096)
            add[grid](x, y, 4096)
            ctx.synchronize()
            first = ctx.engine.now_ps
            add[grid](x, y, 4096)
            ctx.synchronize()
            times_ps.append((first, ctx.engine.now_ps - first))
            assert y.sum().item() == 2 * 4096
    assert times_ps[0] == times_ps[1]
    assert times_ps[0][0] > 4 * times_ps[0][1]
    assert [*tmp_path.rglob("*.json")] == []
    assert add.cache == {}, "outside, where a GPU may be"
    assert add.best_config in add.configs_timings


def test_what_nobody_has_found_yet_is_no_attribute():
    """In triton's words."""
    tuner = triton.autotune(configs=[triton.Config({"BLOCK": 16})], key=[])(add.fn)
    with pytest.raises(AttributeError, match="'Autotuner' object has no attribute 'best_config'"):
        tuner.best_config  # noqa: B018 - asked for


def test_a_tuner_of_a_rank_has_an_empty_cache_outside(run):
    """A function that a rank has registered with atexit reads it when the run is over."""
    made = []

    def body(rank, ctx):
        made.append(accumulate())

    run(body, 1)
    assert made[0].cache == {}


def accumulate(**options):
    """Return an autotuned kernel that adds to its output."""
    configs = [triton.Config({"BLOCK": size}) for size in (128, 256)]
    return triton.autotune(configs=configs, key=["n"], **options)(add.fn)


@pytest.mark.parametrize(
    ("options", "findings"), [({}, 1), ({"restore_value": ["y"]}, 0), ({"reset_to_zero": ["y"]}, 0)]
)
def test_a_kernel_that_adds_to_what_its_measurements_left_is_a_finding(options, findings):
    """As on a GPU the result is too large; the finding says why, and what mends it."""
    tuned = accumulate(**options)
    with simrank.Context.for_ranks(1) as ctx:
        x, y = ctx.ones(500), ctx.zeros(500)
        tuned[grid](x, y, 500)
        assert (y.sum().item() == 500) == (not findings)
    assert len(ctx.findings) == findings
    for text in ctx.findings:
        assert "autotune of kernel 'add' ran a configuration 4 times" in text
        assert "each run changed 'y' again" in text
        assert "reset_to_zero=['y']) where callers pass zeros, else restore_value=['y']" in text
