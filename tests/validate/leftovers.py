"""Cases that change the state of their process, and a case that reads it; run by workers."""

from __future__ import annotations

import asyncio
import contextvars
import ctypes
import decimal
import gc
import io
import json
import locale
import logging
import multiprocessing
import os
import pickle
import random
import re
import resource
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import tracemalloc
import warnings
from contextlib import suppress
from pathlib import Path

import numpy as np

KEPT = []
OWN_COUNT = 0
VARIABLE = contextvars.ContextVar("VARIABLE", default=0)


def state():
    """Return the state that a case can see, as plain data."""
    return {
        "descriptors": sorted(map(_kind, _links())),
        "standard": [_kind(f"/proc/self/fd/{fd}") for fd in (0, 1, 2)],
        "alarm": signal.getitimer(signal.ITIMER_REAL),
        "handlers": {n: str(signal.getsignal(n)) for n in (2, 10, 14, 15)},
        "mask": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
        "warnings": (len(warnings.filters), warnings.showwarning.__qualname__),
        "logging": (logging.root.level, len(logging.root.handlers), logging.root.manager.disable),
        "numpy": (np.geterr(), np.get_printoptions()["precision"]),
        "gc": (gc.isenabled(), gc.get_threshold()),
        "socket": socket.getdefaulttimeout(),
        "folder": os.getcwd(),
        "umask": _umask(),
        "locale": locale.setlocale(locale.LC_ALL),
        "path": list(sys.path),
        "argv": list(sys.argv),
        "streams": [type(each).__name__ for each in (sys.stdin, sys.stdout, sys.stderr)],
        "hooks": [each.__module__ for each in (sys.excepthook, threading.excepthook)],
        "recursion": sys.getrecursionlimit(),
        "tracing": (sys.gettrace(), sys.getprofile()),
        "patched": [f.__module__ for f in (time.sleep, os.getcwd, random.random, print, open)],
        "environment": sorted(os.environ),
        **_more_state(),
    }


def _more_state():
    return {
        "classes": (json.JSONEncoder.default.__module__, Path.exists.__module__),
        "functions": [f.__module__ for f in (json.dumps, np.linalg.norm, shutil.copy)],
        "limits": (resource.getrlimit(resource.RLIMIT_NOFILE), tempfile.tempdir),
        "processors": (sorted(os.sched_getaffinity(0)), os.getpriority(os.PRIO_PROCESS, 0)),
        "rounding": ctypes.CDLL(None).fegetround(),
        "contexts": (decimal.getcontext().prec, VARIABLE.get()),
        "policy": type(asyncio.get_event_loop_policy()).__name__,
        "threads": sorted(thread.name for thread in threading.enumerate()),
        "children": len(multiprocessing.active_children()),
        "tracing memory": tracemalloc.is_tracing(),
        "own": (OWN_COUNT, own_function.__module__, sys.dont_write_bytecode),
    }


def own_function():
    """Stand for a program's own function."""


def _kind(link):
    return re.sub(r"\d+", "", os.readlink(link))  # A new process has pipes of other numbers.


def _links():
    # The listing's own descriptor is gone by the time it is read.
    return [
        f"/proc/self/fd/{fd}"
        for fd in os.listdir("/proc/self/fd")
        if os.path.exists(f"/proc/self/fd/{fd}")
    ]


def _umask():
    value = os.umask(0)
    os.umask(value)
    return value


def _point_output_at_a_file():
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _leave_a_file_open():
    KEPT.append(Path(tempfile.mkstemp()[1]).open("w"))  # noqa: SIM115 - it stays open


def _leave_a_descriptor_open():
    os.open(__file__, os.O_RDONLY)


def _leave_a_socket_open():
    KEPT.append(socket.socketpair())


def _close_descriptor_1():
    with suppress(OSError):  # Another change has closed it.
        os.close(1)


def _replace_output():
    sys.stdout = io.StringIO()


def _close_output():
    sys.stdout.close()


def _silence_loggers():
    logging.disable(logging.CRITICAL)
    logging.root.setLevel(1)
    logging.root.addHandler(logging.NullHandler())


def _settings_of_numpy():
    np.seterr(all="raise")
    np.set_printoptions(precision=2)


def _patch_modules():
    import builtins

    time.sleep = os.getcwd = random.random = lambda *_: None
    builtins.print = lambda *_, **__: None


def _move():
    os.chdir("/")
    os.umask(0o777)
    os.environ["LEFT"] = "1"


def _rebind_lists():
    sys.path = [*sys.path, "/left"]
    sys.argv = ["left"]
    sys.path_hooks.clear()


def _hooks():
    sys.excepthook = threading.excepthook = lambda *_: None
    sys.settrace(lambda *_: None)


def _patch_what_answers_are_made_of():
    json.dumps = pickle.dumps = pickle.loads = socket.socket.sendall = lambda *_, **__: None
    traceback.TracebackException = os.getpid = os._exit = struct.pack = None


def _patch_classes():
    json.JSONEncoder.default = Path.exists = Other.method
    np.linalg.norm = shutil.copy = Other.method


class Policy(asyncio.DefaultEventLoopPolicy):
    """A policy of the program's."""


class Other:
    """A class of the program's."""

    def method(self, *_):
        """Take the place of another one."""


