"""Rules of style that no linter knows: sizes, docstrings, the mirror of the package, the README."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from tests import house, language, references

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "simrank"
MAX_FUNCTION_LINES = 70
MAX_FILE_LINES = 800
MAX_MEDIAN_LINES = 12
SOURCES = sorted(PACKAGE.rglob("*.py"))
PACKAGES = {path.relative_to(PACKAGE).parts[0].removesuffix(".py") for path in SOURCES}
PACKAGES -= {"__init__", "__main__"}
TESTS = sorted((ROOT / "tests").rglob("test_*.py"))
PROGRAMS = [
    path
    for folder in ("simrank", "tests", "benches", "examples", "docs")
    for path in sorted((ROOT / folder).rglob("*.py"))
]
DESIGN = ROOT / "adr" / "design.md"
PAGES = sorted(
    path
    for folder in ("", "adr", "benches", "configs", "docs", "simrank", "tests")
    for path in (ROOT / folder).glob("**/*.md" if folder else "*.md")
)
# Modules that another file tests than the one of their name, and which.
TESTED_ELSEWHERE = {
    "timings/places.py": "timings/test_search.py",
    "timings/readings.py": "timings/test_search.py",
    "timings/run.py": "timings/test_search.py",
    "timings/state.py": "timings/test_search.py",
    "timings/independence.py": "timings/test_search.py",
    "multiprocessing/pipes.py": "multiprocessing/test_children.py",
    "calibration/pool_fit.py": "collectives/nccl/test_pool.py",
    "distributed/call_history.py": "distributed/test_odd_steps.py",
    "distributed/library.py": "distributed/test_planner.py",
    "cli/rank_output.py": "cli/test_run.py",
    "cli/every_timing.py": "timings/test_search.py",
    "engine/choices.py": "timings/test_declared.py",
    "engine/interface.py": "engine/test_loop.py",
    "engine/lockstep.py": "engine/test_carrier.py",
    "device/host_reads.py": "device/test_buffer.py",
    "device/network.py": "device/test_copies.py",
    "device/clocks.py": "device/test_races.py",
    "distributed/leaks.py": "distributed/test_findings.py",
    "distributed/monitored.py": "distributed/test_host_meetings.py",
    "distributed/mismatched_calls.py": "distributed/test_findings.py",
    "config/wires.py": "config/test_topology.py",
    "hardware/build.py": "hardware/test_cluster.py",
    "multiprocessing/script.py": "cli/test_run.py",
    "ranks/extensions.py": "ranks/test_lifecycle.py",
    "isolation/package_changes.py": "torch/test_package_state.py",
    "isolation/package_state.py": "torch/test_package_state.py",
    "isolation/extension.py": "isolation/test_private_modules.py",
    "isolation/torch_settings.py": "torch/rank_state/test_settings.py",
    "torch/dynamo.py": "torch/test_compiling.py",
    "torch/devices/main_program.py": "torch/devices/test_first_use.py",
    "torch/rank_state/sharding.py": "torch/rank_state/test_caches.py",
    # The kit runs as a whole.
    "validate/kit/assemble.py": "validate/kit/test_kit.py",
    "validate/kit/predictions.py": "validate/kit/test_kit.py",
    "validate/kit/script/rows.py": "validate/kit/test_kit.py",
    "validate/kit/script/machine.py": "validate/kit/test_kit.py",
    "validate/kit/script/device_work.py": "validate/kit/test_kit.py",
    "validate/kit/script/collectives.py": "validate/kit/test_kit.py",
    "validate/kit/script/programs.py": "validate/kit/test_kit.py",
    "validate/kit/script/kernels.py": "validate/kit/test_kit.py",
    "validate/kit/script/worker.py": "validate/kit/test_kit.py",
    "validate/kit/script/children.py": "validate/kit/test_kit.py",
    "validate/kit/script/main.py": "validate/kit/test_kit.py",
    "validate/kit/script/nccl_tests.py": "validate/kit/test_kit.py",
    "validate/kit/script/own.py": "validate/kit/test_kit.py",
    "validate/kit/script/result.py": "validate/kit/test_evidence.py",
    # One program has a verdict by all of them.
    "equality/causes.py": "equality/test_judge.py",
    "equality/comparison.py": "equality/test_judge.py",
    "equality/gradients.py": "equality/test_judge.py",
    "equality/dropouts.py": "equality/test_judge.py",
    "equality/parameters.py": "equality/test_judge.py",
    "equality/runs.py": "equality/test_judge.py",
    "equality/search.py": "equality/test_judge.py",
    "equality/step.py": "equality/test_judge.py",
    "equality/tape.py": "equality/test_judge.py",
    "equality/verdict.py": "cli/test_equal.py",
    "torch/groups/identity.py": "torch/groups/test_group.py",
    "torch/groups/work.py": "torch/groups/test_group.py",
    "suites/worker_body.py": "validate/test_ranks_on.py",
    "suites/marker.py": "validate/test_ranks_on.py",
    "suites/properties.py": "pytest_plugin/test_properties.py",
    "suites/on_processes.py": "validate/test_ranks_on.py",
    "suites/session.py": "suites/test_driver.py",
    "suites/on_simulated_ranks.py": "pytest_plugin/test_plugin.py",
    "validate/compare/program.py": "conformance/test_compared.py",
    "validate/compare/sides.py": "conformance/test_compared.py",
    "validate/worker.py": "validate/test_pool.py",
}
TOUR = (
    "engine/loop.py",
    "collectives/schedule.py",
    "collectives/algorithms/ring.py",
    "collectives/data.py",
    "distributed/work.py",
    "context.py",
)


def words_of(path: Path) -> language.Words:
    return language.words_of(path.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def _programs():
    for path in PROGRAMS:
        words_of(path)


reads = pytest.mark.usefixtures("_programs")  # Read once, in seconds that are no test's.


@reads
def test_files_and_functions_stay_short():
    """A file has at most 800 lines, a function at most 70; half of all bodies at most 12."""
    bodies = []
    for path in SOURCES:
        assert len(path.read_text().splitlines()) <= MAX_FILE_LINES, path
        for each in words_of(path).functions:
            assert each.num_lines <= MAX_FUNCTION_LINES, f"{path}: {each.name}"
            bodies += [each.num_body_lines] if each.num_body_lines else []
    assert sorted(bodies)[len(bodies) // 2] <= MAX_MEDIAN_LINES


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (1030, None),
        (1050, None),
        (1051, "grown from 1000 lines of code to 1051: delete some, or write 1051 in BUDGET"),
        (950, None),
        (949, "fallen from 1000 lines of code to 949: write 949 in BUDGET"),
        (0, "is gone: delete its line in BUDGET"),
    ],
)
def test_a_budget_of_lines_follows_features_and_deletions(code, message):
    """A mend needs no budget; growth and fall beyond it name the package and the line to write."""
    found = house.off_budget({"engine": code, "tp": 7}, {"engine": 1000, "tp": 7})
    assert len(found) == (message is not None)
    assert all(message in each and each.startswith("engine ") for each in found)


def test_a_new_package_needs_a_budget():
    """Its line is in the message."""
    (found,) = house.off_budget({"new": 12}, {})
    assert 'write `"new": 12,` in BUDGET of tests/house.py' in found


def test_walks_write_nothing_into_the_root():
    """The program of a walk lies in a folder of its own."""
    program = f"""
