"""The YAML of a plan: combinations, expressions, and what is wrong with them."""

import pytest

from simrank.config.plan import load_plan
from simrank.errors import ConfigError

GOOD = """\
command: --unknown 1 train.py --tp {tp} --name 'a b' {flags} {{x}} --dp {dp}
clusters: [h100_ib, b200_ib]
parameters: {nnodes: [1, 2], tp: [2, 4, 32], flags: ["", --ac full]}
derived: {dp: num_ranks // tp}
where: dp >= 1
tokens_per_step: dp * 1024 if cluster == 'h100_ib' else 2048
"""


@pytest.fixture
def plan(tmp_path):
    """Write a plan, with some text replaced, and read it."""

    def load(*change):
        path = tmp_path / "plan.yaml"
        text = GOOD.replace(*change) if change else GOOD
        assert not change or text != GOOD
        path.write_text(text)
        return load_plan(path)

    return load


def test_cells_are_all_combinations_that_where_leaves_the_last_parameter_fastest(plan):
    """Clusters come first; nodes make ranks."""
    config = plan()
    assert config.num_combinations == 24
    found = [tuple(cell.columns.values()) for cell in config.cells]
    assert found[:5] == [
        ("h100_ib", 1, 2, "", 8),
        ("h100_ib", 1, 2, "--ac full", 8),
        ("h100_ib", 1, 4, "", 8),
        ("h100_ib", 1, 4, "--ac full", 8),
        ("h100_ib", 2, 2, "", 16),
    ]
    assert len(found) == 16
    assert all(each[2] <= each[4] for each in found)


def test_the_command_is_split_into_words_after_values_are_put_in(plan):
    """A value may be several words, or none; quotes and doubled braces are as in a shell."""
    first, second, *_ = plan().cells
    assert first.options == ("--unknown", "1")
    assert first.program == (
        "train.py", "--tp", "2", "--name", "a b", "{x}", "--dp", "4",
    )  # fmt: skip
    assert second.program[5:7] == ("--ac", "full")
    assert second.run_options() == [
        "--cluster", "h100_ib", "--nnodes", "1", "--tokens-per-step", "4096",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "launcher", ["torchrun", "simrank run", "python -m torch.distributed.run", "python3.11 -u"]
)
def test_a_launcher_before_the_command_is_left_out(plan, launcher):
    """The same options follow it."""
    assert plan("command: ", f"command: {launcher} ").cells == plan().cells


def test_memory_that_the_command_sets_is_a_devices(plan):
    """Also as one word; else it is the cluster's."""
    found = [
        plan("--unknown 1", f"--set{between}{key}=40GiB").cells[0].memory_bytes
        for between, key in ((" ", "memory"), ("=", "device.memory"), (" ", "power_limit"))
    ]
    assert found == [40 * 2**30, 40 * 2**30, plan().cells[0].config.device.memory_bytes]


def test_ranks_per_node_make_fewer_ranks(plan):
    """As torchrun's option of that name."""
    config = plan("nnodes: [1, 2]", "nnodes: 2, nproc_per_node: [4]")
    assert {cell.columns["num_ranks"] for cell in config.cells} == {8}
    assert "--nproc-per-node" in config.cells[0].run_options()


