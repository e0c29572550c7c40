"""Where torch sees no GPU, "cuda" means simulated devices, whichever build it is."""

import shutil

import pytest
import torch

if shutil.which("g++") is None:
    pytest.skip("no compiler for simulated devices", allow_module_level=True)

import simrank
from simrank.cli import options
from simrank.errors import ConfigError, SpawnException
from simrank.torch.devices import activation


@pytest.fixture
def cuda_build(monkeypatch):
    """A torch that was built for CUDA; returns a list: not empty while it sees GPUs."""
    seen = []
    monkeypatch.setattr(activation, "_IS_BUILT", True)
    monkeypatch.setattr(activation, "has_real_devices", lambda: bool(seen))
    return seen


def test_a_cuda_build_without_gpus_has_simulated_ones(cuda_build):
    """Without a request: a program that takes GPUs where there are some takes them."""
    found = []

    def program(rank):
        device = "cuda" if torch.cuda.is_available() else "cpu"
        found.append((device, torch.cuda.device_count(), torch.ones(1, device=device).is_cuda))

    with simrank.Context() as context:
        context.cuda_devices = None  # Whatever the project says.
        context.multiprocessing.spawn(program, nprocs=2)
    assert found == [("cuda", 8, True)] * 2


def test_real_devices_that_are_requested_and_missing_are_an_error(cuda_build):
    """A warning at a query, an error at a use; both say what to do."""

    def program(rank):
        with pytest.warns(UserWarning, match="torch sees no GPU\n  to fix: leave the option out"):
            assert not torch.cuda.is_available()
        torch.cuda.set_device(rank)

    with (
        pytest.raises(SpawnException, match="real CUDA devices are requested"),
        simrank.Context(cuda_devices="real") as context,
    ):
        context.multiprocessing.spawn(program, nprocs=1)


def test_commands_simulate_unless_real_devices_are_requested(tmp_path, monkeypatch):
    """Also where torch sees GPUs: they are no part of a Context's default."""
    monkeypatch.chdir(tmp_path)
    assert options.cuda_devices(None) == "simulated"
    assert options.cuda_devices("real") == "real"
    with pytest.raises(ConfigError, match="runs without values have no real devices, got real"):
        options.cuda_devices("real", has_values=False)
    (tmp_path / "pyproject.toml").write_text('[tool.simrank]\ndevices = "real"\n')
    assert options.cuda_devices(None) == "real"
    assert options.cuda_devices("simulated", has_values=False) == "simulated"


def test_a_cuda_build_simulates_devices_that_are_asked_for(cuda_build):
    """With real ones too, which are hidden meanwhile."""

    def program(rank):
        torch.cuda.set_device(rank)
        assert torch.ones(1, device="cuda").get_device() == rank

    for real in ((), (1,)):
        cuda_build[:] = real
        with simrank.Context(cuda_devices="simulated") as context:
            context.multiprocessing.spawn(program, nprocs=2)


def test_real_gpus_stay_torchs_own(cuda_build):
    """Every stand-in hands on what a rank asks."""
    cuda_build.append(1)
    done = []

    def program(rank):
        torch.cuda.device_count()
        torch.manual_seed(rank)
        with torch.no_grad():
            torch.optim.SGD([torch.ones(1, requires_grad=True)]).step()
        assert not activation.is_enabled()
        done.append(rank)

    with simrank.Context() as context:
        context.cuda_devices = None
        context.multiprocessing.spawn(program, nprocs=2)
    assert sorted(done) == [0, 1]


def test_a_context_says_once_that_devices_are_real(cuda_build, caplog, monkeypatch):
    """With what simulates them."""
    cuda_build.append(1)
    monkeypatch.setattr(activation, "_is_real_said", [])
    monkeypatch.setattr(torch.cuda, "is_available", torch.cuda.is_available)

    def program(_rank):
        torch.cuda.is_available()

    for _ in range(2):
        with simrank.Context() as context:
            context.cuda_devices = None
            context.multiprocessing.spawn(program, nprocs=2)
    (said,) = [each.message for each in caplog.records if each.name == "simrank"]
    assert said.startswith('devices: real: "cuda" means the GPUs that torch sees; Context(cuda_')


def test_a_run_says_that_its_devices_are_simulated():
    """Among the notes of its summary, where a rank has used them."""

    def program(rank):
        torch.ones(1, device="cuda")

    with simrank.Context() as context:
        context.multiprocessing.spawn(program, nprocs=1)
    assert context.notes == ["  devices: simulated (torch sees no GPU)", f"  {context.unchecked}"]
