"""`simrank equal`: a line per layout, files, exit status, and what cannot run."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is not installed")

from tests.equality import programs

FILE = "from nets import *\n" + programs.GPT
RIGHT = FILE + programs.TP
WRONG = FILE + programs.FAULTY["a_row_parallel_bias_is_added_by_each_rank"].parallel


@pytest.fixture
def write(tmp_path):
    """Write a program beside the nets that it imports; return its path."""

    def write_program(text):
        shutil.copy(Path(__file__).parent.parent / "equality" / "nets.py", tmp_path)
        path = tmp_path / "train.py"
        path.write_text(text)
        return path

    return write_program


def test_each_layout_is_a_line_and_a_wrong_one_is_status_1(write, cli, tmp_path, monkeypatch):
    """Axes of size 1 are there for the program to ask for; the files have all verdicts."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    files = [tmp_path / name for name in ("r.json", "r.html")]
    layouts = ["--layout", "dp=2,tp=1", "--layout", "dp1 x tp2", "--steps", "1"]
    status, out, _ = cli("equal", write(WRONG), *layouts, "--json", files[0], "--html", files[1])
    assert status == 1
    first, second = out.splitlines()
    assert first.startswith("FAIL dp2 x tp1: gradients, (all): not reduced over dp (mean)")
    assert second.rpartition("; relative error ")[0] == (
        "FAIL dp1 x tp2: forward, layers.0.mlp.down: the bias is added 2 times; axis tp; "
        "ranks 0-1; at train.py:8; collectives there: all_reduce on tp at nets.py:101"
    )
    document = json.loads(files[0].read_text())
    assert [each["is_equal"] for each in document["layouts"]] == [False, False]
    kinds = "arguments", "attributes", "buffers", "dropouts", "optimizer_states", "loss_values"
    assert document["layouts"][0]["not_seen"] == {kind: [] for kind in kinds}
    keys = "axes calls cause compared decoding_step direction hint module place ranks"
    keys += " relative_error step"
    found = document["layouts"][1]["found"]
    assert sorted(found) == keys.split()
    assert (found["direction"], found["module"], found["axes"]) == (
        "forward",
        "layers.0.mlp.down",
        ["tp"],
    )
    page = files[1].read_text()
    assert "layers.0.mlp.down" in page
    assert 'class="high' in page
    assert 'class="right' in page
    assert list(Path.cwd().iterdir()) == []


