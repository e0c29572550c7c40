"""`simrank kernels`: what is emulated, and what the lines of kernels did."""

import re
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from simrank.cli import app, main

pytest.importorskip("triton")
tl = pytest.importorskip("triton.language")

from simrank.kernels.source import names  # noqa: E402 - it needs triton

SCRIPT = """
import triton, triton.language as tl

@triton.jit
def copy(x, y, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + offs, tl.load(x + offs, mask=offs < n), mask=offs < n)

def go(ctx):
    x, y = ctx.ones(1000), ctx.empty(1000)
    ctx.launch(copy, (4,), x, y, 1000, BLOCK=256)
    assert y.sum().item() == 1000

def other(what):
    pass
"""


@pytest.fixture
def script(tmp_path):
    """A file with a kernel and functions that launch it."""
    path = tmp_path / "kernels_of_mine.py"
    path.write_text(SCRIPT)
    return path


def command(capsys, *args):
    """Run `simrank kernels report`; return status, output and errors."""
    with pytest.raises(SystemExit) as caught:
        main(["kernels", "report", *args])
    captured = capsys.readouterr()
    return caught.value.code, captured.out, captured.err


def test_the_report_shows_the_source_beside_what_lines_did(script, capsys):
    """As text."""
    code, out, _ = command(capsys, f"{script}::go")
    assert code == 0
    assert "copy: 1 launch(es), 4 programs" in out
    (line,) = [line for line in out.splitlines() if "tl.store" in line]
    assert "8000 B" in line
    assert "2.3%" in line


def test_the_report_is_a_page_where_asked(script, tmp_path, capsys):
    """With a bar for each line that takes time, and the roofline."""
    page = tmp_path / "report.html"
    assert command(capsys, f"{script}::go", "--html", str(page))[0] == 0
    text = page.read_text()
    assert "tl.store(y + offs" in text
    assert 'class="bars"' in text


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("nowhere.py::go", "expected a Python file"),
        ("{}::missing", "expected a function of"),
        ("{}::other", "a function with only the arguments ctx, rank, world_size"),
        ("{}", "a program that launches kernels"),
    ],
)
def test_a_target_that_is_none_is_a_usage_error(script, capsys, target, message):
    """Exit status 2."""
    code, _, err = command(capsys, target.format(script))
    assert code == 2
    assert message in err


@pytest.mark.parametrize("wrong", ["1 / 0\n", "def go(:\n", "import nothing_of_the_kind\n"])
def test_a_file_that_raises_fails_with_its_own_traceback(script, capsys, wrong):
    """Status 1, and no word of simrank's; where modules are looked for is as before."""
    before = list(sys.path)
    script.write_text(f"{wrong}\ndef go(ctx):\n    pass\n")
    for target in (f"{script}::go", str(script)):
        code, _, err = command(capsys, target)
        assert code == 1
        assert f'{script}", line 1' in err
        assert "bug in simrank" not in err
    assert sys.path == before


def test_the_command_counts_the_names():
    """The last line is the sum."""
    found = CliRunner().invoke(app, ["kernels", "coverage"])
    absent = (names.MISSING, names.REFUSED_BY_NAME)
    num_covered = sum(state not in absent for state in names.coverage().values())
    assert f"{num_covered} of {len(tl.__all__)} names" in found.output


# ---- `simrank kernels check`: what it runs, what it finds, and its exit status ----