def run(walked):
    assert not __file__.startswith({str(ROOT)!r})
    with walked():
        pass
"""
    assert house.walk(program) == (house.Walk(0, 0, 0, 0, 0), "")


@reads
def test_every_test_says_in_one_line_what_it_claims():
    """Test functions have a docstring."""
    without = [
        f"{path.name}:{each.line} {each.name}"
        for path in TESTS
        for each in words_of(path).functions
        if each.name.startswith("test_") and not each.has_docstring
    ]
    assert without == []


def test_tests_mirror_modules():
    """A module has a test file of its name in the same folder of tests, or is in the table."""
    without = []
    for path in SOURCES:
        module = path.relative_to(PACKAGE)
        if path.name in ("__init__.py", "__main__.py"):
            continue
        folder = ROOT / "tests" / module.parent
        is_tested = (folder / f"test_{path.name}").is_file() or (folder / path.stem).is_dir()
        if not is_tested and str(module) not in TESTED_ELSEWHERE:
            without.append(str(module))
        assert not (is_tested and str(module) in TESTED_ELSEWHERE), f"{module} has tests of its own"
    assert without == []
    for module, test in TESTED_ELSEWHERE.items():
        assert (PACKAGE / module).is_file(), module
        assert (ROOT / "tests" / test).is_file(), test


def test_sources_are_ascii_and_have_no_bare_todo():
    """Sources are ASCII, and a TODO names a person and an issue."""
    for path in [*SOURCES, *TESTS]:
        text = path.read_text()
        assert text.isascii(), path
        if path.name != "test_tidy.py":
            assert not re.search(r"\b(FIXME|XXX)\b|TODO(?!\()", text), path


def test_the_reading_order_exists():
    """The reading order names files that exist, and all of the tour."""
    order = (ROOT / "CONTRIBUTING.md").read_text().partition("## Reading order")[2]
    for name in TOUR:
        assert f"simrank/{name}" in order.partition("## ")[0], name
        assert (PACKAGE / name).is_file(), name


def test_run_and_step_alone_move_simulated_time():
    """Only `_drive` and `_fire` set an engine's clock, and only `run` and `step` call them."""
    setters, callers = set(), set()
    for path in SOURCES:
        text = path.read_text()
        if not re.search(r"\.now_ps\b[^=\n]*=(?!=)|\b_(drive|fire)\(", text):
            continue
        for function in ast.walk(ast.parse(text)):
            if not isinstance(function, ast.FunctionDef):
                continue
            at = f"{path.relative_to(PACKAGE)} {function.name}"
            for node in ast.walk(function):
                if isinstance(node, ast.Attribute) and node.attr == "now_ps":
                    setters |= {at} if isinstance(node.ctx, ast.Store) else set()
                is_call = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
                if is_call and node.func.attr in ("_drive", "_fire"):
                    callers.add(at)
    assert setters == {f"engine/loop.py {name}" for name in ("__init__", "_drive", "_fire")}
    assert callers == {f"engine/loop.py {name}" for name in ("_drive", "run", "step")}


