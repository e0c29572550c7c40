"""`tests/check.py`: one check by its name, or all of them."""

import importlib.util
import re
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

import simrank
from tests import conftest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def check(monkeypatch):
    """The script as a module; its checks are noted in `ran` and pass, but for those in `bad`."""
    spec = importlib.util.spec_from_file_location("check", ROOT / "tests" / "check.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.ran, module.bad = [], set()

    def passes(command, *, shows=False):
        module.ran.append(command[0])
        is_passed = command[0] not in module.bad
        return module.Passed(is_passed, f"output of {command[0]}\n", "2 CPU s in 3 s")

    monkeypatch.setattr(module, "passes", passes)
    return module


def test_without_a_name_every_check_runs(check, capsys):
    """In the order of their cost, the tests last."""
    assert check.main([]) == 0
    assert sorted(check.ran[:7]) == [
        "NO_MKDOCS_2_WARNING=1",
        "lint-imports",
        "mypy",
        "python",
        "python",
        "ruff",
        "ruff",
    ]
    assert check.ran[7:] == ["pytest"]
    printed = capsys.readouterr().out
    cost = ": 2 CPU s in 3 s"
    assert f"== lint{cost}\noutput of ruff\n== types{cost}\noutput of mypy\n" in printed
    assert printed.endswith(f"== tests\n== tests{cost}\n== all checks passed\n")


def test_named_checks_run_alone(check):
    """Only these, in the order given; `--slow` adds the slow tests."""
    assert check.main(["types", "imports"]) == 0
    assert sorted(check.ran) == ["lint-imports", "mypy"]
    assert check.main(["--slow", "types"]) == 0
    assert check.ran[2:] == ["mypy", "pytest"]


def test_a_check_that_fails_is_named_and_the_rest_run(check, capsys):
    """All failures of a run are seen at once."""
    check.bad = {"mypy"}
    assert check.main([]) == 1
    assert len(check.ran) == len(check.CHECKS)
    assert capsys.readouterr().out.endswith("== failed: types\n")


def test_an_unknown_check_is_refused_with_the_choices(check, capsys):
    """Nothing runs, status 2."""
    assert check.main(["typos"]) == 2
    assert check.ran == []
    choices = ", ".join(
        [
            *check.CHECKS,
            "torch-types",
            "torch",
            "after-torch",
            "releases",
            "foreign",
            "commits",
            "package",
            "slow",
            "--slow",
        ]
    )
    assert f"'typos'; choices: {choices}" in capsys.readouterr().out


def test_each_commit_runs_a_tenth_of_the_slow_tests(check, capsys, monkeypatch):
    """Ten commits run all, with those of the next nine; the line says how to run one again."""
    monkeypatch.delenv(check.TENTH, raising=False)
    counted = SimpleNamespace(returncode=0, stdout="1234\n")
    monkeypatch.setattr(check.subprocess, "run", lambda *_, **__: counted)
    assert check.tenth()["slow"][0] == "SIMRANK_SLOW_TENTH=4"
    counted.returncode = 128
    assert check.tenth()["slow"][0] == "SIMRANK_SLOW_TENTH=0"
    monkeypatch.setenv(check.TENTH, "7")
    assert check.main(["slow"]) == 0
    assert "again: SIMRANK_SLOW_TENTH=7 python tests/check.py slow" in capsys.readouterr().out


def test_a_tenth_of_the_tests_is_left(monkeypatch):
    """Each test is of one tenth, by its name."""
    names = [f"tests/test_x.py::test[{number}]" for number in range(200)]
    found = []
    for tenth in range(10):
        monkeypatch.setenv("SIMRANK_SLOW_TENTH", str(tenth))
        items = [SimpleNamespace(nodeid=name, path=ROOT) for name in names]
        conftest.pytest_collection_modifyitems(items)
        assert items
        found += [item.nodeid for item in items]
    assert sorted(found) == sorted(names)


def test_every_slow_test_runs_at_night_and_before_a_release():
    """All ten tenths."""
    jobs = yaml.safe_load((ROOT / ".github/workflows/slow.yml").read_text())["jobs"]
    assert jobs["checks"]["strategy"]["matrix"]["tenth"] == [*range(10)]
    assert RELEASE["jobs"]["slow"]["uses"] == "./.github/workflows/slow.yml"


def test_the_hook_runs_checks_that_exist(check):
    """Through the same script, and not the tests."""
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]
    entry = hooks[0]["entry"].split()
    assert entry[:2] == ["python", "tests/check.py"]
    assert set(entry[2:]) == set(check.CHECKS) - {"tests"}