HEAD = """
import simrank
import triton, triton.language as tl

@triton.jit
def twice(x):
    return x * 2

@triton.jit
def scale(x, y, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + offs, twice(tl.load(x + offs, mask=offs < n)), mask=offs < n)
"""
FINE = """
def case_scale(ctx, rank):
    x, y = ctx.randn(1000), ctx.empty(1000)
    scale[(4,)](x, y, 1000, BLOCK=256)
    assert (y.numpy() == 2 * x.numpy()).all()
    return {"y": y}
"""
WRONG = """
@triton.jit
def counted(counter, out):
    tl.store(out + tl.program_id(0), tl.atomic_add(counter, 1, sem="relaxed"))

@triton.jit
def next_of(x, N: tl.constexpr):
    at = tl.program_id(0) * N + tl.arange(0, N)
    tl.store(x + at + N, tl.load(x + at) + 1)

@triton.jit
def unused(x):
    tl.store(x, 1)

def case_assertion(ctx):
    y = ctx.empty(256)
    scale[(1,)](ctx.ones(256), y, 256, BLOCK=256)
    assert y[0].item() == 3, "not three"

def case_race(ctx):
    next_of[(4,)](ctx.zeros(320), N=64)

def case_of_nothing():
    pass
"""
DIFFERS = """
@triton.jit
def last(out):
    tl.store(out, tl.program_id(0).to(tl.float32) + tl.load(out))

def case_last(ctx):
    import simrank.kernels.launch as launch
    mode = launch._recorders[-1].mode
    y = ctx.full((2,), 0.25 if mode == "tasks" else 0.5)
    last[(1,)](y)
"""
TUNED = """
@triton.autotune([triton.Config({"BLOCK": size}) for size in (64, 256)], key=["n"])
@triton.jit
def tuned(x, y, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + offs, tl.load(x + offs, mask=offs < n) + 1, mask=offs < n)

def case_tuned(ctx):
    x, y, z = ctx.randn(1000), ctx.empty(1000), ctx.empty(1000)
    for out in (y, z):
        tuned[lambda meta: (triton.cdiv(1000, meta["BLOCK"]),)](x, out, 1000)
"""
REFUSED = """
@triton.jit
def square(x, N: tl.constexpr):
    at = tl.arange(0, N)
    tl.store(x + at, tl.load(x + at).to(tl.float8e4nv).to(tl.float32))

def case_square(ctx):
    square[(1,)](ctx.ones(64), N=64)
"""


LARGE = """
@triton.jit
def product(a, b, c, K, N, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    acc = tl.zeros((BLOCK, BLOCK), tl.float32)
    for start in range(0, K, BLOCK):
        left = tl.load(a + at[:, None] * K + start + at[None, :])
        acc = tl.dot(left, tl.load(b + (start + at)[:, None] * N + at[None, :]), acc)
    tl.store(c + at[:, None] * N + at[None, :], acc.to(tl.float16))

def case_product(ctx):
    tensors = (ctx.ones(256, 256, dtype=ctx.float16) for _ in range(3))
    product[(1,)](*tensors, 256, 256, BLOCK=128, num_stages=3)
"""


@pytest.fixture
def checked(tmp_path, capsys):
    """Run `simrank kernels check` on a file of a text; return status, output and errors."""

    def run(text, *options):
        path = tmp_path / "mine.py"
        path.write_text(HEAD + text)
        with pytest.raises(SystemExit) as caught:
            main(["kernels", "check", str(path), *options])
        captured = capsys.readouterr()
        return caught.value.code, captured.out, captured.err

    return run


@pytest.mark.slow
def test_kernels_that_are_fine_are_compiled_for_every_target(checked):
    """Both runs agree, on every rank; device functions are checked with their callers."""
    code, out, err = checked(FINE, "--target", "sm_90,gfx942", "--nproc-per-node", "2")
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        "case_scale: 2 launch(es)", "scale for sm_90: compiles", "scale for gfx942: compiles",
    ]  # fmt: skip


@pytest.mark.slow
def test_what_is_wrong_is_said_case_by_case_and_the_status_is_one(checked):
    """Assertions, races and cases without a launch; kernels that no case launches are named."""
    code, out, _ = checked(WRONG)
    assert code == 1
    text = out.replace("\n  ", "\n")
    assert "case_assertion: 1 problem(s)\nAssertionError: not three" in text
    assert "case_race: " in out
    assert "nothing orders two programs" in out
    assert "case_of_nothing: 1 problem(s)\nno kernel was launched" in text
    assert "not checked: no case launches kernel 'unused'" in out
    assert "kernel 'scale'" not in out


@pytest.mark.slow
def test_what_differs_between_the_modes_is_said_to_the_element(checked):
    """Unless it is within what was asked for; only what kernels store to is looked at."""
    code, out, _ = checked(DIFFERS)
    assert code == 1
    wanted = "of last differs in 2 of 2 elements, first in 0: 0.5 in lockstep, 0.25 in tasks"
    assert f"rank 0: 'out' {wanted}" in out
    assert checked(DIFFERS, "--rtol", "0.5")[0] == 0


@pytest.mark.slow
def test_a_kernel_that_is_tuned_is_compared_by_what_it_stores_to(checked):
    """Its configurations are tried in the first run only."""
    code, out, _ = checked(TUNED)
    assert code == 0
    assert "tuned for sm_90: compiles" in out
    assert "kernel 'tuned'" not in out


@pytest.mark.slow
def test_what_the_compiler_rejects_for_one_target_is_shown_for_it(checked):
    """Devices of Volta have no fp8; the emulation runs it all the same."""
    code, out, _ = checked(REFUSED, "--target", "sm_75,sm_90")
    assert code == 1
    assert "case_square: 1 launch(es)" in out
    assert "square for sm_75: 1 problem(s)" in out
    assert "square for sm_90: compiles" in out