@pytest.mark.slow
def test_sigterm_leaves_no_temporary_folder(write, tmp_path):
    """The status is that of shells: 128 and the signal's number."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    program = write(f"import time\nprint('loaded', flush=True)\ntime.sleep(600)\n{RIGHT}")
    words = [sys.executable, "-m", "simrank", "equal", str(program), "--layout", "tp=2"]
    env = {**os.environ, "TMPDIR": str(folder)}
    with subprocess.Popen(words, env=env, text=True, stdout=subprocess.PIPE) as run:
        assert run.stdout.readline() == "loaded\n"
        before = list(folder.glob("tmp*"))  # Not torch's folder of compiled code.
        run.terminate()
        assert (len(before), run.wait()) == (1, 143)
    assert list(folder.glob("tmp*")) == []


def test_all_modules_that_differ_are_listed_and_the_first_that_fails_ends_it(write, cli):
    """With --all, what follows from the first difference too; with --first, the rest is not run."""
    layouts = ["--layout", "tp=2", "--layout", "tp=4", "--steps", "1", "--all", "--first"]
    status, out, _ = cli("equal", write(WRONG), *layouts)
    verdict, *rest = out.splitlines()
    modules = [line.split(", ")[0] for line in rest]
    assert status == 1
    assert verdict.startswith("FAIL tp2: ")
    assert "  wrong: layers.0.mlp.down" in modules
    assert "  wrong: head" in modules
    assert not any("tp4" in line for line in rest)


def test_a_right_layout_of_the_programs_own_says_what_was_compared(write, cli):
    """`LAYOUT` in the program stands for a list of layouts."""
    status, out, _ = cli("equal", write(RIGHT + 'LAYOUT = {"tp": 2}\n'), "--steps", "1")
    assert status == 0
    assert out.startswith("ok tp2: ")
    assert out.endswith(" of tolerance, 0 not aligned\n")


def test_layouts_of_a_file_run_in_processes(write, cli, tmp_path):
    """In their order, whichever ends first."""
    layouts = tmp_path / "layouts.yaml"
    layouts.write_text("layouts: [{tp: 2}, {tp: 1}]\nsteps: 1\n")
    status, out, _ = cli("equal", write(RIGHT), "--layouts", layouts, "--jobs", "2")
    assert status == 0
    assert [line.split(":")[0] for line in out.splitlines()] == ["ok tp2", "ok tp1"]


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ("if mesh.get_local_rank(): raise ValueError('no such part')", "run, (all): ValueError"),
        ("mesh['ep']", "give the layout each axis that the program asks for"),
        (
            "if mesh.get_local_rank(): dist.all_reduce(torch.ones(1, device='cuda'))",
            "DeadlockError: deadlock (proved)",
        ),
    ],
)
def test_a_layout_that_does_not_run_fails_with_its_error(write, cli, lines, words):
    """A traceback, or a report that names the calls."""
    text = FILE + f"def parallelize(model, mesh):\n    {lines}\n    return model\n"
    status, out, _ = cli("equal", write(text), "--layout", "tp=2", "--steps", "1")
    assert status == 1
    assert words in out


def test_the_report_of_an_error_is_printed_once(write, cli):
    """Other layouts that end with it refer to the first."""
    text = FILE + "def parallelize(model, mesh): raise ValueError('no such width')\n"
    layouts = ["--layout", "tp=2", "--layout", "tp=4", "--steps", "1"]
    status, out, _ = cli("equal", write(text), *layouts)
    assert status == 1
    assert out.count("Traceback") == 1
    assert out.splitlines()[-2].startswith("FAIL tp4: run, (all): ValueError: no such width")
    assert out.splitlines()[-1] == "  as tp2"


def test_dropout_is_off_where_masks_cannot_be_aligned(write, cli):
    """Rows of the batch that are the same have masks of their own; it is said aloud."""
    alike = programs.DROPOUT.replace("tokens(step)", "[x[:1].repeat(4, 1) for x in tokens(step)]")
    text = "from nets import *\n" + alike + programs.WHOLE + programs.DP
    status, out, _ = cli("equal", write(text), "--layout", "dp=2", "--steps", "1")
    verdict, note = out.splitlines()
    assert status == 0
    assert verdict.startswith("ok dp2: ")
    assert note.startswith("  dropout is off (p = 0), other random numbers are constants")


def test_random_numbers_of_a_forward_are_constants_where_a_layout_differs(write, cli):
    """Each rank draws its own; sparse gradients are compared, too."""
    text = """from nets import *
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.out = nn.Embedding(32, 8, sparse=True), nn.Linear(8, 32)
    def forward(self, x):
        x = self.embed(x)
        return self.out(x + torch.randn_like(x))
def build(): return Net()
def batch(step): return tokens(step)
def loss(model, batch): return cross_entropy(model(batch[0]), batch[1])
def parallelize(model, mesh): return model
def train(model, batch, mesh):
    loss(model, rows(batch, mesh["dp"])).backward()
    for p in model.parameters(): p.grad = p.grad.to_dense()
    average(model, mesh["dp"].get_group())
"""
    status, out, _ = cli("equal", write(text), "--layout", "dp=2", "--steps", "1")
    verdict, note = out.splitlines()
    assert status == 0
    assert verdict.startswith("ok dp2: ")
    assert "other random numbers are constants" in note


def test_a_layout_is_as_exact_as_the_single_program_in_their_own_types(write, cli):
    """Autocast in both; the line says how exact, and dropout is off."""
    text = programs.DROPOUT.replace("def loss(model, batch):", "def exact(model, batch):")
    text += "def loss(model, batch):\n    with torch.autocast('cuda', torch.bfloat16):\n"
    text += "        return exact(model, batch)\n"
    text = "from nets import *\n" + text + programs.TP
    options = ["--layout", "tp=2", "--dtype", "declared", "--steps", "1"]
    status, out, _ = cli("equal", write(text), *options)
    verdict, note = out.splitlines()
    assert status == 0
    assert verdict.startswith("ok tp2: ")
    assert note.startswith("  in bfloat16, float32: errors up to ")
    assert note.endswith(" times the single program's, without dropout")


def test_gradients_that_are_summed_in_a_narrower_type_are_found(write, cli):
    """In float64 they are equal; an error of the program there is one, too."""
    lines = """
def train(model, batch, mesh):
    loss(model, rows(batch, mesh["dp"])).backward()
    for p in model.parameters():
        narrow = p.grad.bfloat16()
        dist.all_reduce(narrow, group=mesh.get_group("dp"))
        p.grad = narrow.to(p.grad.dtype) / 2