def test_the_table_of_changes_names_files_and_what_they_define():
    """Each row of "To change something" links a file that defines its names; all packages."""
    page = (ROOT / "CONTRIBUTING.md").read_text()
    assert list(references.stale_rows(page)) == []
    table = page.partition("## To change something")[2].partition("\n## ")[0]
    linked = {name.removesuffix(".py") for name in re.findall(r"\]\(simrank/([\w.]+)", table)}
    assert {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").exists()} <= linked


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("](simrank/engine/queue.py)", "](simrank/engine/queues.py)", "must name one file"),
        ("[engine/queue.py]", "[engine/order.py]", "must name one file"),
        ("`tie_keys`", "`sort_keys`", "queue.py does not define sort_keys"),
        ("`tie_keys`", "`tie_keys`, `Queue.sorted`", "queue.py does not define Queue.sorted"),
        ("`Engine.park_on`", "`Engine.park_at`", "loop.py does not define Engine.park_at"),
        ("`time.sleep` and clocks", "`time.doze` and clocks", "clock.py does not have time.doze"),
        ("| `tie_keys` |", "| tie_keys |", "not understood"),
    ],
)
def test_a_planted_row_that_is_stale_is_found(old, new, message):
    """A file that is gone, a text that differs from its link, a name, a row of another form."""
    page = (ROOT / "CONTRIBUTING.md").read_text()
    (found,) = references.stale_rows(page.replace(old, new))
    assert message in found


def test_every_adr_is_in_the_index():
    """adr/README.md lists every decision."""
    index = (ROOT / "adr" / "README.md").read_text()
    decisions = sorted((ROOT / "adr").glob("[0-9]*.md"))
    assert decisions
    for path in decisions:
        assert path.name in index, path.name