def test_a_cluster_of_a_file_beside_the_plan_is_named_by_its_path(plan, tmp_path):
    """The command runs where the plan lies, wherever it is read."""
    (tmp_path / "mine.yaml").write_text("name: h100_ib\ndevice: {power_limit: 500 W}\n")
    config = plan("b200_ib", "./mine.yaml")
    assert config.cells[-1].cluster == str(tmp_path / "mine.yaml")
    assert config.folder == tmp_path


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("where: dp", "where: dpp"), "where: expected an expression of cluster, nnodes, tp"),
        (("where: dp >= 1", "where: dp >"), "dp > (no expression of Python)"),
        (("where: dp >= 1", "where: open('x')"), "open is not a function that is defined"),
        (("where: dp >= 1", "where: dp > 99"), "where: expected an expression that is true for"),
        (("num_ranks // tp}", "num_ranks // 0}"), "derived.dp: expected an expression of"),
        (("--tp {tp}", "--tp {tpp}"), "write `{tp}`"),
        (("--tp {tp}", "--tp '{tp}"), "No closing quotation"),
        (("--tp {tp}", "--tp {tp:9999}"), "got {tp:9999}"),
        (("--tp {tp}", "--tp {tp:{flags.zfill}}"), "to fix: write `{tp}`"),
        (("--tp {tp}", "--tp {0}"), "command: expected text with names in braces: cluster, dp"),
        (("--tp {tp}", "--tp {tpp}"), "got {tpp}"),
        (("tp: [2, 4, 32]", "mfu: 1, tp: 2"), "parameters.mfu: expected another name"),
        (("tp: [2, 4, 32]", "max: 3, tp: 2"), "parameters.max: expected another name"),
        (("tp: [2, 4, 32]", "tp: []"), "parameters.tp: expected at least one value"),
        (("tp: [2, 4, 32]", "tp: [[2]]"), "parameters.tp[0]: expected a number or a text"),
        (("nnodes: [1, 2]", "nnodes: [0]"), "parameters.nnodes[0]: expected a whole number"),
        (("[h100_ib, b200_ib]", "[hgx_h100]"), "parameters.nnodes: expected 1, because no fabric"),
        (("nnodes: [1, 2]", "nproc_per_node: 9"), "expected at most 8, the devices of a node"),
        (("[h100_ib, b200_ib]", "[{name: h100_ib}]"), "to fix: change a key by `--set KEY=VALUE`"),
        (("[h100_ib, b200_ib]", "[h100_ibb]"), "write `h100_ib`"),
        (("[h100_ib, b200_ib]", "[]"), "clusters: expected a list of clusters, got nothing"),
        (("clusters: [h100_ib, b200_ib]", ""), "expected either cluster or clusters, got nothing"),
        (("else 2048", "else 0.5"), "tokens_per_step: expected an expression whose values"),
        (("nnodes: [1, 2]", f"a: {[*range(9999)]}"), "parameters: expected at most 10000"),
        (("derived: {dp:", "derived: {max:"), "derived.max: expected another name"),
        (("tp: [2, 4, 32]", "nprocs_per_node: 2, tp: 2"), "write `nproc_per_node`"),
        (("tp: [2, 4, 32]", "unused: 2, tp: 2"), "write `{unused}` in the command"),
        (("--unknown 1", "--nproc_per_node=2"), "write it as the parameter `nproc_per_node`"),
        (("--unknown 1", "--cluster hgx_b200"), "write it as `clusters`"),
        (("--unknown 1", "--summary none"), "to fix: leave it out"),
        (("--unknown 1", "--set memory=many"), "expected a size with a unit"),
        (("tokens_per_step", "token_per_step"), "write `tokens_per_step`"),
    ],
)  # fmt: skip
def test_what_is_wrong_names_the_key_and_line(plan, change, message):
    """With what would be right."""
    with pytest.raises(ConfigError) as caught:
        plan(*change)
    assert message in str(caught.value)
    assert "plan.yaml:" in str(caught.value)


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("6 * 70e9 * 2**80 / 7 // 3 % 1000", 6 * 70e9 * 2**80 / 7 // 3 % 1000),
        ("-tp + abs(-3) ** 2", 7),
        ("tp & (tp - 1) == 0 and 'power' or 'none'", "power"),
        ("1 << tp | 1", 5),
        ("tp in (2, 4) and cluster != 'b200_ib' and 1 <= tp < 4", True),
        ("max(ceil(num_ranks / 3), gcd(tp, 6), *[])", None),
        ("max([ceil(num_ranks / 3), gcd(tp, 6)])", 3),
        ("round(tp / 3, 2) if not flags else int('5')", 0.67),
    ],
)
def test_an_expression_is_arithmetic(plan, expression, value):
    """As Python computes it."""
    change = ("num_ranks // tp}", f'1, x: "{expression}"}}')
    if value is None:
        with pytest.raises(ConfigError, match="is not supported: expected arithmetic"):
            plan(*change)
    else:
        assert plan(*change).cells[0].values["x"] == value


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("9**9**9", "a number is above 2**256"),
        ("1 << 10**9", "a number is above 2**256"),
        ("10.0**400", "a number is too large"),
        ("1e308 * 10", "a number is too large"),
        ("lcm(2**200 - 1, 2**201 - 1)", "a number is above 2**256"),
        ("round(tp, -10**9)", "at most 30 digits"),
        ("'a' * 10**10", "'a' is not a number"),
        ("'%99999999d' % tp", "'%99999999d' is not a number"),
        ("[0] * 10**10", "[0] is not a number"),
        ("().__class__.__base__", "().__class__.__base__ is not supported"),
        ("tp.real", "tp.real is not supported"),
        ("abs.__self__.open('x')", "abs.__self__.open is not a function"),
        ("[i for i in (1, 2)]", "is not supported: expected arithmetic"),
        ("max(1, 2, key=abs)", "write arguments without names"),
        ("(-8) ** 0.5", "is not a number"),
        ("[1, tp]", "no number, text or truth value"),
        ("tp is 1", "compare by =="),
        ("1" + " + 1" * 999, "at most 1000 characters"),
        ("-" * 990 + "1", "nested too deeply"),
    ],
)
def test_an_expression_is_nothing_else_and_has_limits(plan, expression, message):
    """A plan from elsewhere neither runs code nor computes without an end."""
    with pytest.raises(ConfigError) as caught:
        plan("num_ranks // tp}", f'1, x: "{expression}"}}')
    assert "derived.x: expected an expression of" in str(caught.value)
    assert message in str(caught.value)


