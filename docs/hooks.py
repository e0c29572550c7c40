"""Pages of the site that lie elsewhere: guides beside their packages, and the commands' help.

mkdocs calls the functions at its events. Links between files of the repository become links
between pages; a link to a file without a page becomes its text.
"""

from __future__ import annotations

import atexit
import io
import os
import re
import shutil
import sys
import tempfile
from contextlib import redirect_stdout, suppress
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from mkdocs.plugins import event_priority
from mkdocs.structure.files import File

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parent.parent
# Page of the site: file of the repository.
PAGES = {
    "guides/tp.md": "simrank/tp/README.md",
    "guides/distributed.md": "simrank/distributed/README.md",
    "guides/kernels.md": "simrank/kernels/README.md",
    "guides/collectives.md": "simrank/collectives/README.md",
    "guides/msccl.md": "simrank/formats/msccl/README.md",
    "guides/torch.md": "simrank/torch/README.md",
    "guides/torch-cuda.md": "simrank/torch/cuda/README.md",
    "guides/multiprocessing.md": "simrank/multiprocessing/README.md",
    "guides/validate.md": "simrank/validate/README.md",
    "guides/trace.md": "simrank/trace/README.md",
    "guides/faults.md": "configs/faults/README.md",
    "guides/clusters.md": "configs/clusters/README.md",
    "guides/foreign.md": "simrank/config/foreign/README.md",
    "guides/speed.md": "benches/README.md",
    "guides/measured.md": "configs/measured/README.md",
    "guides/calibrations.md": "configs/calibrations/README.md",
    "guides/gemm.md": "configs/gemm/README.md",
    "guides/attention.md": "configs/attention/README.md",
    "guides/kernels_of_torch.md": "configs/torch/README.md",
    "guides/evidence.md": "configs/evidence/README.md",
    "guides/design.md": "adr/design.md",
    "guides/changelog.md": "CHANGELOG.md",
    "guides/contributing.md": "CONTRIBUTING.md",
}
_LINK = re.compile(r"(?<!\!)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")
_FENCE = re.compile(r"^```(\w+) (\S+)$", re.MULTILINE)
_CODE = re.compile(r"(^```.*?^```$)", re.DOTALL | re.MULTILINE)
_COMMANDS = "reference/commands.md"


@event_priority(100)  # Before mkdocstrings reads its paths.
def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Let mkdocstrings read the package without its stub.

    `simrank/__init__.pyi` has torch's names, and `device` among them hides the package `device`.
    """
    package = Path(tempfile.mkdtemp(), "simrank")
    shutil.copytree(
        ROOT / "simrank", package, ignore=shutil.ignore_patterns("*.pyi", "lib", "csrc")
    )
    config.plugins["mkdocstrings"].config.handlers["python"]["paths"] = [str(package.parent)]
    atexit.register(shutil.rmtree, package.parent)
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that lie elsewhere."""
    for page, source in PAGES.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text()))
    files.append(File.generated(config, _COMMANDS, content=_commands()))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Point links to pages, and show the file names of code blocks as titles."""
    del config, files
    uri = page.file.src_uri
    source = PurePosixPath(PAGES.get(uri, f"docs/{uri}"))
    parts = _CODE.split(markdown)
    parts[::2] = [_LINK.sub(lambda found: _link(found, source, uri), text) for text in parts[::2]]
    return _FENCE.sub(r'```\1 title="\2"', "".join(parts))


def _link(found: re.Match[str], source: PurePosixPath, uri: str) -> str:
    """Return a link of a file as a link between pages, or its text."""
    text, (path, _, anchor) = found[1], found[2].partition("#")
    if not path or "://" in path or path.startswith("mailto:"):
        return found[0]
    target = os.path.normpath(source.parent / path)
    page = _PAGE_OF.get(target)
    if page is None and target.startswith("docs/"):
        page = target.removeprefix("docs/")
    if page is None:
        return text
    relative = os.path.relpath(page, PurePosixPath(uri).parent)
    return f"[{text}]({relative}{'#' + anchor if anchor else ''})"


_PAGE_OF = {source: page for page, source in PAGES.items()} | {"README.md": "index.md"}


def _commands() -> str:
    """Return a page of all commands: the text of `--help`."""
    names = re.findall(r"^  (\w+) {2,}\S", _help().partition("Commands:")[2], re.MULTILINE)
    text = ["# Commands\n\n`simrank COMMAND --help` prints these texts.\n"]
    text += [f"## simrank {name}\n\n```text\n{_help(name)}```\n" for name in names]
    return "\n".join(text)


def _help(*words: str) -> str:
    sys.path.insert(0, str(ROOT))
    from simrank.cli import main  # noqa: PLC0415 - of this clone

    printed = io.StringIO()
    with redirect_stdout(printed), suppress(SystemExit):
        main([*words, "--help"])
    return printed.getvalue()