def test_a_number_without_a_decision_is_in_the_index_too():
    """Numbers of decisions have no gap that adr/README.md does not explain."""
    rows = re.findall(r"^\| \[?(\d{4})", (ROOT / "adr" / "README.md").read_text(), re.MULTILINE)
    assert rows == [f"{number:04}" for number in range(1, len(rows) + 1)]


def test_every_rule_that_is_cited_is_in_the_design():
    """`E8`, `rule D4`, ... name headings of adr/design.md."""
    rules = set(re.findall(r"^### (\w\d+)\. ", DESIGN.read_text(), re.MULTILINE))
    assert rules
    benches = sorted((ROOT / "benches").rglob("*.py"))
    origins = ROOT / "tests" / "origins"  # They cite the numbers of other systems.
    for path in [*SOURCES, *TESTS, *benches, *PAGES]:
        if path.parent == origins:
            continue
        cited = set(re.findall(r"\b[EDCKTR]\d{1,2}\b", path.read_text()))
        assert cited <= rules, f"{path.relative_to(ROOT)} cites {sorted(cited - rules)}"


def test_links_of_pages_lead_somewhere():
    """A relative link of a Markdown page names a file, and a heading of it where it has a `#`."""
    for path in PAGES:
        text = re.sub(r"```.*?```|`[^`]*`", "", path.read_text(), flags=re.DOTALL)
        for link in re.findall(r"\]\(([^)\s]+)\)", text):
            if "://" not in link:
                name, _, anchor = link.partition("#")
                target = path.parent / name if name else path
                assert target.exists(), f"{path}: {link}"
                assert not anchor or anchor in anchors(target), f"{path}: {link}"


