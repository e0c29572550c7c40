"""What the README and the guides show works as shown: every fenced example is run.

A section (`## ...`) is read from its top, in a folder of its own. `python` blocks share their names
and are run; one with a file's name behind the language is written there, and not run if a command
of the section uses it. `yaml` blocks are written. Of `sh` blocks, `simrank`, `pytest` and
`python FILE` are run here. A `text` block is what the block before it printed; `...` in it stands
for anything. `SIMRANK_UPDATE=1 pytest tests/test_guides.py` writes such blocks anew.
"""

import os
import re
import shlex
import sys
import traceback
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import pytest

from simrank.cli import main
from simrank.collectives import algorithms
from simrank.pages.document import css

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("benches", "configs", "simrank")
GUIDES = [
    ROOT / "README.md",
    *(path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("README.md"))),
    *sorted((ROOT / "docs").rglob("*.md")),
]
PICTURE = "simrank bench hgx_h100 --html hgx_h100.html"
# Commands of these kinds set something up, are the project's own checks and measurements, or have
# a test of their own below.
NOT_RUN = ("python3 -m venv", "pip install", "python benches/", "python tests/", PICTURE)
SLOW = {
    "simrank/tp/README.md#a-test-on-eight-ranks",  # It runs pytest within pytest.
    "docs/tutorials/layout.md#a-model-of-70b-on-64-gpus",  # Models of real size: minutes.
}
FENCE = re.compile(r"^```(\w*) ?(\S*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
OWN_FRAMES = re.compile(rf'(  File "{re.escape(str(ROOT / "simrank"))}.*\n(    .*\n)*)+')
CARETS = re.compile(r"^ *[~^]+\n", re.MULTILINE)  # Each Python draws them in its own way.
LONG = 60  # characters: shorter sentences may be alike by chance


@dataclass
class Block:
    """A fenced block: its number on the page, language, the file's name behind it, and body."""

    number: int
    language: str
    name: str
    body: str


def sections(page):
    """Return the blocks of each section that has any to run."""
    text = page.read_text()
    found = list(FENCE.finditer(text))
    blocks = [(Block(number, *m.groups()), m.start()) for number, m in enumerate(found)]
    heads = re.finditer(r"^## (.*)$", text, re.MULTILINE)
    titles = [("", 0), *((m[1], m.start()) for m in heads)]
    ends = [start for _, start in titles[1:]] + [len(text)]
    for (title, start), end in zip(titles, ends, strict=True):
        own = [block for block, offset in blocks if start <= offset < end]
        if any(block.language in ("python", "sh", "yaml") for block in own):
            slug = re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")
            yield f"{page.relative_to(ROOT)}#{slug}", page, own


EXAMPLES = [
    pytest.param(page, blocks, id=name, marks=[pytest.mark.slow] if name in SLOW else [])
    for guide in GUIDES
    for name, page, blocks in sections(guide)
]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty folder to read in; modules that are imported from it are forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setattr(algorithms, "_TABLE", dict(algorithms._TABLE))
    (tmp_path / "pyproject.toml").write_text('[tool.simrank]\ndevices = "simulated"\n')
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", None)).startswith(str(tmp_path)):
            del sys.modules[name]


class Reader:
    """Does what a reader of one section would do."""

    def __init__(self, folder, blocks):
        self.folder = folder
        self.commands = "".join(block.body for block in blocks if block.language == "sh")
        self.programs = "".join(block.body for block in blocks if block.language == "python")
        self.names = {"__name__": "__main__"}

    def follow(self, block):
        """Write a block, and run it if it is to be run."""
        if block.name:
            (self.folder / block.name).write_text(block.body)
        is_read = block.name == "conftest.py" or bool(block.name and block.name in self.commands)
        if block.language == "python" and not is_read:  # By a command, or by pytest.
            self.python(block.name or "example.py", block.body)
        elif block.language == "yaml":
            assert block.name, "a yaml block has the name of its file behind it"
            assert block.name in self.commands + self.programs, "somebody reads it"
        elif block.language == "sh":
            for line in block.body.splitlines():
                self.command(line)

    def python(self, name, source):
        """Run a program; print what it raises as a traceback ends."""
        (self.folder / name).write_text(source)
        try:
            exec(compile(source, name, "exec"), self.names)  # noqa: S102 - our own guides
        except Exception as error:  # noqa: BLE001 - shown, and compared
            print("".join(traceback.format_exception_only(error)))  # noqa: T201

    def command(self, line):
        """Run a line of a shell."""
        line = line.partition("  #")[0]
        tool, *arguments = shlex.split(line)
        if line.startswith(NOT_RUN):
            return
        if tool == "simrank":
            with pytest.raises(SystemExit):
                main(arguments)
        elif tool == "pytest":
            pytest.main([*arguments, "-q", "-p", "no:cacheprovider", "-p", "no:faulthandler"])
        else:
            assert tool == "python", line
            self.python(*arguments, (self.folder / arguments[0]).read_text())


@pytest.mark.parametrize(("page", "blocks"), EXAMPLES)
def test_the_examples_of_a_section_print_what_is_shown(page, blocks, folder, capsys):
    """Each block runs, and each output is the one that the page shows."""
    if any("triton" in block.body for block in blocks):
        pytest.importorskip("triton")
    if any(re.search(r"import (simrank\.)?torch", block.body) for block in blocks):
        pytest.importorskip("torch", reason="torch is not installed")
    reader = Reader(folder, blocks)
    printed, is_shown = "", True
    for block in blocks:
        if block.language == "text":
            is_shown = True
            if os.environ.get("SIMRANK_UPDATE"):
                write(page, block, printed)
            else:
                assert matches(block.body, printed), printed
            continue
        assert is_shown or "Error" not in printed, printed
        reader.follow(block)
        if block.language in ("python", "sh"):
            out, err = capsys.readouterr()
            printed, is_shown = tidy(out + err), False
    assert is_shown or "Error" not in printed, printed


def tidy(text):
    """Return text without frames of simrank's own, carets, blanks at ends, empty lines around."""
    text = OWN_FRAMES.sub("  ...\n", CARETS.sub("", text))
    return "\n".join(line.rstrip() for line in text.splitlines()).strip("\n") + "\n"


def matches(shown, printed):
    """Return whether a text is what a page shows; `...` stands for anything."""
    pattern = re.escape(tidy(shown)).replace(re.escape("..."), ".*")
    return re.fullmatch(pattern, printed, re.DOTALL) is not None


def write(page, block, printed):
    """Put a text in the place of what a page shows, unless that fits."""
    if not matches(block.body, printed):
        text = page.read_text()
        start, end = list(FENCE.finditer(text))[block.number].span(3)
        page.write_text(text[:start] + printed + text[end:])


def test_no_sentence_stands_twice():
    """What the README says no guide repeats, nor one guide what another says."""
    seen = {}
    for page in GUIDES:
        prose = re.sub(r"^\|.*\n", "", FENCE.sub("", page.read_text()), flags=re.MULTILINE)
        for sentence in re.split(r"(?<=[.:])\s+|\n\n", prose):
            words = " ".join(sentence.split())
            if len(words) >= LONG:
                assert words not in seen, f"{page} repeats {seen[words]}: {words}"
                seen[words] = page


def test_the_first_benchmark_shows_intervals_and_measured_times_and_draws_the_picture(
    folder, capsys, monkeypatch
):
    """The picture of the first page is the first chart, with its page's colours: light and dark."""
    module = import_module("simrank.bench.run")
    monkeypatch.setattr(module, "CHECK_UP_TO_BYTES", 1 << 20)  # Neither shows a check of data.
    with pytest.raises(SystemExit) as caught:
        main(PICTURE.split()[1:])
    assert caught.value.code in (0, None)
    auto, _, ring = capsys.readouterr().out.partition("# all_reduce ring")
    assert "90% interval  measured left out" in auto
    assert "nvls Simple" in auto
    site = "with site 'aws h100' left out of the calibration"
    errors = "31 % up to 32 KiB, 19 % to 1 MiB, 3 % to 64 MiB, 2 % above"
    assert f"# Measured time inside the 90% interval in 27 of 31 rows, {site}" in auto
    assert f"# Mean absolute error against measured times, {site}: {errors}" in auto
    for page in ("README.md", "docs/index.md"):  # The caption of the picture.
        assert errors in " ".join((ROOT / page).read_text().split()), page
    assert "constants fitted to 119 series of 31 sites (all_reduce on one node: " in auto
    assert "# No 90% interval and no error: ring is forced" in ring
    assert not {"measured", "error", "left"} & set(ring.splitlines()[2].split())
    body = re.search(r"<svg (viewBox.*?</svg>)", (folder / "hgx_h100.html").read_text(), re.DOTALL)[
        1
    ]
    look = "background:var(--ground);color:var(--ink);font-family:system-ui,sans-serif"
    head = f'<svg xmlns="http://www.w3.org/2000/svg" style="{look}" '
    drawn = (head + body + "\n").replace(">", f">\n<style>\n{css(2)}</style>\n", 1)
    picture = ROOT / "docs" / "images" / "all_reduce.svg"
    if os.environ.get("SIMRANK_UPDATE"):
        picture.write_text(drawn)
    assert picture.read_text() == drawn


def test_the_readme_links_every_guide_and_the_site_has_it():
    """A guide without a link is not found; `mkdocs build --strict` demands pages of docs/."""
    readme, site = (ROOT / "README.md").read_text(), (ROOT / "docs" / "hooks.py").read_text()
    for page in GUIDES[1:]:
        path = str(page.relative_to(ROOT))
        if not path.startswith("docs/"):
            assert f"({path})" in readme, path
            assert f'"{path}"' in site, path


def test_the_functions_that_how_it_works_names_exist():
    """Those of simrank and the tests, each in the file of the link behind it."""
    page = ROOT / "docs" / "how-it-works.md"
    table = page.read_text().partition("## Where each part is")[2]
    cited = re.findall(r"((?:`[\w.]+`(?:, | and )?)+) in \[[\w/.]+\]\(([\w/.]+)\)", table)
    assert len(cited) == table.count(" in [")
    for names, link in cited:
        source = (page.parent / link).read_text()
        for name in re.findall(r"`([\w.]+)`", names):
            for part in name.split("."):
                assert re.search(rf"^ *(def |class )?{part}\b", source, re.MULTILINE), (name, link)


@pytest.mark.parametrize(
    ("page", "name"), [("README.md", "step.py"), ("docs/tutorials/kernel.md", "softmax.py")]
)
def test_first_programs_run_where_torchrun_stands_too(page, name, tmp_path, monkeypatch, capsys):
    """Each rank is then the main program of a simulation of its own, as each process would be."""
    if name == "softmax.py":
        pytest.importorskip("triton")
    (body,) = [m[3] for m in FENCE.finditer((ROOT / page).read_text()) if m[2] == name]
    (tmp_path / name).write_text(body)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stop:
        main(["run", "--nproc-per-node", "2", "--summary", "none", name])
    printed = capsys.readouterr()
    assert stop.value.code in (0, None), printed.err
    assert len(set(printed.out.splitlines())) in (1, 2)
    assert len(printed.out.splitlines()) == 2