KIT = (
    "python3 -m venv .venv && .venv/bin/pip install -q torch==2.13.0",
    ".venv/bin/python configs/evidence/kit.py --out kit.json",
)
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_workflows_call_the_scripts_that_ci_calls(path):
    """A step runs `.ci/run PART`, a step of `.ci/release`, a README's command, a check, the kit."""
    workflow = yaml.safe_load(path.read_text())
    matrix = workflow["jobs"].get("checks", {}).get("strategy", {}).get("matrix", {})
    parts = {*matrix.get("part", ()), *(each["part"] for each in matrix.get("include", ()))}
    script = (ROOT / ".ci" / "run").read_text()
    for part in parts:
        assert f"    {part}) " in script or f"    {part})\n" in script, part
    readme = (ROOT / "README.md").read_text()
    install = re.search(r"^(python3 -m venv .* -e \"\.\[test\]\")", readme, re.MULTILINE)[1]
    with_torch = install.replace("[test]", "[test,torch]")
    for job in workflow["jobs"].values():
        if "uses" in job:
            assert (ROOT / job["uses"]).is_file()
            continue
        hours = 6 if path.stem == "foreign" else 1  # Other projects' suites take what they take.
        assert job["timeout-minutes"] <= hours * 60
        for step in job["steps"]:
            command = step.get("run")
            if command is not None:
                assert (
                    command in (".ci/run ${{ matrix.part }}", install, with_torch)
                    or re.fullmatch(r"\.venv/bin/python tests/check\.py \w+", command)
                    or (path.stem == "release" and command.startswith(".ci/release "))
                    or (path.stem == "gpu" and command in KIT)
                ), command


@pytest.mark.parametrize(
    ("used_s", "marker", "fails"), [(29.0, None, False), (31.0, None, True), (31.0, "slow", False)]
)
def test_a_long_test_without_the_mark_slow_fails(monkeypatch, used_s, marker, fails):
    """By processor time, so that a busy machine makes none fail."""
    call = conftest.pytest_runtest_call(SimpleNamespace(get_closest_marker=lambda name: marker))
    with monkeypatch.context() as patch:  # This test is measured, too.
        patch.setattr(conftest, "_cpu_s", iter([1.0, 1.0 + used_s]).__next__)
        next(call)
        with pytest.raises(pytest.fail.Exception if fails else StopIteration) as stop:
            call.send("result")
    assert ("mark it slow" in str(stop.value)) == fails