"""
    path = write(FILE + programs.WHOLE + lines)
    status, out, _ = cli("equal", path, "--layout", "dp=2", "--steps", "1")
    assert status == 0
    status, out, _ = cli("equal", path, "--layout", "dp=2", "--steps", "1", "--dtype", "declared")
    assert status == 1
    assert out.startswith("FAIL dp2: precision, (all): gradients are up to ")
    path.write_text(path.read_text() + "assert torch.get_default_dtype() == torch.float64\n")
    status, out, _ = cli("equal", path, "--layout", "dp=2", "--steps", "1", "--dtype", "declared")
    assert status == 1
    assert "run, (all): in its own types: AssertionError" in out


def test_a_program_with_tensors_on_the_cpu_runs_there(write, cli):
    """With gloo; it is said aloud, and `--device cuda` refuses it with what to do."""
    text = RIGHT.replace("model(batch[0])", "model(batch[0]) + torch.zeros(4, 1, 32)")
    status, out, _ = cli("equal", write(text), "--layout", "tp=2", "--steps", "1")
    first, verdict = out.splitlines()
    assert status == 0
    assert first.startswith("# computed on the CPU, with gloo: on cuda, RuntimeError: Expected all")
    assert verdict.startswith("ok tp2: ")
    lines = "    dist.all_reduce(torch.zeros(1))\n    return model\n"
    text = FILE + f"def parallelize(model, mesh):\n{lines}"
    status, out, _ = cli("equal", write(text), "--layout", "tp=2", "--steps", "1")
    assert status == 0
    assert out.splitlines()[1].startswith("  computed on the CPU, with gloo: on cuda, ")
    options = ["--layout", "tp=2", "--steps", "1", "--device", "cuda"]
    status, out, _ = cli("equal", write(text), *options)
    assert status == 1
    assert "to fix: make tensors on the device of the model and the batch, or --device cpu" in out


def test_what_is_left_out_is_said(write, cli, tmp_path):
    """Modules that may differ with their reason, and the dropout of attention."""
    text = (
        RIGHT
        + """
class Dropping(Attention):
    def attend(self, q, k, v):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=0.1)
def build():
    model = GPT()
    for layer in model.layers: layer.attention.__class__ = Dropping
    return model
"""
    )
    layouts = tmp_path / "layouts.yaml"
    layouts.write_text("layouts: [{tp: 2}]\nsteps: 1\nallow: {head: it is drawn again}\n")
    status, out, _ = cli("equal", write(text), "--layouts", layouts)
    first, verdict, note = out.splitlines()
    assert status == 0
    assert first == "# not compared: head, it is drawn again"
    assert verdict.startswith("ok tp2: ")
    assert note == ("  not seen: 1 dropout (scaled_dot_product_attention: off in both programs)")


def test_what_no_comparison_has_seen_is_a_line(write, cli, tmp_path):
    """Arguments, attributes, buffers and states of optimizers: counts, and the first names."""
    text = """from nets import *
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.out, self.calls = nn.LayerNorm(6), Scaled(6, 4), 0
        self.register_buffer("first", torch.zeros(()))
    def forward(self, x):
        self.calls, self.last = self.calls + 1, self.out(self.norm(x), 1.0, how=object())
        return self.last
class Scaled(nn.Linear):
    def forward(self, x, scale, *, how): return super().forward(x) * scale
def build(): return Net()
def batch(step): return drawn(step, (8, 6))
def loss(model, batch): return model(batch[0]).square().mean()
def parallelize(model, mesh):
    model.first += mesh.get_local_rank("dp")
    return model
def train(model, batch, mesh):
    for x in batch[0].chunk(4)[2 * mesh.get_local_rank("dp"):][:2]:
        (loss(model, [x]) / 2).backward()
    average(model, mesh.get_group("dp"))
def update(model, mesh): torch.optim.Adam(model.parameters()).step()
"""
    report = tmp_path / "r.json"
    arguments = ["--layout", "dp=2", "--steps", "1", "--json", report]
    status, out, _ = cli("equal", write(text), *arguments)
    assert status == 0
    assert out.splitlines()[1] == (
        "  not seen: 1 argument (out: how <object>), 2 attributes (last <tensors>; calls 2, and "
        "not 1), 1 buffer (first: a constant, another on rank 1), 1 optimizer state (Adam: step)"
    )
    assert json.loads(report.read_text())["layouts"][0]["not_seen"]["attributes"] == [
        "last <tensors>",
        "calls 2, and not 1",
    ]


def test_a_package_that_ranks_write_differently_becomes_private(write, cli, tmp_path, monkeypatch):
    """As processes have it: the layout runs again, and a note names the option."""
    (tmp_path / "site-packages").mkdir()
    (tmp_path / "site-packages" / "sharedlib.py").write_text("part = None")
    monkeypatch.syspath_prepend(tmp_path / "site-packages")
    text = (
        FILE
        + """