@cache
def anchors(page: Path) -> set[str]:
    heads = re.findall(r"^#+ (.*)", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


def stale_in_pages_and_sources():
    for path in PAGES:
        text = references.FENCE.sub("", path.read_text())
        yield path, references.stale_paths(text, path.parent)
        yield path, references.stale_modules(text)
    for path in PROGRAMS:
        words = words_of(path)
        text = "\n".join([*words.docstrings, *(comment for _, comment in words.comments)])
        yield path, references.stale_paths(text, path.parent)
        yield path, references.stale_modules(text, path.read_text())


@reads
def test_files_and_modules_that_pages_docstrings_and_comments_name_exist():
    """A name with a slash is a file, from the root or `simrank/`; a module is there."""
    found = [
        f"{path.relative_to(ROOT)}: {each}"
        for path, stale in stale_in_pages_and_sources()
        for each in stale
    ]
    assert found == []


@pytest.mark.parametrize(
    "planted",
    [
        "`hardware/capability.py`", "`simrank/hardware/capability.py`", "tests/test_gone.py",
        "`engine/loop.py:Engine.gone`", "`tests/test_units.py::test_gone`", "`isolation/gone/`",
    ],
)  # fmt: skip
def test_a_planted_name_with_a_slash_that_is_stale_is_found(planted):
    """In a sentence, beside names that exist, are any file's, or another project's."""
    right = "`engine/loop.py:Engine.step`, `tests/<package>/`, `src/enqueue.cc`, `GB/s`"
    text = f"See {right}, and {planted} for more."
    assert list(references.stale_paths(text, ROOT)) == [planted.strip("`")]


@pytest.mark.parametrize(
    ("planted", "found"),
    [
        ("The module `pool_gone` fits them.", "pool_gone"),
        ("`capability` modules know it.", "capability"),
        ("It is in `simrank.hardware.capability`.", "simrank.hardware.capability"),
        ("So does `simrank.engine.loop.gone`.", "simrank.engine.loop.gone"),
        ("The queue is in `ranks.locks`.", "ranks.locks"),
    ],
)
def test_a_planted_sentence_about_a_module_that_is_gone_is_found(planted, found):
    """A sentence that a merge left behind; those about modules that are there are not."""
    text = f"The module `loop` has `loop.Engine`, as `simrank.engine.loop.Engine`. {planted}"
    assert list(references.stale_modules(text)) == [found]


def test_a_variable_of_the_name_of_a_module_is_none():
    """If the code of the same module has it."""
    assert list(references.stale_modules("Of `config.gone`.", "config.gone + config.gone")) == []
    assert list(references.stale_modules("Of `config.gone`.", "1 + 1")) == ["config.gone"]


def test_pages_use_plain_words():
    """No page but an accepted decision has a phrase of the list in tests/language.py."""
    found = [
        f"{path.relative_to(ROOT)}, {breach}"
        for path in PAGES
        if not re.match(r"adr/\d{4}-", str(path.relative_to(ROOT)))
        for breach in language.breaches_of_page(path.read_text())
    ]
    assert found == []


@reads
def test_sources_use_plain_words():
    """Nor has a string, a docstring or a comment of the sources."""
    found = [
        f"{path.relative_to(ROOT)}, {breach}"
        for path in SOURCES
        for breach in language.breaches_of_source(path.read_text())
    ]
    assert found == []


# Public, and in too many lines to be renamed beside other work.
NO_NAMES = {"all_came", "who_text"}


@reads
def test_functions_classes_and_modules_are_named_by_nouns_and_verbs():
    """No name has one of the words in tests/language.py, such as `who` or `come`."""
    names = {
        name
        for path in SOURCES
        for name in (
            path.stem,
            *words_of(path).classes,
            *(f.name for f in words_of(path).functions),
        )
    }
    assert {name for name in names if language.is_no_name(name)} == NO_NAMES


# Names of other projects' files and functions.
FOREIGN_NAMES = {
    "all2all_single_unequal", "msccl_interpreter.h", "initWork", "thread_map", "__fdividef",
    "__powf", "nvshmem_constants.h", "rocshmem_common.hpp",
    "semantic._validate_atomic_rmw_element_type",
}  # fmt: skip


@reads
def test_names_in_backticks_exist():
    """Docstrings and comments name functions, attributes and modules that are there."""
    known = set()
    for path in [*SOURCES, *TESTS]:
        known |= {*path.with_suffix("").parts, *words_of(path).names}
    dead = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in SOURCES
        for name in language.quoted_names(path.read_text())
        if name not in FOREIGN_NAMES and not known.issuperset(name.split("."))
    ]
    assert dead == []


@reads
def test_first_lines_of_docstrings_name_their_object():
    """An imperative verb and a concrete object, or a noun; at most 90 characters."""
    found = [
        f"{path.name}: {line}"
        for path in SOURCES
        for line in language.poor_first_lines(path.read_text())
    ]
    assert found == [], "to fix: name the object in its field's term"


@pytest.mark.parametrize(
    ("subject", "reason"),
    [
        ("Group torch's modules by task", None),
        ("Groups of torch's modules", "begins with no known verb"),
        ("add a check", "begins with no known verb"),
        ("Add a check.", "ends with a period"),
        ("Add a check of whoever waits", "'whoever'; to fix"),
        ("Add " + "x" * 70, "has 74 characters"),
    ],
)
def test_a_subject_of_a_commit_is_imperative_short_and_plain(subject, reason):
    """Each breach is named."""
    found = list(language.breaches_of_subject(subject))
    assert len(found) == (reason is not None)
    assert all(reason in breach for breach in found)


@pytest.mark.parametrize(
    "phrase", ["nine of ten", "Nine of ten", "who waits", "WHOEVER waits", "It is none", "for ever"]
)
def test_the_list_of_plain_words_finds_phrases_with_their_rewrite(phrase):
    """In prose, and not in code or links."""
    (found,) = language.breaches_of_page(f"One line.\nHere {phrase} stands.\n")
    assert found.startswith("line 2: ")
    assert "; to fix: " in found
    assert list(language.breaches_of_page(f"`{phrase}` and\n```\n{phrase}\n```\n")) == []


