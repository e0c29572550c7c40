"""Right programs with popular packages, whose shared state does not matter: no second start."""

import os
import subprocess
import sys
from importlib.util import find_spec

import pytest

# Per program the packages that it needs, and what two ranks do with them.
PROGRAMS = {
    "tqdm_positions": ("tqdm", """
        from tqdm import tqdm
        bar = tqdm(range(3), position=rank, disable=rank > 0)
        for step in bar:
            dist.barrier()
            bar.set_postfix(loss=step * rank)
    """),
    "tqdm_defaults": ("tqdm", """
        import tqdm
        tqdm.tqdm.monitor_interval = 0
        for _ in tqdm.trange(3, desc=f"rank {rank}"):
            dist.barrier()
    """),
    "logging_of_ranks": ("", """
        import logging
        logging.basicConfig(level=logging.INFO if rank == 0 else logging.WARNING)
        logger = logging.getLogger("train")
        dist.barrier()
        logger.info("step %d", rank)
        assert logger.isEnabledFor(logging.INFO) == (rank == 0)
    """),
    "seeds": ("numpy", """
        import random
        import numpy as np
        random.seed(rank); np.random.seed(rank); torch.manual_seed(rank)
        dist.barrier()
        drawn = (random.random(), np.random.rand(), torch.rand(1).item())
        random.seed(rank); np.random.seed(rank); torch.manual_seed(rank)
        assert drawn == (random.random(), np.random.rand(), torch.rand(1).item())
    """),
    "numpy_print_options": ("numpy", """
        import numpy as np
        np.set_printoptions(precision=3, suppress=True)
        dist.barrier()
        print(np.arange(3) / 7 + rank)
    """),
    "numpy_errors": ("numpy", """
        import numpy as np
        with np.errstate(divide="ignore"):
            dist.barrier()
            np.ones(2) / np.zeros(2)
    """),
    "lru_cache": ("", """
        from functools import lru_cache
        @lru_cache(maxsize=None)
        def table(size):
            return [size * each for each in range(size)]
        for size in (2, 3, 2):
            table(size)
            dist.barrier()
    """),
    "rich_console": ("rich", """
        from rich.console import Console
        from rich.table import Table
        console = Console(stderr=rank > 0)
        table = Table(title=f"rank {rank}")
        table.add_column("step"); table.add_row("1")
        dist.barrier()
        console.print(table)
    """),
    "rich_print": ("rich", """
        from rich import print as show
        show(f"[bold]rank {rank}[/bold]")
        dist.barrier()
    """),
    "rich_progress_of_rank_0": ("rich", """
        from rich.progress import track
        for _ in track(range(2), disable=rank > 0):
            dist.barrier()
    """),
    "rich_logging": ("rich", """
        import logging
        from rich.logging import RichHandler
        logging.basicConfig(level="INFO", format="%(message)s", handlers=[RichHandler()])
        logging.getLogger("a").info("rank %d", rank)
        dist.barrier()
    """),
    "pandas_frames": ("pandas", """
        import pandas as pd
        frame = pd.DataFrame({"rank": [rank, rank], "step": [0, 1]})
        dist.barrier()
        assert frame.groupby("rank")["step"].sum().tolist() == [1]
    """),
    "pandas_duplicate_column": ("pandas", """
        import pandas as pd
        frame = pd.DataFrame({"a": [rank]})
        dist.barrier()
        try:
            frame.insert(0, "a", [1])
        except ValueError as error:
            print(error)
    """),
    "pandas_options": ("pandas", """
        import pandas as pd
        pd.set_option("display.max_rows", 5)
        dist.barrier()
        assert pd.get_option("display.max_rows") == 5
    """),
    "matplotlib_files": ("matplotlib", """
        import matplotlib
        matplotlib.use("Agg")
        import matplotlib.pyplot as plt
        figure, axes = plt.subplots()
        axes.plot([0, rank])
        dist.barrier()
        figure.savefig(f"loss{rank}.png")
    """),
    "pydantic_models": ("pydantic", """
        from pydantic import BaseModel, ValidationError
        class Config(BaseModel):
            rank: int
            name: str = "run"
        config = Config(rank=rank)
        dist.barrier()
        assert config.model_dump() == {"rank": rank, "name": "run"}
        try:
            Config(rank="x")
        except ValidationError as error:
            print(error.error_count())
    """),
    "click_command": ("click", """
        import click
        @click.command()
        @click.option("--steps", default=2)
        def train(steps):
            for _ in range(steps):
                dist.barrier()
        train.main(["--steps", "3"], standalone_mode=False)
    """),
    "typer_app": ("typer", """
        import typer
        app = typer.Typer()
        @app.command()
        def train(steps: int = 2, name: str = f"rank{rank}"):
            for _ in range(steps):
                dist.barrier()
        app(["--steps", "2"], standalone_mode=False)
    """),
    "yaml_files": ("yaml", """
        import yaml
        with open(f"config{rank}.yaml", "w") as file:
            yaml.safe_dump({"rank": rank}, file)
        dist.barrier()
        assert yaml.safe_load(open(f"config{rank}.yaml"))["rank"] == rank
    """),
    "yaml_tag": ("yaml", """
        import yaml
        yaml.SafeLoader.add_constructor("!env", lambda loader, node: loader.construct_scalar(node))
        dist.barrier()
        assert yaml.safe_load("!env x") == "x"
    """),
    "requests_session": ("requests", """
        import requests
        session = requests.Session()
        session.headers["X-Rank"] = str(rank)
        request = session.prepare_request(requests.Request("GET", "http://localhost/x"))
        dist.barrier()
        assert request.headers["X-Rank"] == str(rank)
    """),
    "tensorboard_of_each_rank": ("tensorboard", """
        from torch.utils.tensorboard import SummaryWriter
        writer = SummaryWriter(f"logs/{rank}")
        for step in range(2):
            writer.add_scalar("loss", step * rank, step)
            dist.barrier()
        writer.close()
    """),
    "tensorboard_of_rank_0": ("tensorboard", """
        writer = None
        if rank == 0:
            from torch.utils.tensorboard import SummaryWriter
            writer = SummaryWriter("logs")
        dist.barrier()
        if writer is not None:
            writer.add_scalar("loss", 1.0, 0); writer.close()
    """),
    "wandb_of_rank_0": ("wandb", """
        if rank == 0:
            import wandb
            wandb.init(mode="disabled", project="p", config={"lr": 0.1})
        for step in range(2):
            dist.barrier()
            if rank == 0:
                wandb.log({"loss": step})
        if rank == 0:
            wandb.finish()
    """),
    "absl_equal_flags": ("absl", """
        from absl import flags, logging
        flags.DEFINE_float("lr", 0.1, "rate")
        flags.FLAGS(["x", "--lr=0.2"])
        dist.barrier()
        logging.info("lr %f", flags.FLAGS.lr)
        assert flags.FLAGS.lr == 0.2
    """),
    "omegaconf_files": ("omegaconf", """
        from omegaconf import OmegaConf
        config = OmegaConf.merge(OmegaConf.create({"lr": 0.1}), OmegaConf.create({"rank": rank}))
        dist.barrier()
        assert config.rank == rank
    """),
    "prometheus_own_registry": ("prometheus_client", """
        from prometheus_client import CollectorRegistry, Counter
        registry = CollectorRegistry()
        Counter("steps", "steps", registry=registry).inc(rank)
        dist.barrier()
        assert registry.get_sample_value("steps_total") == rank
    """),
    "transformers_verbosity": ("transformers", """
        import transformers
        transformers.logging.set_verbosity_error()
        dist.barrier()
        assert transformers.logging.get_verbosity() == transformers.logging.ERROR
    """),
    "transformers_model": ("transformers", """
        from transformers import GPT2Config, GPT2LMHeadModel
        torch.manual_seed(0)
        config = GPT2Config(n_layer=1, n_head=2, n_embd=8, vocab_size=16, n_positions=8)
        model = torch.nn.parallel.DistributedDataParallel(GPT2LMHeadModel(config))
        ids = torch.full((1, 4), rank)
        model(input_ids=ids, labels=ids).loss.backward()
    """),
    "accelerate_step": ("accelerate", """
        from accelerate import Accelerator
        accelerator = Accelerator(cpu=True)
        model = torch.nn.Linear(2, 1)
        model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), 0.1))
        accelerator.backward(model(torch.ones(1, 2) * rank).sum())
        optimizer.step()
        assert accelerator.process_index == rank
    """),
    "lightning_module": ("lightning", """
        import lightning
        class Module(lightning.LightningModule):
            def __init__(self):
                super().__init__()
                self.save_hyperparameters()
                self.layer = torch.nn.Linear(2, 1)
        lightning.seed_everything(rank, verbose=False)
        module = Module()
        dist.barrier()
        module.layer(torch.ones(1, 2)).sum().backward()
    """),
    "pytorch_lightning_seed": ("pytorch_lightning", """
        import pytorch_lightning as pl
        pl.seed_everything(3 + rank, workers=True)
        dist.barrier()
        assert torch.initial_seed() == 3 + rank
    """),
    "lazy_imports": ("", """
        def late():
            import json, decimal
            return json.dumps(str(decimal.Decimal(rank)))
        if rank == 1:
            late()
        dist.barrier()
        late()
    """),
    "warnings": ("", """
        import warnings
        warnings.filterwarnings("ignore" if rank else "default")
        dist.barrier()
        warnings.warn("already warned", stacklevel=1)
    """),
    "already_there": ("", """
        import os
        try:
            os.mkdir("shared")
        except FileExistsError as error:
            print("already there:", error)
        dist.barrier()
    """),
    "own_registry": ("", """
        registry = {}
        def register(name):
            if name in registry:
                raise KeyError(f"{name} is already registered")
            registry[name] = rank
        register("a")
        dist.barrier()
        try:
            register("a")
        except KeyError as error:
            print(error)
        assert registry == {"a": rank}
    """),
    "data_loader": ("", """
        from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
        data = TensorDataset(torch.arange(8.0))
        loader = DataLoader(data, batch_size=2, sampler=DistributedSampler(data, shuffle=False))
        for (batch,) in loader:
            dist.all_reduce(batch)
    """),
    "profiler": ("", """
        from torch.profiler import ProfilerActivity, profile
        with profile(activities=[ProfilerActivity.CPU]) as found:
            dist.all_reduce(torch.ones(4) * rank)
        assert len(found.key_averages())
    """),
    "default_dtype": ("", """
        torch.set_default_dtype(torch.float64 if rank else torch.float32)
        dist.barrier()
        assert torch.ones(1).dtype == (torch.float64 if rank else torch.float32)
    """),
    "packaging_and_dates": ("packaging", """
        import datetime
        from packaging.version import InvalidVersion, Version
        assert Version(torch.__version__) > Version("2.0")
        try:
            Version("already")
        except InvalidVersion as error:
            print(error)
        dist.barrier()
        print(datetime.datetime.now().year > 0)
    """),
    "jinja_templates": ("jinja2", """
        import jinja2
        environment = jinja2.Environment()
        environment.globals["rank"] = rank
        dist.barrier()
        assert environment.from_string("{{ rank }}").render() == str(rank)
    """),
    "config_of_rank_0": ("omegaconf", """
        from omegaconf import OmegaConf
        made = [OmegaConf.create({"lr": 0.1, "steps": 3}) if rank == 0 else None]
        dist.broadcast_object_list(made, src=0)
        assert made[0].steps == 3
    """),
}  # fmt: skip
BEGIN = """
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_right_program_starts_once_and_has_no_conflict(name, tmp_path):
    """In a process of its own, so that ranks import its packages."""
    packages, text = PROGRAMS[name]
    if not all(map(find_spec, packages.split())):
        pytest.skip(f"{packages} is not installed")
    lines = "\n".join(line[8:] for line in text.splitlines())
    (tmp_path / "program.py").write_text(
        BEGIN + lines + "\ndist.barrier()\ndist.destroy_process_group()\n"
    )
    ended = subprocess.run(
        [sys.executable, "-m", "simrank", "run", "--nproc-per-node", "2", "program.py"],
        cwd=tmp_path, env=os.environ, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    assert "starts again" not in ended.stderr
    assert "they share" not in ended.stderr
    assert "has set" not in ended.stderr