@pytest.mark.slow
def test_what_fits_one_target_and_not_another_is_said_with_how_much_there_is(checked):
    """Two pairs of blocks of 32 KiB are copied ahead: an L40S has 99 KiB for a program."""
    code, out, _ = checked(LARGE, "--target", "sm_89,sm_90")
    assert code == 1
    assert "product for sm_90: compiles" in out
    assert "out of resource: shared memory, Required: 131072, Hardware limit: 101376" in out


FOUND = """
@triton.jit
def scattered(index, o, N: tl.constexpr):
    at = tl.arange(0, N)
    tl.store(o + tl.load(index + at), at)

@triton.jit
def summed(x, o, N: tl.constexpr):
    tl.store(o, tl.sum(tl.load(x + tl.arange(0, N)), 0))

@triton.jit
def ticket(counter, o):
    tl.store(o + tl.atomic_add(counter, 1), tl.program_id(0))

@triton.jit
def added(x, o, N: tl.constexpr):
    tl.atomic_add(o, tl.sum(tl.load(x + tl.program_id(0) * N + tl.arange(0, N)), 0))

@triton.jit
def partial_sums(x, partial, N: tl.constexpr):
    at = tl.program_id(0)
    tl.store(partial + at, tl.sum(tl.load(x + at * N + tl.arange(0, N)), 0))

def case_two_lanes(ctx):
    scattered[(1,)](ctx.zeros(64, dtype="int32"), ctx.zeros(4, dtype="int32"), N=64)

def case_past_the_end(ctx):
    summed[(1,)](ctx.ones(50), ctx.zeros(1), N=64)

def case_tickets(ctx):
    ticket[(8,)](ctx.zeros(1, dtype="int32"), ctx.zeros(8, dtype="int32"))

def case_sum_in_any_order(ctx):
    added[(64,)](ctx.randn(4096), ctx.zeros(1), N=64)

def case_never_written(ctx):
    x, y = ctx.ones(1000), ctx.empty(1000)
    scale[(3,)](x, y, 1000, BLOCK=256)

def case_accumulated(ctx):
    added[(1,)](ctx.ones(64), ctx.empty(1), N=64)

def case_spare_memory(ctx):
    x, partial, o = ctx.ones(256), ctx.empty(64), ctx.empty(1)
    partial_sums[(4,)](x, partial, N=64)
    summed[(1,)](partial, o, N=4)
    assert o.item() == 256
"""


@pytest.mark.slow
def test_findings_of_a_plain_run_are_problems_of_a_case(checked):
    """Lanes, ends of tensors, orders of programs and memory that nothing wrote; each named once."""
    code, out, _ = checked(FOUND)
    assert code == 1
    text = dict(re.findall(r"^case_(\w+): (.*(?:\n  .*)*)", out, re.MULTILINE))
    assert "1 problem(s)\n  kernel 'scattered', program 0: lanes 0 and 1" in text["two_lanes"]
    assert "1 problem(s)\n  load past the end in kernel 'summed'" in text["past_the_end"]
    assert "the result depends on the order in which programs run" in text["tickets"]
    assert "'y' of scale: 232 of 1000 elements, first 768, were never" in text["never_written"]
    assert "'o' of added: 1 of 1 elements, first 0, were never" in text["accumulated"]
    for name in ("sum_in_any_order", "spare_memory"):
        assert text[name] in ("1 launch(es)", "2 launch(es)")


NAMED = {
    "missing_mask": "store of element 1000 of 'y'",
    "race_between_programs": "update with an atomic, for example tl.atomic_add",
    "split_k_without_zeros": "'c' of split_k: 256 of 256 elements, first 0, were never written",
    "autotune_accumulates": "reset_to_zero=['total']) where callers pass zeros",
    "false_multiple_of": "tl.multiple_of does not hold: 16 along dim 0 of 50",
    "no_barrier_within_a_program": "threads overwrite what other threads have yet to load",
    "wrong_stride": "lanes 16 and 64 store different values to one element",
    "int32_overflow": "load of element -852 of 'x'",
    "tile_never_written": "'y' of copy_tiles: 256 of 1024 elements, first 768, were never written",
    "store_through_a_constant": "Cannot store to a constant pointer",
    "order_of_atomics": "the result depends on the order in which programs run",
    "stale_signal_pad": "a signal that an earlier launch had taken ended a wait",
}


