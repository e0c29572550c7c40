"""Every wait of the standard library in a rank: simulated, real and bounded, or refused by name."""

import _thread
import asyncio
import concurrent.futures
import errno
import fcntl
import multiprocessing
import os
import queue
import sched
import select
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest

import simrank
from simrank.engine import TimeLimitError
from simrank.errors import LivelockError, SpawnException, UnsupportedError
from simrank.isolation import blocking_calls

# Names are looked up within the Context, where they differ.
# ruff: noqa: PLW0108


WAIT_S = 2.0
PS_PER_S = 10**12
CHILD = [sys.executable, "-c", "print(5)"]


def empty(kind):
    """Wait for something out of an empty queue."""
    with pytest.raises(queue.Empty):
        kind().get(timeout=WAIT_S)


def hold(lock, rank):
    """Hold a lock for two seconds; the other rank waits for it that long."""
    with lock:
        time.sleep(WAIT_S)


def hold_file(lock, folder):
    with (folder / "lock").open("w") as file:
        lock(file, fcntl.LOCK_EX)
        time.sleep(WAIT_S)


def notified(folder):
    condition = threading.Condition()
    with condition:
        assert not condition.wait(WAIT_S)


def run_later(folder):
    scheduler = sched.scheduler()
    scheduler.enter(WAIT_S, 1, lambda: None)
    scheduler.run()


def break_barrier(folder):
    with pytest.raises(threading.BrokenBarrierError):
        threading.Barrier(2).wait(WAIT_S)


def wait_for_result(folder):
    with pytest.raises(TimeoutError):
        concurrent.futures.Future().result(WAIT_S)


def low_lock(folder):
    lock = _thread.allocate_lock()
    lock.acquire()
    assert not lock.acquire(timeout=WAIT_S)


def reentrant(folder):
    lock = threading.RLock()
    assert lock.acquire(timeout=WAIT_S)
    time.sleep(WAIT_S)


SIMULATED = {
    "time.sleep": lambda folder: time.sleep(WAIT_S),
    "threading.Lock": lambda folder: hold(threading.Lock(), folder),
    "threading.RLock": reentrant,
    "threading.Condition": notified,
    "threading.Event": lambda folder: threading.Event().wait(WAIT_S),
    "threading.Semaphore": lambda folder: threading.Semaphore(0).acquire(timeout=WAIT_S),
    "threading.BoundedSemaphore": lambda f: threading.BoundedSemaphore(0).acquire(timeout=WAIT_S),
    "threading.Barrier": break_barrier,
    "queue.Queue": lambda folder: empty(queue.Queue),
    "queue.LifoQueue": lambda folder: empty(queue.LifoQueue),
    "queue.PriorityQueue": lambda folder: empty(queue.PriorityQueue),
    "queue.SimpleQueue": lambda folder: empty(queue.SimpleQueue),
    "asyncio.run": lambda folder: asyncio.run(asyncio.sleep(WAIT_S)),
    "concurrent.futures.Future.result": wait_for_result,
    "concurrent.futures.wait": lambda folder: concurrent.futures.wait(
        [concurrent.futures.Future()], WAIT_S
    ),
    "sched.scheduler.run": run_later,
    "select.select of nothing": lambda folder: select.select([], [], [], WAIT_S),
    "fcntl.flock": lambda folder: hold_file(fcntl.flock, folder),
    "fcntl.lockf": lambda folder: hold_file(fcntl.lockf, folder),
    "_thread.allocate_lock": low_lock,
    "multiprocessing.Lock": lambda folder: hold(multiprocessing.Lock(), folder),
    "multiprocessing.Queue": lambda folder: empty(multiprocessing.Queue),
}


def poll_child(folder):
    with subprocess.Popen(CHILD, stdout=subprocess.DEVNULL) as child:
        while child.poll() is None:
            time.sleep(1e-6)


def communicate(folder):
    with subprocess.Popen(CHILD, stdout=subprocess.PIPE) as child:
        assert child.communicate(timeout=30)[0] == b"5\n"


def wait_for_child(folder):
    with subprocess.Popen(CHILD, stdout=subprocess.DEVNULL) as child:
        assert child.wait(timeout=30) == 0


def wait_for_process(folder):
    pid = os.posix_spawn(sys.executable, [sys.executable, "-c", ""], os.environ)
    assert os.waitpid(pid, 0)[1] == 0


def read_pipe(folder):
    with os.popen("echo 5") as pipe:
        assert os.read(pipe.fileno(), 2) == b"5\n"