# Words of the design's table that are classes, and the module of each; no other one has the name.
CLASSES_OF_WORDS = {
    "process group": "distributed/group.py",
    "Work": "distributed/work.py",
    "task": "engine/task.py",
    "carrier": "engine/task.py",
    "wakeup": "engine/queue.py",
    "activity": "engine/activity.py",
    "operation": "device/stream.py",
    "stream": "device/stream.py",
    "event": "device/stream.py",
    "buffer": "device/memory.py",
    "schedule": "collectives/schedule.py",
    "algorithm": "collectives/algorithms/__init__.py",
    "cluster": "hardware/cluster.py",
    "node": "config/foreign/nccl_topology.py",
    "device": "device/device.py",
    "route": "device/network.py",
    "calibration": "collectives/nccl/laws.py",
    "worker": "validate/this_worker.py",
}
# That of a schedule's chunks is in the interface of algorithms.
SECOND_CLASSES = {"buffer": "collectives/schedule.py"}
# Public names of classes that stand in several files. They may only fall.
MAX_SHARED_CLASS_NAMES = 13


@reads
def test_a_word_of_the_design_is_one_class():
    """Private classes count, too: a reader takes the word at its meaning."""
    table = DESIGN.read_text().partition("| word | meaning |")[2].partition("\n\n")[0]
    words = {word for row in re.findall(r"^\| ([^|]+) \|", table, re.MULTILINE)
             for word in row.split(", ")}  # fmt: skip
    assert words >= CLASSES_OF_WORDS.keys()
    places = {}
    for path in SOURCES:
        for name in words_of(path).classes:
            places.setdefault(name.strip("_").lower(), set()).add(str(path.relative_to(PACKAGE)))
    expected = {word: {file} for word, file in CLASSES_OF_WORDS.items()}
    for word, file in SECOND_CLASSES.items():
        expected[word].add(file)
    found = {word: places.get(word.replace(" ", "").lower(), set()) for word in words}
    assert {word: files for word, files in found.items() if files} == expected


@reads
def test_few_names_of_classes_stand_in_several_files():
    """A name has one meaning; those that had two when this was first counted may only fall."""
    files = Counter(
        name for path in SOURCES for name in {*words_of(path).classes} if not name.startswith("_")
    )
    shared = sorted(name for name, number in files.items() if number > 1)
    assert len(shared) <= MAX_SHARED_CLASS_NAMES, f"rename yours of {', '.join(shared)}"
    assert len(shared) == MAX_SHARED_CLASS_NAMES, f"lower MAX_SHARED_CLASS_NAMES to {len(shared)}"


def test_a_name_of_no_meaning_is_found_in_any_case():
    """And no word that only has its letters."""
    assert all(map(language.is_no_name, ["come_to", "_tell_who_waits", "ToldApart", "who"]))
    assert not any(map(language.is_no_name, ["outcome", "whole", "WholeNumber", "comes_before"]))


def test_the_house_of_the_design_is_the_import_contract():
    """The same packages in the same order; those that are not built yet stand in brackets."""
    house = re.search(r"```text\n(cli .*?)```", DESIGN.read_text(), re.DOTALL)[1]
    named = [name for line in house.splitlines() for name in re.split(r"\s{3,}", line)[:-1]]
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    layers = " | ".join(contracts["contracts"][0]["layers"]).split(" | ")
    assert named == layers


def test_the_chart_of_packages_has_the_imports_as_arrows():
    """All packages, and all imports but those that follow from a path of arrows."""
    chart = (ROOT / "CONTRIBUTING.md").read_text().partition("```mermaid\nflowchart TD\n")[2]
    lines = chart.partition("```")[0].splitlines()
    rows = [re.fullmatch(r' {4}(\w+)\["\1: [^"]+"\](?: --> ([\w &]+))?', each) for each in lines]
    assert {row[1]: set((row[2] or "").split(" & ")) - {""} for row in rows} == {
        each: house.arrows().get(each, set()) for each in PACKAGES
    }


