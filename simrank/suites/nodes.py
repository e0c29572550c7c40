"""What stands in the driving session for the tests that ranks have collected."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterable


class RanksItem(pytest.Item):
    """A test that runs on the ranks.

    Attributes:
        of_rank: The first rank's own.
        is_alone: Whether it starts ranks itself, so that the main program runs it.
    """

    of_rank: pytest.Item
    is_alone = False

    def runtest(self) -> NoReturn:
        """Not be called: the driver runs it."""
        raise AssertionError("ranks run it")

    def reportinfo(self) -> tuple[Any, int | None, str]:
        """Return where the test is."""
        return self.of_rank.reportinfo()


class _RanksCollector(pytest.Collector):
    """What a test is in: a folder, a file, a class."""

    def collect(self) -> Iterable[pytest.Item | pytest.Collector]:
        """Return nothing: ranks collect."""
        return ()


class Stand:
    """Makes what stands for a rank's tests, and for what they are in.

    Args:
        session: The driving session.
    """

    def __init__(self, session: pytest.Session) -> None:
        self._made: dict[pytest.Collector, pytest.Collector] = {}
        self._session = session

    def item(self, of_rank: pytest.Item) -> RanksItem:
        """Return what stands for a test."""
        assert of_rank.parent is not None, "it is in a file"
        parent = self._collector(of_rank.parent)
        kind: Any = type(type(of_rank).__name__, (RanksItem,), {})
        item: RanksItem = kind.from_parent(parent, name=of_rank.name, nodeid=of_rank.nodeid)
        item.of_rank = of_rank
        _take_over(item, of_rank)
        return item

    def _collector(self, of_rank: Any) -> Any:
        if isinstance(of_rank, pytest.Session):
            return self._session
        if of_rank not in self._made:
            parent = self._collector(of_rank.parent)
            kind: Any = type(type(of_rank).__name__, (_RanksCollector,), {})
            made = kind.from_parent(
                parent, name=of_rank.name, nodeid=of_rank.nodeid, path=of_rank.path
            )
            _take_over(made, of_rank)
            self._made[of_rank] = made
        return self._made[of_rank]


def _take_over(node: Any, of_rank: Any) -> None:
    """Let a node have the marks and keywords of another."""
    node.path = of_rank.path
    node.own_markers = list(of_rank.own_markers)
    node.keywords.update({name: of_rank.keywords[name] for name in of_rank.keywords})
    names = set(of_rank.extra_keyword_matches)
    names.update(getattr(getattr(of_rank, "function", None), "__dict__", ()))
    node.extra_keyword_matches = names