def talk(folder):
    """Talk to oneself, which needs no other rank."""
    server = socket.create_server(("127.0.0.1", 0))
    client = socket.create_connection(server.getsockname())
    there, _ = server.accept()
    there.sendall(b"hello")
    assert client.recv(5) == b"hello"
    assert select.select([client], [], [], 0.0) == ([], [], [])
    there.close()
    assert select.select([client], [], []) == ([client], [], [])
    client.close()
    server.close()


def poll_pipe(folder):
    end, other = os.pipe()
    poll = select.poll()
    poll.register(end, select.POLLIN)
    os.write(other, b"1")
    assert poll.poll(1000) == [(end, select.POLLIN)]
    with selectors.DefaultSelector() as selector:
        selector.register(end, selectors.EVENT_READ)
        assert len(selector.select()) == 1
    os.close(end)
    os.close(other)


REAL = {
    "subprocess.run": lambda folder: subprocess.run(CHILD, timeout=30, check=True),
    "subprocess.Popen.wait": wait_for_child,
    "subprocess.Popen.communicate": communicate,
    "subprocess.Popen.poll": poll_child,
    "os.system": lambda folder: os.system("exit 0"),
    "os.popen": read_pipe,
    "os.waitpid": wait_for_process,
    "os.read": read_pipe,
    "socket.socket": talk,
    "select.select": talk,
    "select.poll": poll_pipe,
    "selectors.DefaultSelector": poll_pipe,
    "signal.sigtimedwait": lambda folder: signal.sigtimedwait([signal.SIGUSR1], 0.001),
}


async def to_thread():
    await asyncio.to_thread(print)


async def run_child():
    await asyncio.create_subprocess_exec(*CHILD)


REFUSED = {
    "threading.Thread": lambda: threading.Thread(target=print).start(),
    "threading.Timer": lambda: threading.Timer(1, print).start(),
    "_thread.start_new_thread": lambda: _thread.start_new_thread(print, ()),
    "concurrent.futures.ThreadPoolExecutor": lambda: concurrent.futures.ThreadPoolExecutor().submit(
        print
    ),
    "concurrent.futures.ProcessPoolExecutor": lambda: (
        concurrent.futures.ProcessPoolExecutor().submit(print)
    ),
    "multiprocessing.Process": lambda: multiprocessing.Process(target=print).start(),
    "multiprocessing.Pool": lambda: multiprocessing.Pool(1),
    "os.fork": lambda: os.fork(),
    "os.forkpty": lambda: os.forkpty(),
    "signal.pause": lambda: signal.pause(),
    "signal.sigwait": lambda: signal.sigwait([signal.SIGUSR1]),
    "signal.sigwaitinfo": lambda: signal.sigwaitinfo([signal.SIGUSR1]),
    "asyncio.to_thread": lambda: asyncio.run(to_thread()),
    "asyncio.create_subprocess_exec": lambda: asyncio.run(run_child()),
}


def test_every_wait_of_the_table_has_an_example():
    """One that is added there is tried here."""
    examples = {
        blocking_calls.SIMULATED: SIMULATED,
        blocking_calls.REAL: REAL,
        blocking_calls.REFUSED: REFUSED,
    }
    assert {kind: set(names) for kind, names in blocking_calls.WAITS.items()} == {
        kind: set(programs) for kind, programs in examples.items()
    }


@pytest.mark.parametrize("name", SIMULATED)
def test_a_simulated_wait_passes_simulated_time(run, tmp_path, name):
    """Both ranks wait at the same time, or one after the other."""
    ctx = run(lambda rank, ctx: SIMULATED[name](tmp_path), 2)
    assert ctx.now_ps >= WAIT_S * PS_PER_S


@pytest.mark.slow
@pytest.mark.parametrize("name", REAL)
def test_a_real_wait_passes_no_simulated_time(run, tmp_path, name):
    """Nor is it taken for a deadlock or a livelock; what polls is charged for its polls alone."""
    ctx = run(lambda rank, ctx: REAL[name](tmp_path), 2)
    assert ctx.now_ps < PS_PER_S


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_is_refused_by_name(run, name):
    """In a rank; the main program may do it."""
    with pytest.raises(SpawnException) as caught:
        run(lambda rank, ctx: REFUSED[name](), 1)
    error = caught.value.errors[0]
    assert type(error) is UnsupportedError
    assert "inside a simulated rank" in str(error)