@pytest.mark.slow
def test_faults_of_public_reports_are_named_and_their_mended_siblings_are_fine(capsys):
    """Twelve kernels; on two ranks, of which most do the same."""
    file = Path(__file__).parent.parent / "kernels" / "faulty.py"
    with pytest.raises(SystemExit) as caught:
        main(["kernels", "check", str(file), "--nproc-per-node", "2"])
    assert caught.value.code == 1
    out = capsys.readouterr().out
    found = dict(re.findall(r"^case_(\w+): (.*(?:\n  .*)*)", out, re.MULTILINE))
    assert found.keys() == {f"{how}_{name}" for name in NAMED for how in ("faulty", "mended")}
    for name, words in NAMED.items():
        assert words in found[f"faulty_{name}"]
        assert re.fullmatch(r"\d+ launch\(es\)", found[f"mended_{name}"]), name


@pytest.mark.slow
def test_a_lost_message_of_a_case_is_its_problem(checked):
    """The end of the Context raises it; the further cases run."""
    code, out, _ = checked(
        FINE
        + """
def case_message(ctx, rank):
    import simrank.distributed as dist
    dist.init_process_group("nccl")
    x, y = ctx.ones(256), ctx.empty(256)
    if rank == 0:
        dist.send(x, 1)
    scale[(1,)](x, y, 256, BLOCK=256)
""",
        "--nproc-per-node",
        "2",
    )
    assert code == 1
    assert "case_scale: 2 launch(es)" in out
    assert "lost message (proved)" in out


WITH_TORCH = """
import torch, triton, triton.language as tl

@triton.jit
def double(x, y, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + offs, tl.load(x + offs, mask=offs < n) * 2, mask=offs < n)

@triton.jit
def ticket(x, BLOCK: tl.constexpr):
    tl.atomic_xchg(x, tl.program_id(0))

def case_right():
    x = torch.rand(1000, device="cuda", dtype=torch.bfloat16)
    y = torch.empty_like(x)
    double[(4,)](x, y, 1000, BLOCK=256)
    assert torch.equal(y, 2 * x)
    return {"result": (y[::2], 3, torch.ones(2, device="cuda", dtype=torch.complex64))}

kept = {}

def case_kept():
    if "y" not in kept:
        kept["y"] = torch.ones(8, device="cuda")
    double[(1,)](kept["y"], kept["y"], 8, BLOCK=16)

def case_never_written():
    x = torch.rand(1000, device="cuda")
    y = torch.empty_like(x)
    double[(2,)](x, y, 1000, BLOCK=256)
    return y[500:]

def case_order():
    x = torch.zeros(1, device="cuda", dtype=torch.int32)
    ticket[(4,)](x, BLOCK=1)
"""


@pytest.mark.slow
def test_cases_may_use_torch(checked):
    """On torch's simulated devices, with the same findings."""
    pytest.importorskip("torch")
    code, out, _ = checked(WITH_TORCH, "--target", "sm_90")
    assert code == 1
    text = dict(re.findall(r"^(case_\w+|double.*): (.*(?:\n  .*)*)", out, re.MULTILINE))
    assert (text["case_right"], text["double for sm_90"]) == ("1 launch(es)", "compiles")
    assert "'y' of double: 488 of 1000 elements, first 512, were" in text["case_never_written"]
    assert "rank 0: result: 488 of 500 elements, first 12" in text["case_never_written"]
    assert "'x' of ticket differs in 1 of 1 elements" in text["case_order"]
    of_kept = "'y' of double differs in 8 of 8 elements, first in 0: 2 in a run, 16 in a second run"
    assert text["case_kept"].count("case depends on earlier runs") == 1
    assert of_kept in text["case_kept"]


@pytest.mark.parametrize(
    ("text", "options", "words"),
    [
        ("", [], "expected a file with functions whose names begin with `case`"),
        ("def case_a(what): pass", [], "expected a case with only the arguments rank, ctx"),
        ("def case_a(): pass", ["--target", "h100"], "names of targets such as sm_90,gfx942"),
    ],
)
def test_bad_usage_is_status_two(checked, text, options, words):
    """With what was expected."""
    code, _, err = checked(text, *options)
    assert code == 2
    assert words in err


def test_the_options_are_frozen():
    """Names that may not change by accident."""
    shown = CliRunner().invoke(app, ["kernels", "check", "--help"]).output
    for name in ("{file}", "--target", "--cluster", "--nproc-per-node", "--rtol", "exit status"):
        assert name in shown
