"""The marker `equal`: a test per layout, which fails where the layout differs.

pytest loads this in every run: everything else is imported when the first marked test runs.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from simrank.config.equal import EqualConfig
    from simrank.equality.judge import LayoutChecks

MARK, LAYOUT = "equal", "equal_layout"
HELP = (
    "equal(layouts=[{axis: size}], *, program=None, steps=2, dtype='float64', ignore=(), "
    "rename={}, allow={}): the program (the test's own file) computes on each layout what its "
    "single program computes; a test per layout, with its number as the argument equal_layout"
)
_CHECKS = pytest.StashKey[dict[Any, "LayoutChecks"]]()
_FOLDER = pytest.StashKey["TemporaryDirectory[str]"]()


def generate(metafunc: pytest.Metafunc) -> None:
    """Make a test of each layout of a marked test."""
    if metafunc.definition.get_closest_marker(MARK) is None:
        return
    config = _config(metafunc.definition)
    names = [" x ".join(f"{a}{n}" for a, n in layout.items()) for layout in config.layouts]
    if LAYOUT not in metafunc.fixturenames:
        metafunc.fixturenames.append(LAYOUT)
    metafunc.parametrize(LAYOUT, range(len(names)), ids=names)


def run(item: pytest.Function) -> None:
    """Check the layout of a marked test; fail with its first difference."""
    __tracebackhide__ = True
    pytest.importorskip("torch", reason="layouts of torch programs need torch")
    from simrank.equality.verdict import details, verdict_text  # noqa: PLC0415 - needs torch

    number = item.callspec.params[LAYOUT]
    assert isinstance(number, int)
    verdict = _checks(item)(number)
    if verdict.found is not None:
        pytest.fail("\n".join([verdict_text(verdict), *details(verdict)]), pytrace=False)


def _config(item: pytest.Item) -> EqualConfig:
    """Return the layouts of a marker.

    Raises:
        UsageError: They are written wrongly.
    """
    from simrank.config.equal import layouts_of  # noqa: PLC0415 - few tests need it
    from simrank.errors import ConfigError  # noqa: PLC0415 - as above

    marker = item.get_closest_marker(MARK)
    assert marker is not None
    given = {name: value for name, value in marker.kwargs.items() if name != "program"}
    if marker.args:
        given.setdefault("layouts", *marker.args)
    try:
        return layouts_of(given, f"{item.nodeid}: {MARK}")
    except ConfigError as error:
        raise pytest.UsageError(str(error)) from None


def _checks(item: pytest.Function) -> LayoutChecks:
    """Return the checks of a marked test; its single program runs once."""
    from simrank.equality.judge import prepared  # noqa: PLC0415 - needs torch
    from simrank.equality.layout import Layout  # noqa: PLC0415 - as above
    from simrank.equality.runs import RunOptions  # noqa: PLC0415 - as above

    marker = item.get_closest_marker(MARK)
    assert marker is not None
    config = _config(item)
    program = Path(item.path.parent, marker.kwargs.get("program") or item.path)
    options = RunOptions.of(str(program), config)
    layouts = [Layout(axes) for axes in config.layouts]
    made = item.config.stash.setdefault(_CHECKS, {})
    key = (str(options), str(layouts))
    if key not in made:
        folder = Path(item.config.stash.setdefault(_FOLDER, TemporaryDirectory()).name)
        made[key], _ = prepared(options, layouts, Path(mkdtemp(dir=folder)))
    return made[key]
