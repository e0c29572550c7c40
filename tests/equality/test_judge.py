"""Programs with one fault each are named by direction, module, axis and cause; right ones pass."""

import shutil
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is not installed")

from simrank.equality.judge import Judge
from simrank.equality.layout import Layout
from simrank.equality.runs import Runner, RunOptions, run_layout, run_single
from tests.equality import programs

# Those of torch's parallel parts that the programs use.
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
_references = {}
# Programs that are slow, each with a fast one of its kind; these cover the same branches.
SLOW = {
    "a_divide_factor_in_a_group_of_one_rank": "fsdp_and_tensor_parallel",
    "clipped_by_the_whole_norm": "a_norm_is_each_ranks_own",
    "context_parallel": "gathered_keys_carry_no_gradient",
    "dropout_with_masks_of_its_own": "dropout_in_a_wrapper_with_seeds_of_its_own",
    "data_parallel_by_hand": "micro_batches_of_the_single_program",
    "a_loss_beside_is_of_own_rows": "rewards_are_compared_with_those_of_one_rank",
    "averages_follow_once_a_step": "averages_are_cut_as_the_weights_are",
    "flash_attention_and_a_compiled_function": "micro_batches_of_the_single_program",
    "sequence_parallel_tensors": "fsdp_and_tensor_parallel",
    "tensor_parallel_by_hand": "fsdp_and_tensor_parallel",
    "uneven_rows": "a_rank_without_rows",
    "a_column_parallel_gradient_is_partial": "scores_of_split_experts_are_not_copied",
    "a_row_parallel_bias_is_added_by_each_rank": "a_bias_is_added_by_each_rank_of_one_of_two_axes",
    "a_row_parallel_sum_is_missing": "a_sum_is_a_mean",
    "micro_batches_are_added_up": "micro_batches_of_the_single_program",
    "micro_batches_are_divided_by_another_number": "micro_batches_are_not_averaged",
    "micro_batches_of_padded_rows_are_averaged": "a_mean_of_means",
    "shards_drop_with_one_mask_though_its_numbers_are_their_own": "shards_drop_with_one_mask",
    "positions_start_at_zero_on_each_rank": "a_halo_of_zeros_is_named_by_its_convolution",
}


@pytest.fixture(autouse=True)
def in_folder(tmp_path, monkeypatch):
    """Let flight records of ranks go to the test's folder."""
    monkeypatch.chdir(tmp_path)


def cases(names):
    """Return names for `parametrize`."""
    return [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in names]


def judged(folder, program, **settings):
    """Return the verdict on a program; its single program runs once for all that share it."""
    shutil.copy(Path(__file__).parent / "nets.py", folder)
    path = folder / "program.py"
    path.write_text(f"from nets import *\n{programs.WHOLE}{program.single}")
    num_steps = program.num_steps
    key = program.single, num_steps
    if key not in _references:
        _references[key] = run_single(RunOptions(str(path), num_steps))
    path.write_text(path.read_text() + program.parallel)
    options = RunOptions(str(path), num_steps, **settings)
    layout, reference = Layout(program.layout), _references[key]
    ranks = run_layout(options, layout, reference.record).ranks
    return Judge(reference, ranks, layout, Runner(options, reference), options.excluded).judge()


@pytest.mark.parametrize("name", cases(programs.RIGHT))
def test_a_right_layout_equals_the_single_program(name, tmp_path):
    """With errors far below what is allowed, and all its tensors aligned."""
    verdict = judged(tmp_path, programs.RIGHT[name])
    assert verdict.found is None
    assert verdict.tally.count > 15
    assert verdict.tally.worst < 0.2
    assert verdict.unaligned == []


@pytest.mark.parametrize("name", cases(programs.FAULTY))
def test_a_fault_is_named(name, tmp_path):
    """Direction, module, axis and cause."""
    program = programs.FAULTY[name]
    found = judged(tmp_path, program).found
    assert found is not None
    direction, module, axes, words = program.expected
    assert (found.direction, found.module, found.axes) == (direction, module, axes)
    assert words in f"{found.cause} {found.hint}"
    assert found.error > 1e-6


def test_a_module_that_is_not_compared_may_differ(tmp_path):
    """Its parameters differ after the step, and nothing else does."""
    program = programs.FAULTY["the_head_is_not_averaged"]
    verdict = judged(tmp_path, program, excluded=("head",))
    assert verdict.found is None


def test_modules_of_other_names_are_the_single_programs(tmp_path):
    """`rename` maps a rank's names; elements of parameters are found by their values anyway."""
    program = programs.RIGHT["a_renamed_model"]
    verdict = judged(tmp_path, program, renamed={"trunk": ""})
    assert verdict.found is None