def test_a_child_of_asyncio_is_refused_before_it_is_started(run, monkeypatch):
    """Nobody would watch it: asyncio has no handle of it yet when the rank fails."""
    started = []
    monkeypatch.setattr(subprocess.Popen, "__init__", lambda self, *args, **_: started.append(args))
    monkeypatch.setattr(subprocess.Popen, "__del__", lambda self: None)
    with pytest.raises(SpawnException, match="subprocesses inside a simulated rank"):
        run(lambda rank, ctx: asyncio.run(run_child()), 1)
    assert started == []


@pytest.mark.slow
def test_a_child_that_takes_too_long_is_ended_after_real_time(run):
    """`timeout` of a child process is real, as the child is."""

    def program(rank, ctx):
        with pytest.raises(subprocess.TimeoutExpired):
            subprocess.run(["sleep", "60"], timeout=0.05, check=False)
        assert time.monotonic() < 1e-3

    run(program, 2)


def test_a_socket_that_only_another_rank_could_serve_ends_with_the_reason(run, monkeypatch):
    """After a minute; here at once."""
    monkeypatch.setattr(blocking_calls, "MAX_S", 0.01)

    def program(rank, ctx):
        with socket.create_server(("127.0.0.1", 0)) as server:
            with pytest.raises(TimeoutError) as caught:
                server.accept()
            assert "no other rank can answer" in caught.value.__notes__[0]
            with pytest.raises(UnsupportedError, match="no other rank can answer"):
                select.select([server], [], [])

    run(program, 2)


@pytest.mark.slow
def test_a_file_lock_that_nobody_gives_back_is_a_livelock(run, tmp_path):
    """Of ranks as of processes, and it names the call."""
    files = []

    def program(rank, ctx):
        files.append((tmp_path / "lock").open("w"))
        fcntl.flock(files[-1], fcntl.LOCK_EX)

    with pytest.raises(LivelockError, match=r"fcntl\.flock"):
        run(program, 2)
    for file in files:
        file.close()


LOCK, REENTRANT, OTHER = threading.Lock(), threading.RLock(), threading.Lock()


@pytest.mark.parametrize("name", ["LOCK", "REENTRANT"])
def test_a_lock_at_the_top_of_a_module_knows_ranks_apart(name):
    """One holds it while it sleeps, the other waits; afterwards it is itself again."""
    before, order = globals()[name], []

    def program(rank):
        with globals()[name]:
            order.append(rank)
            time.sleep(1)
            order.append(rank)

    with simrank.Context("hgx_h100") as ctx:
        ctx.multiprocessing.spawn(program, nprocs=2)
    assert order == [0, 0, 1, 1]
    assert globals()[name] is before


def test_modules_that_a_rank_imports_are_replaced_in_part_too(run, monkeypatch):
    """And given back at the end."""
    for name in ("timeit", "sched"):
        monkeypatch.delitem(sys.modules, name)
    seen = []

    def program(rank, ctx):
        import timeit

        time.sleep(1)
        seen.append(timeit.default_timer())

    run(program, 1)
    import timeit

    assert 1 <= seen[0] < 1.1
    assert timeit.default_timer is time.perf_counter


def test_children_inherit_the_rank_s_own_environment(monkeypatch, tmp_path):
    """As those of a process do, however they are started."""
    monkeypatch.delenv("OWN", raising=False)
    seen = {}

    def program(rank):
        os.environ["OWN"] = f"of rank {rank}"
        file = tmp_path / f"{rank}"
        shown = subprocess.run("echo $OWN", shell=True, capture_output=True, text=True, check=True)
        status = os.system(f"echo $OWN > {file}; exit 3")
        given = subprocess.check_output("echo $OWN", shell=True, text=True, env={"OWN": "given"})
        seen[rank] = [shown.stdout, file.read_text(), given, os.waitstatus_to_exitcode(status)]

    with simrank.Context("hgx_h100") as ctx:
        ctx.multiprocessing.spawn(program, nprocs=2)
    own = {rank: f"of rank {rank}\n" for rank in range(2)}
    assert seen == {rank: [own[rank], own[rank], "given\n", 3] for rank in range(2)}
    assert "OWN" not in os.environ


@pytest.mark.slow
def test_a_time_limit_ends_the_wait_for_a_child_and_the_child():
    """It is killed, as by `subprocess.run` when it is interrupted."""
    children = []

    def program(rank):
        with subprocess.Popen(["sleep", "6000"]) as child:
            children.append(child)
            try:
                child.wait()
            except BaseException:
                child.kill()
                raise

    def runs(rank):
        subprocess.run(["sleep", "6000"], check=False)

    for body in (program, runs):
        with pytest.raises(TimeLimitError), simrank.Context(time_limit_s=0.5) as ctx:
            ctx.multiprocessing.spawn(body, nprocs=1)
    assert children[0].returncode == -signal.SIGKILL