LAYOUTS = "layouts: [{tp: 1, ac: none}, {tp: 8, ac: full}]\n"
LISTED = "command: train.py --tp {tp} {ac}\ncluster: h100_ib\nparameters: {nnodes: [1, 2]}\n"


def test_layouts_are_combinations_that_are_listed_in_the_order_of_runs(tmp_path):
    """Each is run for all combinations of the parameters."""
    path = tmp_path / "plan.yaml"
    path.write_text(LISTED + LAYOUTS)
    config = load_plan(path)
    found = [(cell.chosen["nnodes"], cell.chosen["tp"], cell.chosen["ac"]) for cell in config.cells]
    assert found == [(1, 1, "none"), (1, 8, "full"), (2, 1, "none"), (2, 8, "full")]
    assert config.parameters["tp"] == (1, 8)
    assert config.num_combinations == 4


@pytest.mark.parametrize(
    ("layouts", "said"),
    [
        ("layouts: []", "a list of mappings"),
        ("layouts: [{}]", "a mapping from parameter to value"),
        ("layouts: [{tp: 1, ac: a}, {tp: 2}]", "values of tp, ac"),
        ("layouts: [{tp: 1, ac: a, nnodes: 2}]", "`nnodes` among the parameters"),
        ("layouts: [{tp: [1], ac: a}]", "a number or a text"),
        ("layouts: [{tp: 1, ac: a, pp: 1}]", "a name that the command or an expression uses"),
    ],
)
def test_layouts_that_are_wrong_are_named(tmp_path, layouts, said):
    """All give the same parameters, and the command uses each."""
    path = tmp_path / "plan.yaml"
    path.write_text(LISTED + layouts + "\n")
    with pytest.raises(ConfigError, match=said):
        load_plan(path)


def test_a_parameter_is_given_in_one_place(tmp_path):
    """Either a grid or a list has it."""
    path = tmp_path / "plan.yaml"
    path.write_text(LISTED.replace("nnodes: [1, 2]", "tp: [1]") + LAYOUTS)
    with pytest.raises(ConfigError, match="a parameter under `parameters` or `layouts`, got both"):
        load_plan(path)
