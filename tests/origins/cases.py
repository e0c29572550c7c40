"""Functions that workers run; they import this module, which imports little."""

import os
import random
import stat
import time

from simrank import validate


def rank_and(value):
    return validate.rank(), value


def raise_on(ranks, text="boom"):
    if validate.rank() in ranks:
        raise ValueError(f"{text} {validate.rank()}")


def raise_beside_an_all_reduce(rank):
    raise_on([rank])
    with validate.collective("all_reduce"):
        time.sleep(600)


def kinds_of_standard_output():
    return [stat.S_ISSOCK(os.fstat(fd).st_mode) for fd in (1, 2)]


def write(data):
    os.write(1, data)
    return len(data)


def append(numbers):
    numbers.append(0)
    return numbers


def spoil():
    os.environ["SPOILED"] = "1"
    os.chdir("/")


def state():
    return os.environ.get("SPOILED"), os.getcwd(), random.random()


def end_process(path):
    """End rank 1 in its first run: the run that finds no file at `path`."""
    if validate.rank() == 1 and not os.path.exists(path):
        write(b"last words\n")
        os.close(os.open(path, os.O_CREAT))
        os._exit(7)
    return "alive"


def group():
    return id(validate.active_group()), str(validate.active_group())


def leave_out(rank):
    """Return on one rank, and wait for it on the other."""
    if validate.rank() != rank:
        with validate.collective("all_reduce"):
            time.sleep(600)
