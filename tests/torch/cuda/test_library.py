"""The library is found, built once, and refused by name where it does not fit."""

from __future__ import annotations

import subprocess
import sys
import threading
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import simrank
from simrank.errors import UnsupportedError
from simrank.ranks.current import running_task
from simrank.torch.cuda import library, op_table


@pytest.fixture
def fresh_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("SIMRANK_CACHE", str(tmp_path))
    return tmp_path


def test_without_a_compiler_the_error_says_what_to_install(fresh_cache, monkeypatch):
    """One command."""
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(UnsupportedError, match=r"(?s)'no-such-compiler'.*apt-get install g\+\+"):
        library.load()


def test_a_failed_build_shows_the_compilers_errors(fresh_cache, monkeypatch, tmp_path):
    """And leaves no library behind."""
    compiler = tmp_path / "compiler"
    compiler.write_text("#!/bin/sh\necho 'all.cpp:1: error: no' >&2; exit 1\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    monkeypatch.setattr(op_table, "write_tables", lambda _folder: None)
    with pytest.raises(UnsupportedError, match=r"(?s)failed:\n  all\.cpp:1: error: no"):
        library.load()
    assert not list(fresh_cache.rglob("*.so"))


def test_a_library_of_another_torch_is_refused(monkeypatch):
    """It would corrupt memory; another build or patch of the same release takes it."""
    path = library._built_path(lambda _line: None)
    release = ".".join(torch.__version__.split(".")[:2])
    monkeypatch.setattr(torch, "__version__", f"{release}.9+cu999")
    assert library.load()._name == str(path)
    monkeypatch.setattr(torch, "__version__", "2.99.1")
    with pytest.raises(
        UnsupportedError, match=rf"was built for torch {release}, but torch 2\.99\.1"
    ):
        library._open(path)


def test_a_library_of_the_package_comes_first(monkeypatch, tmp_path, fresh_cache):
    """In a folder of torch's minor release; nothing is built."""
    built = library._built_path
    monkeypatch.delenv("SIMRANK_CACHE")
    source = built(lambda _line: None)
    monkeypatch.setattr(library, "_PREBUILT", tmp_path)
    monkeypatch.setattr(library, "_built_path", None)
    path = library.prebuilt_path()
    path.parent.mkdir(parents=True)
    path.write_bytes(source.read_bytes())
    assert path.parent.name == ".".join(torch.__version__.split(".")[:2])
    program = (
        "import sys; from pathlib import Path; from simrank.torch.cuda import library;"
        f"library._PREBUILT = Path({str(tmp_path)!r}); print(library.load()._name)"
    )
    output = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert Path(output.stdout.strip()) == path


def test_it_is_built_once_by_whoever_comes_first(fresh_cache, monkeypatch):
    """A second builder waits for the first, and finds its library; progress is told."""
    builds, reported = [], []

    def build(path):
        builds.append(path)
        path.write_bytes(b"library")

    monkeypatch.setattr(library, "_build", build)
    threads = [
        threading.Thread(target=library._built_path, args=(reported.append,)) for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(builds) == 1
    assert [line.split()[0] for line in reported] == ["building", "built"]


def test_sources_decide_where_it_is_cached(monkeypatch, tmp_path):
    """Another source is another library."""
    before = library._fingerprint()
    copy = tmp_path / "csrc"
    copy.mkdir()
    for source in library._SOURCES.iterdir():
        (copy / source.name).write_bytes(source.read_bytes())
    monkeypatch.setattr(library, "_SOURCES", copy)
    assert library._fingerprint() == before
    (copy / "all.cpp").write_text("")
    assert library._fingerprint() != before


def test_a_rank_waits_for_real_while_another_process_builds(monkeypatch, tmp_path):
    """In simulated time nobody would ever let go, and ranks would come in each other's way."""
    asked = []
    fake = SimpleNamespace(LOCK_EX=1, flock=lambda _file, _what: asked.append(running_task()))
    monkeypatch.setattr(library, "fcntl", fake)

    def program(rank):
        with library._locked(tmp_path / f"lock {rank}"):
            assert running_task() is not None

    simrank.multiprocessing.spawn(program, (), 2)
    assert asked == [None, None]


# ---- the library is one per process, and C++ raises Python's own exceptions ----


def test_it_is_loaded_once():
    """And every function that Python calls is there."""
    loaded = library.native()
    assert loaded is library.native()
    for name in library._SIGNATURES:
        assert getattr(loaded, f"simrank_{name}")


def test_kept_exceptions_are_raised_once():
    """By the thread that kept them, as they are; then there is none."""
    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
    raise_kept = partial(torch.ops.simrank_cuda.raise_kept.default.redispatch, keys)
    error = KeyError("kept")
    assert library.keep(error) == -1
    with pytest.raises(KeyError) as caught:
        raise_kept(1)
    assert caught.value is error
    with pytest.raises(AssertionError, match="Torch not compiled with CUDA enabled"):
        raise_kept(0)


@pytest.mark.parametrize(
    "within",
    [
        torch.inference_mode,
        # `torch.tensor` is written so: it asks for the device that it puts its numbers on.
        lambda: torch._C._ExcludeDispatchKeyGuard(
            torch._C.DispatchKeySet(torch._C.DispatchKey.AutogradCPU)
        ),
    ],
    ids=["inference", "torch.tensor"],
)
def test_autograd_starts_wherever_a_program_first_uses_a_device(within):
    """Be it where autograd is switched off: nothing of the thread's own is asked."""
    with within():
        library._start_autograd_without_devices()
    assert torch.ones(1, requires_grad=True).mul(2).requires_grad
