"""The names of torch that simrank uses are looked up in the installed release."""

import ast

import pytest
import torch
from torch.distributed import distributed_c10d

import simrank
from simrank.errors import UnsupportedError
from simrank.torch import contacts, install


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Of modules that are imported.
def test_each_name_of_torch_that_is_used_exists():
    """In all modules that simrank reaches, with the keywords of calls."""
    assert contacts.unknown_uses(imports=True) == []


def test_an_untested_release_without_a_name_is_refused_before_ranks_start(monkeypatch, tmp_path):
    """The name, and where simrank uses it; the search is kept for the next start."""
    monkeypatch.setenv("SIMRANK_CACHE", str(tmp_path))
    monkeypatch.setattr(torch, "__version__", "2.13.8")
    monkeypatch.delattr(distributed_c10d, "_check_valid_timeout")
    for _ in range(2):
        install._unknown_uses.cache_clear()
        with (
            pytest.raises(UnsupportedError, match=r"registry\.py:\d+: .*no _check_valid_timeout"),
            simrank.Context(),
        ):
            pass
        monkeypatch.setattr(contacts, "unknown_uses", None)
    install._unknown_uses.cache_clear()


def test_what_torch_asks_of_a_replaced_base_is_looked_up():
    """A method of a later release's class that the replacement lacks is named."""

    class Base:
        def reset(self):
            """Exist."""

    class Graph(Base):
        def reset(self):
            super().reset()
            super().of_2_99()

    found = list(contacts.unknown_to_base(Graph, Base))
    assert [line.rpartition(" ")[2] for line in found] == ["of_2_99"]


USES = """
import torch
from torch import distributed as dist
from importlib import import_module

def first(module, value):
    module.of_first
    value.of_nobody
    late = import_module("torch.fx")
    late.of_late(1, flag=2)
    dist.new_group([0], timeout=None)
    torch = value
    torch.hidden

other: object = import_module("torch.nn").functional
other.of_other
dist.of_dist = 3
"""


def test_uses_are_followed_through_imports_assignments_and_parameters():
    """Names that a function hides, and those that are assigned to, are none of torch's."""
    reader = contacts.Uses({"first": "torch.cuda"})
    reader.visit(ast.parse(USES))
    assert sorted({name for _, name in reader.uses}) == [
        "torch.cuda.of_first",
        "torch.distributed.new_group",
        "torch.fx.of_late",
        "torch.nn.functional",
        "torch.nn.functional.of_other",
    ]
