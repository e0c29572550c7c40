"""Cases that change the state of their process, and a case that reads it; run by workers."""

from __future__ import annotations

import gc
import io
import locale
import logging
import os
import random
import signal
import socket
import sys
import tempfile
import threading
import time
import warnings
from pathlib import Path

import numpy as np

KEPT = []


def state():
    """Return the state that a case can see, as plain data."""
    return {
        "descriptors": sorted(map(os.readlink, _links())),
        "standard": [os.readlink(f"/proc/self/fd/{fd}") for fd in (0, 1, 2)],
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
    }


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


CHANGES = {
    "standard output is another file": _point_output_at_a_file,
    "standard output is closed": lambda: os.close(1),
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


def change(name):
    CHANGES[name]()


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