import sharedlib
def parallelize(model, mesh):
    sharedlib.part = mesh.get_local_rank("dp")
    dist.broadcast(model.head.weight.data, 0)
    return model
def train(model, batch, mesh):
    value = loss(model, tuple(x.chunk(2)[sharedlib.part] for x in batch))
    value.backward()
    average(model, mesh.get_group("dp"))
    return value
"""
    )
    arguments = write(text), "--layout", "dp=2", "--steps", "1"
    status, out, _ = cli("equal", *arguments)
    assert status == 0
    assert "ranks 0-1: set sharedlib.part, which they share: processes have their own" in out
    assert "sharedlib is private (--private sharedlib: from the first run on)" in out
    status, out, _ = cli("equal", *arguments, "--private", "sharedlib")
    assert (status, "private" in out) == (0, False)
    del sys.modules["sharedlib"]


def test_a_single_program_that_differs_from_run_to_run_is_said(write, cli):
    """What it draws of the system is no error of recording; a line says it."""
    text = RIGHT.replace("model(batch[0])", "model(batch[0]) * SCALE")
    text += "import os\nSCALE = 1 + int.from_bytes(os.urandom(4)) / 2**32\n"
    _, out, _ = cli("equal", write(text), "--layout", "tp=1", "--steps", "1")
    assert "  the single program differs from run to run: the loss is " in out
    assert "recording" not in out


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("value", "; loss equal"),
        ("value + 1", r"; [6-9]\d tensors of the forward equal; the loss is [\d.]+ and not [\d.]+"),
        ("None", r"; [6-9]\d tensors of the forward equal; no loss to compare"),
    ],
)
def test_a_wrong_backward_says_what_was_compared_before_it(write, cli, value, words):
    """The loss, or the tensors of the forward where the loss differs, too."""
    lines = f"""
class Plain(Column):
    def forward(self, x): return F.linear(x, self.weight, self.bias)
def parallelize(model, mesh): return split(model, mesh["tp"].get_group(), column=Plain)
def train(model, batch, mesh):
    value = loss(model, batch)
    value.backward()
    return {value}
"""
    status, out, _ = cli("equal", write(FILE + lines), "--layout", "tp=2", "--steps", "1")
    assert status == 1
    assert out.startswith("FAIL tp2: backward, layers.1.mlp.up: ")
    assert re.search(f"{words}$", out)


def test_right_numbers_that_nothing_orders_are_a_race(write, cli):
    """They are right here, and may be others on GPUs."""
    lines = """
def train(model, batch, mesh):
    loss(model, batch).backward()
    for p in model.parameters():
        dist.all_reduce(p.grad, group=mesh.get_group("dp"), async_op=True)
        p.grad.div_(2)
"""
    text = FILE + programs.WHOLE + lines
    status, out, _ = cli("equal", write(text), "--layout", "dp=2", "--steps", "1")
    assert status == 1
    assert "race, (all): numbers are right, but nothing orders them: race (proved)" in out


def test_code_that_does_not_compute_in_float64_is_run_in_its_own_type(write, cli):
    """It is said aloud; the verdict is as exact as that type allows."""
    refuses = "\n    assert model.norm.weight.dtype == torch.float32\n    "
    text = RIGHT.replace("loss(model, batch): ", f"loss(model, batch): {refuses}")
    status, out, _ = cli("equal", write(text), "--layout", "tp=2", "--steps", "1")
    note, verdict = out.splitlines()
    assert note == "# computed in float32: in float64, AssertionError: "
    assert verdict.startswith("ok tp2: ")
    assert status == 0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--layout", "dp"], "axes such as dp=2,tp=2"),
        (["--layout", "dp=2", "--dtype", "int8"], "one of float64, float32"),
        ([], "LAYOUT = {...} in the program"),
    ],
)
def test_wrong_options_are_named(write, cli, options, words):
    """Before anything runs."""
    status, _, err = cli("equal", write(RIGHT), *options)
    assert status == 2
    assert words in err


def test_a_program_without_its_functions_is_named(write, cli):
    """With those that are needed."""
    status, _, err = cli("equal", write(FILE), "--layout", "tp=2")
    assert status == 2
    assert "needed are build, batch, loss, parallelize" in err