def test_the_page_of_rank_state_lists_every_module_that_isolates_ranks():
    """Each module of `isolation` and `torch/rank_state` is linked, and each link leads to one."""
    page = ROOT / "docs" / "rank-state.md"
    linked = {
        (page.parent / link).resolve() for link in re.findall(r"\]\((\S+)\)", page.read_text())
    }
    folders = (PACKAGE / "isolation", PACKAGE / "torch" / "rank_state")
    modules = {path for folder in folders for path in folder.glob("*.py")}
    assert {path for path in modules if path.name != "__init__.py"} - linked == set()
    assert {path for path in linked if not path.is_file()} == set()


def test_what_confirms_a_decision_exists():
    """Every file, test and command that a decision in force names as its confirmation is there."""
    found = [
        f"{path.name}: {stale}"
        for path in sorted((ROOT / "adr").glob("[0-9]*.md"))
        for stale in references.stale_confirmations(path.read_text())
    ]
    assert found == []


@pytest.mark.parametrize(
    ("confirmation", "message"),
    [
        ("tests/engine/test_rules.py::test_e1_time_is_an_integer_number_of_picoseconds", None),
        ("tests/property/", None),
        ("`tests/check.py imports`", None),
        ("tests/engine/test_gone.py", "does not exist"),
        ("tests/engine/test_rules.py::test_gone", "does not exist"),
        ("tests/check.py gone", "does not exist"),
        ("adr/", "does not exist"),
        ("the tests of the engine", "not understood"),
        ("", "not understood"),
    ],
)
def test_a_planted_confirmation_that_is_stale_is_found(confirmation, message):
    """On the second line of the list, too."""
    path = ROOT / "adr" / "0020-threads-in-lockstep.md"
    last = "benches/engine.py\n"
    assert last in path.read_text()
    planted = path.read_text().replace(last, f"benches/engine.py,\n{confirmation}\n", 1)
    found = list(references.stale_confirmations(planted))
    assert len(found) == (message is not None)
    assert all(message in each for each in found)


def test_import_simrank_imports_no_heavy_library():
    """`import simrank` imports no pydantic, yaml, typer, rich, torch or triton."""
    program = (
        "import sys, simrank\n"
        "heavy = {'pydantic', 'yaml', 'typer', 'rich', 'torch', 'triton'} & set(sys.modules)\n"
        "print(sorted(heavy))"
    )
    output = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert output.stdout.strip() == "[]"


@pytest.mark.slow
def test_import_simrank_takes_less_than_twice_import_numpy():
    """Start-up costs less than twice that of numpy alone, best of five interleaved runs."""
    program = (
        "import sys, time; start = time.perf_counter(); import {name}; "
        "print(time.perf_counter() - start)"
    )

    def seconds(name):
        command = [sys.executable, "-c", program.format(name=name)]
        output = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
        return float(output.stdout)

    pairs = [(seconds("simrank"), seconds("numpy")) for _ in range(6)][1:]
    assert min(pair[0] for pair in pairs) < 2 * min(pair[1] for pair in pairs)


def _module_of(name, modules):
    """Return the module that an imported name is, or is from; None if it is nobody's here."""
    while name and name not in modules:
        name = name.rpartition(".")[0]
    return name or None


@reads
def test_no_files_import_each_other_in_a_circle():
    """Neither at the top nor inside functions: a file stands on those that it imports."""
    modules = {}
    for path in SOURCES:
        parts = path.relative_to(ROOT).with_suffix("").parts
        modules[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    needs = {
        name: {_module_of(each.module, modules) for each in words_of(path).imports} - {name, None}
        for name, path in modules.items()
    }
    while leaves := [name for name, needed in needs.items() if not needed]:
        for leaf in leaves:
            del needs[leaf]
        for needed in needs.values():
            needed.difference_update(leaves)
    assert {name: sorted(needed) for name, needed in needs.items()} == {}


@reads
def test_an_import_inside_a_function_has_a_reason():
    """It costs start-up time, or needs what is optional; the line says which."""
    without = [
        f"{path.relative_to(ROOT)}: {each.line.strip()}"
        for path in SOURCES
        for each in words_of(path).imports
        if each.is_inside and not re.search(r"# noqa: PLC0415 - \S", each.line)
    ]
    assert without == []
