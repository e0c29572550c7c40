"""Programs that decode: a fault is named by step, module, axis and cause; right layouts pass."""

import shutil
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is not installed")

from simrank.equality.judge import Judge
from simrank.equality.layout import Layout
from simrank.equality.program import program_of
from simrank.equality.runs import Runner, RunOptions, run_layout, run_single
from simrank.errors import ConfigError
from tests.equality import served

_references = {}


@pytest.fixture(autouse=True)
def in_folder(tmp_path, monkeypatch):
    """Let flight records of ranks go to the test's folder."""
    monkeypatch.chdir(tmp_path)


def judged(folder, program, fault="none"):
    """Return the verdict on a program; its single program runs once for all that share it."""
    shutil.copy(Path(__file__).parent / "nets.py", folder)
    path = folder / "program.py"
    text = (program.single + program.parallel).replace('FAULT = "none"', f'FAULT = "{fault}"')
    path.write_text(f"from nets import *\n{text}")
    options = RunOptions(str(path), 1)
    if program.single not in _references:
        _references[program.single] = run_single(options)
    layout, reference = Layout(program.layout), _references[program.single]
    ranks = run_layout(options, layout, reference.record).ranks
    return Judge(reference, ranks, layout, Runner(options, reference)).judge()


@pytest.mark.parametrize("name", served.RIGHT)
def test_a_right_layout_decodes_as_one_device_does(name, tmp_path):
    """With errors far below what is allowed, and all its tensors aligned."""
    verdict = judged(tmp_path, served.RIGHT[name])
    assert verdict.found is None
    assert verdict.tally.count > 15
    assert verdict.tally.worst < (0.7 if name == "quantized_parts" else 0.2)
    assert verdict.unaligned == []


# The others take the same branches, and are run with the slow tests.
FAST = {
    "a_rotary_position_that_lags", "a_local_argmax", "a_stale_slot_of_the_cache",
    "a_combine_without_a_rank",
    "no_sum_after_the_output_projection", "the_heads_of_another_replica",
}  # fmt: skip


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[pytest.mark.slow] * (n not in FAST)) for n in served.FAULTY],
)
def test_a_fault_is_named(name, tmp_path):
    """Decoding step, module, axis and cause."""
    program = served.FAULTY[name]
    found = judged(tmp_path, program, name).found
    assert found is not None
    number, module, axes, words = program.expected
    assert (found.decoding.number, found.module, found.axes) == (number, module, axes)
    assert words in f"{found.cause} {found.hint}"
    assert found.place.startswith("program.py:")


def test_a_cache_that_differs_without_effect_is_a_note(tmp_path):
    """Queries and keys that are shifted alike give the same scores."""
    verdict = judged(tmp_path, served.RIGHT["tensor_parallel"], "all_positions_shifted_alike")
    assert verdict.found is None
    (note,) = verdict.notes
    assert note.startswith("the cache caches.0.0 after the step is ")
    assert note.endswith(", without effect on the outputs")


def test_a_bias_that_ranks_add_by_terms_is_right(tmp_path):
    """Its values are none of the single program's, and what it gives is."""
    terms = served.TP.replace("whole.bias\n", "nn.Parameter(whole.bias.detach() / 2)\n")
    terms = terms.replace("self.weight)\n        if", "self.weight, self.bias)\n        if")
    terms = terms.replace("return out + self.bias", "return out")
    verdict = judged(tmp_path, served.Served(terms, {"tp": 2}))
    assert verdict.found is None
    (note,) = verdict.notes
    assert note.startswith(
        "initial values, without effect on the outputs: blocks.0.attn.o.bias has"
    )
    found = judged(tmp_path, served.Served(terms, {"tp": 2}), "a_norm_over_the_shard").found
    assert found.direction == "initial values"


def test_quantized_parts_need_a_declared_tolerance(tmp_path):
    """Without it their values are no part of the single program's."""
    program = served.QUANTIZED._replace(single=served.GREEDY)
    found = judged(tmp_path, program).found
    assert (found.direction, found.module) == ("initial values", "blocks.0.attn.q")


def test_tokens_of_logits_that_nearly_tie_may_differ_within_the_tolerance(tmp_path):
    """The rest of the batch has other tokens then, and is not compared."""
    tied = "        tokens, slots = found[-1][:, None], slots[-1:] + 1\n"
    second = "(whole.topk(2).indices[:, 1] if is_rank and step == 1 else found[-1])"
    other = tied.replace("found[-1]", second)
    for tolerance, is_right in ((0.9, True), (0.0001, False)):
        single = served.GREEDY.replace(tied, other) + f"\nTOLERANCE = {tolerance}\n"
        verdict = judged(tmp_path, served.Served(served.TP, {"tp": 2}, single=single))
        if is_right:
            assert verdict.found is None
            (note,) = verdict.notes
            assert note.startswith(
                "batch 0 is not compared from decoding step 2 on: rank 0 chooses "
            )
        else:
            assert (verdict.found.module, verdict.found.decoding.number) == ("(generate)", 2)


@pytest.mark.parametrize(
    "names", [{"TOLERANCE": 2}, {"TOLERANCE": "x"}, {"TOLERANCE": 0.1, "loss": lambda: None}]
)
def test_a_tolerance_is_a_relative_error_of_a_program_that_generates(names):
    """Training would hide its faults behind one."""
    names = dict.fromkeys(("build", "batch", "parallelize", "generate"), lambda: None) | names
    with pytest.raises(ConfigError, match=r"a relative error below 1, such as 0\.02"):
        program_of(names, "p.py")


def test_a_single_pass_may_be_called_forward(tmp_path):
    """It is in place of `generate`."""
    program = served.FAULTY["a_norm_over_the_shard"]
    renamed = program._replace(single=program.single.replace("def generate(", "def forward("))
    found = judged(tmp_path, renamed, "a_norm_over_the_shard").found
    assert (found.module, found.direction) == ("blocks.0.attn.qn", "forward")
