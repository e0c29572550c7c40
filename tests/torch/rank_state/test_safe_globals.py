"""Classes that `torch.load` may make: each rank's modules allow their own."""

import importlib
import sys
import textwrap

import torch
import torch.distributed as dist

import simrank

MINE = """
    import io
    import pickle

    import torch


    class Kept:
        pass


    def is_allowed(value):
        saved = io.BytesIO()
        torch.save(value, saved)
        saved.seek(0)
        try:
            return type(torch.load(saved)) is type(value)
        except pickle.UnpicklingError:
            return False


    def allow():
        torch.serialization.add_safe_globals([Kept])


    def allowed():
        return torch.serialization.safe_globals([Kept])


    def allow_none():
        torch.serialization.clear_safe_globals()
"""
SHARED = """
    import torch


    class Own:
        pass


    torch.serialization.add_safe_globals([Own])
"""


def program(rank):
    mine = importlib.import_module("mine_allowing")
    shared = importlib.import_module("shared_allowing")
    dist.init_process_group("gloo")
    assert mine.is_allowed(shared.Own())
    if rank == 0:
        mine.allow()
    dist.barrier()
    assert mine.is_allowed(mine.Kept()) == (rank == 0)
    with mine.allowed():
        dist.barrier()
        assert mine.is_allowed(mine.Kept())
    assert not mine.is_allowed(mine.Kept())
    dist.barrier()
    if rank == 0:
        mine.allow_none()
    dist.barrier()
    assert mine.is_allowed(shared.Own()) == (rank == 1)


def test_ranks_allow_classes_for_themselves_and_shared_modules_for_all(tmp_path, monkeypatch):
    """A shared module is executed once, in the turn of the rank that imports it first."""
    before = torch.serialization.get_safe_globals()
    for name, text in (("mine_allowing", MINE), ("shared_allowing", SHARED)):
        (tmp_path / f"{name}.py").write_text(textwrap.dedent(text))
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    try:
        with simrank.Context("hgx_h100", private=("mine_allowing",)) as ctx:
            ctx.multiprocessing.spawn(program, nprocs=2)
        added = set(torch.serialization.get_safe_globals()) - set(before)
        assert [each.__qualname__ for each in added] == ["Own"]
    finally:
        torch.serialization.clear_safe_globals()
        torch.serialization.add_safe_globals(before)