def _count():
    global OWN_COUNT, own_function  # noqa: PLW0603 - this is what is tested
    OWN_COUNT += 1
    own_function = Other.method


def _start_a_child():
    KEPT.append(subprocess.Popen(["sleep", "600"]))


def _start_a_fork():
    if os.fork() == 0:
        time.sleep(600)


def _limit_files():
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (200, hard))


def _lower_a_hard_limit():
    resource.setrlimit(resource.RLIMIT_NOFILE, (300, 300))


class _Stream:
    def write(self, _):
        """Drop the text."""


class _FailingStream(_Stream):
    def flush(self):
        """Fail."""
        raise RuntimeError("flush")


def _start_a_daemon():
    threading.Thread(target=time.sleep, args=(600,), name="daemon", daemon=True).start()


CHANGES = {
    "what answers are made of is patched": _patch_what_answers_are_made_of,
    "classes are patched": _patch_classes,
    "a function is another one of its module": lambda: setattr(json, "dumps", json.loads),
    "globals of the program are set": _count,
    "a child is left": _start_a_child,
    "a fork is left": _start_a_fork,
    "a daemon thread is left": _start_a_daemon,
    "files are limited": _limit_files,
    "files are limited for good": _lower_a_hard_limit,
    "one processor is left": lambda: os.sched_setaffinity(0, [min(os.sched_getaffinity(0))]),
    "the process is nice": lambda: os.nice(3),
    "rounding is down": lambda: ctypes.CDLL(None).fesetround(0x400),
    "decimals are short": lambda: setattr(decimal.getcontext(), "prec", 3),
    "a context variable is set": lambda: VARIABLE.set(1),
    "a policy of asyncio is set": lambda: asyncio.set_event_loop_policy(Policy()),
    "memory is traced": tracemalloc.start,
    "files are made elsewhere": lambda: setattr(tempfile, "tempdir", "/"),
    "no bytecode is written": lambda: setattr(sys, "dont_write_bytecode", True),
    "sys.stderr is None": lambda: setattr(sys, "stderr", None),
    "sys.stdout has no flush": lambda: setattr(sys, "stdout", _Stream()),
    "sys.stdout fails to flush": lambda: setattr(sys, "stdout", _FailingStream()),
    "standard output is another file": _point_output_at_a_file,
    "standard output is closed": _close_descriptor_1,
    "sys.stdout is replaced": _replace_output,
    "sys.stdout is closed": _close_output,
    "a file is left open": _leave_a_file_open,
    "a descriptor is left open": _leave_a_descriptor_open,
    "a socket is left open": _leave_a_socket_open,
    "an alarm is set": lambda: signal.alarm(1),
    "signals are ignored": lambda: signal.signal(signal.SIGTERM, signal.SIG_IGN),
    "signals are blocked": lambda: signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1]),
    "warnings are errors": lambda: warnings.simplefilter("error"),
    "warnings are shown elsewhere": lambda: setattr(warnings, "showwarning", lambda *_: None),
    "loggers are changed": _silence_loggers,
    "numpy raises": _settings_of_numpy,
    "the collector is off": gc.disable,
    "sockets have a limit": lambda: socket.setdefaulttimeout(0.01),
    "folder, umask and environment are changed": _move,
    "the locale is changed": lambda: locale.setlocale(locale.LC_ALL, "C.UTF-8"),
    "lists of sys are replaced": _rebind_lists,
    "hooks are set": _hooks,
    "recursion is limited": lambda: sys.setrecursionlimit(70),
    "modules are patched": _patch_modules,
}


# What a process that stays cannot be rid of.
FOR_GOOD = (
    "a child is left",
    "a fork is left",
    "a daemon thread is left",
    "files are limited for good",
)


def change(*names):
    for name in names:
        CHANGES[name]()


def change_and_raise(*names):
    change(*names)
    raise ValueError("after the changes")


def leave_a_thread():
    threading.Thread(target=time.sleep, args=(60,), name="left").start()


def write_and_say(path):
    """Write a file and print, from Python and a child; return what the file holds."""
    sys.stdout.write("from Python\n")
    os.system("echo from a child")
    Path(path).write_text("written")
    return Path(path).read_text()


def torch_state():
    import torch

    return {
        "device": str(torch.get_default_device()),
        "dtype": str(torch.get_default_dtype()),
        "threads": torch.get_num_threads(),
        "modes": (
            torch.is_grad_enabled(),
            torch.is_anomaly_enabled(),
            torch.is_inference_mode_enabled(),
        ),
        "autocast": (torch.is_autocast_enabled("cpu"), torch.is_autocast_enabled("cuda")),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "stack": torch._C._len_torch_function_stack(),
        "matmul": torch.get_float32_matmul_precision(),
        "drawn": torch.rand(1).item(),
    }


def change_torch():
    import torch

    torch.set_default_device("meta")
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(3)
    torch.set_grad_enabled(False)
    torch.autograd.set_detect_anomaly(True)
    torch.set_autocast_enabled("cpu", True)
    torch.use_deterministic_algorithms(True)
    torch.set_float32_matmul_precision("medium")


def enter_inference_mode():
    import torch

    KEPT.append(torch.inference_mode())
    KEPT[-1].__enter__()
