"""Dynamo is imported once a program compiles: optimizers and DDP only keep it away."""

import os
import subprocess
import sys
import textwrap

import pytest

torch = pytest.importorskip("torch")

from simrank.torch import deferred_dynamo  # noqa: E402 - it needs torch

HEAD = """
    import os, sys
    import torch
    import torch._dynamo as kept
    import torch.distributed as dist
    from torch._dynamo import disable
    from torch.nn.parallel import DistributedDataParallel

    def is_there():
        return "torch._dynamo.eval_frame" in sys.modules

    def check_absent():
        assert not is_there()
        dist.barrier()  # Before another rank imports it.

    dist.init_process_group("gloo")
"""
TRAIN = """
    def train():
        torch.manual_seed(0)
        model = DistributedDataParallel(torch.nn.Linear(4, 1))
        optimizer = torch.optim.AdamW(model.parameters())
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()
        state = optimizer.state_dict()
        optimizer.load_state_dict(state)
        return float(model.module.weight.sum())
"""
PROGRAMS = {
    "optimizers_and_ddp_do_not_import_it": """
        train()
        assert not is_there()
        assert "sympy" not in sys.modules
    """,
    "fsdp_and_fake_tensors_do_not_import_it": """
        from torch._subclasses.fake_tensor import FakeTensorMode
        from torch.distributed.fsdp import fully_shard

        model = fully_shard(torch.nn.Linear(8, 8))
        model(torch.ones(2, 8)).sum().backward()
        with FakeTensorMode():
            assert torch.ones(2).add(1).shape == (2,)
        assert not is_there()
    """,
    "its_settings_are_there_without_it_and_stay": """
        torch._dynamo.config.recompile_limit = 3
        check_absent()
        kept.reset()
        assert is_there()
        assert torch._dynamo.config.recompile_limit == 3
        assert sys.modules["torch._dynamo.config"] is torch._dynamo.config
    """,
    "what_was_kept_of_it_before_compiles_and_breaks_graphs": """
        ran = []

        @disable
        def untraced(x):
            ran.append(torch.compiler.is_compiling())
            return x + 1

        untraced(torch.ones(2))
        first = train()
        check_absent()

        @torch.compile(backend="eager")
        def step(x):
            kept.graph_break()
            return untraced(x * 2)

        assert step(torch.ones(2)).tolist() == [3.0, 3.0]
        assert is_there() and ran == [False, False]
        explained = torch._dynamo.explain(lambda x: step(x))(torch.ones(2))
        assert sys.modules["torch._dynamo"] is torch._dynamo is not kept
        assert train() == first
    """,
    "a_fullgraph_refuses_what_was_disabled_before": """
        untraced = disable(lambda x: x + 1)
        untraced(torch.ones(2))
        try:
            torch.compile(lambda x: untraced(x), backend="eager", fullgraph=True)(torch.ones(2))
        except torch._dynamo.exc.Unsupported:
            print("refused")
        else:
            raise AssertionError("compiled")
    """,
    "ddp_asks_its_own_settings": """
        torch._dynamo.config.optimize_ddp = "python_reducer"
        model = DistributedDataParallel(torch.nn.Linear(4, 1))
        assert model._use_python_reducer
    """,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_see_the_same_before_and_after(name, tmp_path):
    """In ranks of a run, where nothing else has imported Dynamo."""
    program = tmp_path / "program.py"
    program.write_text("".join(map(textwrap.dedent, (HEAD, TRAIN, PROGRAMS[name]))))
    command = [sys.executable, "-m", "simrank", "run", "--nproc-per-node", "2", str(program)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ)
    assert ended.returncode == 0, ended.stderr


def test_the_modes_of_ddp_are_torchs():
    """For all values of the setting, and for one that is none."""
    real = pytest.importorskip("torch._dynamo.utils")
    config = torch._dynamo.config
    for value in (True, False, "ddp_optimizer", "python_reducer", "no_optimization"):
        with config.patch(optimize_ddp=value):
            assert deferred_dynamo.ddp_mode() == real.get_optimize_ddp_mode()
    with config.patch(optimize_ddp=7), pytest.raises(ValueError, match="optimize_ddp"):
        deferred_dynamo.ddp_mode()