def test_ci_runs_in_a_clone_and_spares_environments_and_files(tmp_path):
    """The README's command runs in another folder, and what lies here is there afterwards."""
    files = {
        "README.md": "## Two commands\npython3 -m venv -h >/dev/null && pwd\npython3 -m venv\n",
        "CONTRIBUTING.md": "python3 -m venv\n",
        ".ci/run": (ROOT / ".ci" / "run").read_text(),
        ".gitignore": ".venv*/\n",
        ".venv/mine": "",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    git = ["git", "-c", "user.name=x", "-c", "user.email=x@example.org"]
    for command in (["init", "-q"], ["add", "."], ["commit", "-qm", "Add all"]):
        subprocess.run([*git, *command], cwd=tmp_path, check=True)
    (tmp_path / "new.py").touch()
    done = subprocess.run(
        ["bash", ".ci/run", "first"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert "not in HEAD, so not checked here: ?? new.py\n" in done.stdout
    folder = re.search(r"^/.*", done.stdout, re.MULTILINE)[0]
    assert folder != str(tmp_path)
    assert not Path(folder).exists()
    assert (tmp_path / ".venv" / "mine").is_file()
    assert (tmp_path / "new.py").is_file()


RELEASE = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text())


def release(*arguments, folder=ROOT):
    command = [str(folder / ".ci" / "release"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_release_has_a_library_for_each_tested_release_of_torch():
    """And tries each of them, on all versions of Python together."""
    text = (ROOT / "simrank" / "torch" / "releases.py").read_text()
    tested = re.findall(r'"([\d.]+)"', re.search(r"^TESTED = (.*)$", text, re.MULTILINE)[1])
    jobs = RELEASE["jobs"]
    assert jobs["library"]["strategy"]["matrix"]["torch"] == tested
    tried = jobs["check"]["strategy"]["matrix"]["include"]
    assert [each["torch"] for each in tried] == tested
    assert [each["python"] for each in tried] == ["3.11", "3.12", "3.13"]


def test_a_release_calls_steps_that_exist_and_publishes_last():
    """Only for a tag, and not in a dry run."""
    steps = [
        step["run"]
        for job in RELEASE["jobs"].values()
        for step in job.get("steps", ())
        if "run" in step
    ]
    names = [step.split()[1] for step in steps]
    assert names == ["version", "version", "library", "dist", "check"]
    script = (ROOT / ".ci" / "release").read_text()
    assert all(f"\n{name}() {{\n" in script for name in names)
    (*_, publish) = RELEASE["jobs"]
    assert publish == "publish"
    assert RELEASE["jobs"]["publish"]["needs"] == ["check", "slow"]
    condition = RELEASE["jobs"]["publish"]["if"]
    assert condition == "startsWith(github.ref, 'refs/tags/v') && inputs.dry-run != true"


def test_the_version_of_a_release_is_the_same_everywhere():
    """In pyproject.toml, the package, the citation and a section of the changelog."""
    found = release("version")
    assert (found.returncode, found.stdout.strip()) == (0, simrank.__version__), found.stderr


def test_a_tag_must_be_the_version_with_a_dated_section(tmp_path):
    """Else nothing is built."""
    (tmp_path / "simrank").mkdir()
    for name in (".ci/release", "pyproject.toml", "CITATION.cff", "simrank/__init__.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    tag, log = f"v{simrank.__version__}", tmp_path / "CHANGELOG.md"
    log.write_text(f"# Changelog\n\n## {simrank.__version__}\n")
    assert "expected the date" in release("version", tag, folder=tmp_path).stderr
    log.write_text(f"# Changelog\n\n## {simrank.__version__} (2026-12-01)\n")
    assert release("version", tag, folder=tmp_path).returncode == 0
    found = release("version", "v9.9.9", folder=tmp_path)
    assert (found.returncode, found.stderr) == (1, f"tag: expected {tag}, got v9.9.9\n")
    log.write_text("# Changelog\n")
    assert "expected a section" in release("version", folder=tmp_path).stderr


def test_the_action_runs_a_suite_on_simulated_ranks():
    """In one step, with the number of ranks and further arguments."""
    action = yaml.safe_load((ROOT / ".github/actions/simrank-test/action.yml").read_text())
    (step,) = action["runs"]["steps"]
    install = 'pip install "$GITHUB_ACTION_PATH/../../.."'  # The clone that the action comes from.
    assert step["run"] == f'{install} && pytest --simrank="$RANKS" $ARGUMENTS'
    assert set(action["inputs"]) == {"ranks", "arguments"}


def test_ci_runs_the_parts_that_the_workflows_name():
    """Without a name all commands of README and CONTRIBUTING, one after the other."""
    script = (ROOT / ".ci" / "run").read_text()
    assert 'for name in "${@:-all}"' in script
    assert 'for command in "${commands[@]}"; do run "$command"; done' in script
