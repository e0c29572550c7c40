"""Files of users are read with a bound, and written whole or not at all."""

import os
import stat
import threading
from pathlib import Path

import pytest

from simrank.config import files
from simrank.config.files import read_bytes, read_user_file, write_text, written_whole
from simrank.errors import ConfigError


def test_a_file_is_replaced_as_the_block_ends(tmp_path):
    """Until then, and if the block raises, it is as it was; nothing else is left."""
    path = tmp_path / "rows.json"
    path.write_text("before")
    with pytest.raises(KeyboardInterrupt), written_whole(path) as file:
        file.write("half of")
        file.flush()
        assert path.read_text() == "before"
        raise KeyboardInterrupt
    assert path.read_text() == "before"
    write_text(path, "after\n")
    assert path.read_bytes() == b"after\n"
    assert os.listdir(tmp_path) == ["rows.json"]


def test_mode_and_links_stay(tmp_path):
    """A file that others may not read stays so; a link goes on naming its file."""
    path = tmp_path / "rows.json"
    path.write_text("before")
    path.chmod(0o600)
    link = tmp_path / "link.json"
    link.symlink_to(path)
    write_text(link, "after")
    assert link.is_symlink()
    assert path.read_text() == "after"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    fresh = tmp_path / "fresh"
    write_text(fresh, "x")
    assert stat.S_IMODE(fresh.stat().st_mode) == 0o666 & ~_umask()


def _umask():
    value = os.umask(0)
    os.umask(value)
    return value


def test_a_pipe_is_written_directly(tmp_path):
    """As is `/dev/stdout`: nothing is moved over it."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    found = []
    reader = threading.Thread(target=lambda: found.append(pipe.read_text()))
    reader.start()
    write_text(pipe, "text")
    reader.join()
    assert found == ["text"]
    assert pipe.is_fifo()
    write_text("/dev/null", "text")
    assert not Path("/dev/null").is_file()


@pytest.mark.parametrize("name", ["no/such/folder", "full"])
def test_an_error_of_writing_names_the_file(tmp_path, name):
    """Not the draft beside it."""
    path = "/dev/full" if name == "full" else str(tmp_path / name)
    with pytest.raises(OSError, match=r"No (such file|space left)") as caught:
        write_text(path, "text")
    assert caught.value.filename == path


def test_an_error_of_writing_has_one_name(tmp_path, monkeypatch):
    """The file's; of what a full disk took nothing is left."""
    path = tmp_path / "r.json"

    def full(draft, target):
        raise OSError(28, "No space left on device", draft, None, target)

    monkeypatch.setattr(files.os, "replace", full)
    with pytest.raises(OSError, match="No space left") as caught:
        write_text(path, "text")
    assert str(caught.value) == f"[Errno 28] No space left on device: '{path}'"
    assert os.listdir(tmp_path) == []


def test_a_draft_is_a_new_file_of_an_unpredictable_name(tmp_path, monkeypatch):
    """A link in its place is not followed."""
    other = tmp_path / "other"
    other.write_text("before")
    names = []
    for _ in range(2):
        with written_whole(tmp_path / "rows") as file:
            names.append(Path(file.name).name)
    assert len(set(names)) == 2
    monkeypatch.setattr(files.os, "urandom", bytes)
    (tmp_path / f".{'00' * 8}.part").symlink_to(other)
    with pytest.raises(FileExistsError):
        write_text(tmp_path / "rows", "text")
    assert other.read_text() == "before"


def test_bytes_are_written_as_they_are(tmp_path):
    """Dumps, for example."""
    with written_whole(tmp_path / "dump", "wb") as file:
        file.write(b"\r\n\0")
    assert read_bytes(tmp_path / "dump") == b"\r\n\0"


@pytest.mark.parametrize("path", ["/dev/zero", "/dev/tty0", "/dev/null"])
def test_a_device_is_not_read(path):
    """It may have no end."""
    if not Path(path).exists():
        pytest.skip("no such device")
    with pytest.raises(ConfigError, match="expected a file that can be read, got"):
        read_user_file(path)


def test_a_file_without_end_is_not_read_to_it(tmp_path, monkeypatch):
    """The bound is in the message."""
    monkeypatch.setattr(files, "MAX_FILE_BYTES", 2 << 30)
    sparse = tmp_path / "sparse"
    with sparse.open("wb") as file:
        file.truncate(100)
    assert len(read_user_file(sparse)) == 100
    monkeypatch.setattr(files, "MAX_FILE_BYTES", 99)
    with pytest.raises(ConfigError, match="got more than 0 GiB"):
        read_user_file(sparse)