# ---- sockets that ranks bind: free ports are the same in every run, and none is given twice ----


@pytest.fixture
def on_ranks():
    """Return what runs a program on ranks and gives what they returned."""

    def run(program, nprocs=2, **options):
        returned = {}

        def body(rank):
            returned[rank] = program(rank)

        with simrank.Context("hgx_h100", **options) as ctx:
            ctx.multiprocessing.spawn(body, nprocs=nprocs)
        return returned

    return run


def find_free_port():
    """Return a port as many programs look for one."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as sock:
        sock.bind(("", 0))
        return sock.getsockname()[1]


def test_helpers_that_look_for_a_free_port_find_the_same_ones_in_every_run(on_ranks):
    """And never the same twice: the ranks of a host share its ports."""
    found = on_ranks(lambda rank: [find_free_port() for _ in range(3)], 4)
    ports = [port for listed in found.values() for port in listed]
    assert len(set(ports)) == len(ports) == 12
    assert found == on_ranks(lambda rank: [find_free_port() for _ in range(3)], 4)


def test_a_port_that_is_bound_is_in_use_for_others_and_free_once_closed(on_ranks):
    """The system's own error, with who holds it."""

    def program(rank):
        first, second = socket.socket(), socket.socket()
        first.bind(("127.0.0.1", 18000 + rank))
        assert first.getsockname() == ("127.0.0.1", 18000 + rank)
        with pytest.raises(OSError, match="Address already in use") as caught:
            second.bind(("", 18000 + rank))
        assert caught.value.errno == errno.EADDRINUSE
        (note,) = caught.value.__notes__
        first.close()
        second.bind(("", 18000 + rank))
        second.close()
        return note

    notes = on_ranks(program)
    assert notes[1].startswith(
        "simrank: port 18001 is held by a socket of rank 1 at test_blocking_calls"
    )


def test_a_port_is_free_when_its_rank_has_ended(on_ranks):
    """As that of a process; an open socket is closed by the system."""
    kept = []

    def program(rank):
        sock = socket.socket()
        sock.bind(("", 18100))
        kept.append(sock)

    with simrank.Context("hgx_h100") as ctx:
        for _ in range(2):
            ctx.multiprocessing.spawn(program, nprocs=1)
    for sock in kept:
        sock.close()
    assert len(kept) == 2


def test_hosts_have_ports_of_their_own():
    """Ranks 0 and 8 are on different nodes."""

    def program(rank):
        if rank % 8 == 0:
            sock = socket.socket()
            sock.bind(("", 18200))
            simrank.distributed.init_process_group("gloo")
            sock.close()

    with simrank.Context({"name": "h100_ib", "nodes": 2}) as ctx:
        ctx.multiprocessing.spawn(program, nprocs=9)


def test_reuse_shares_a_port_until_somebody_listens(on_ranks):
    """SO_REUSEADDR, as Linux has it; tcp and udp have ports of their own."""

    def program(rank):
        first, second, third = (socket.socket() for _ in range(3))
        for sock in (first, second, third):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        first.bind(("127.0.0.1", 18300))
        second.bind(("127.0.0.1", 18300))
        datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        datagrams.bind(("127.0.0.1", 18300))
        second.listen()
        with pytest.raises(OSError, match="in use"):
            third.bind(("127.0.0.1", 18300))
        for sock in (first, second, third, datagrams):
            sock.close()

    on_ranks(program, 1)


def test_a_server_in_a_rank_is_real(on_ranks):
    """It answers at the address that it says."""

    def program(rank):
        server = socket.create_server(("127.0.0.1", 0))
        with socket.create_connection(server.getsockname()) as client:
            answer, _ = server.accept()
            client.sendall(b"hello")
            assert answer.recv(5) == b"hello"
        answer.close()
        server.close()

    on_ranks(program, 1)


def test_outside_ranks_sockets_are_the_systems():
    """Two that bind the same port there are told by the system."""
    with simrank.Context("hgx_h100"), socket.socket() as first, socket.socket() as second:
        first.bind(("127.0.0.1", 0))
        port = first.getsockname()[1]
        with pytest.raises(OSError, match="in use") as caught:
            second.bind(("127.0.0.1", port))
        assert not hasattr(caught.value, "__notes__")
