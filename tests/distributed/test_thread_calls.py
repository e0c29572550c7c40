"""Collectives of several threads on one group: a finding where nothing orders them."""

import queue
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

import simrank
import simrank.distributed as dist


def findings_of(program):
    """Return the findings of a program on two ranks."""
    with simrank.Context("hgx_h100", carrier="thread") as ctx:
        ctx.multiprocessing.spawn(program, nprocs=2)
    return ctx.findings


def reduce(group=None):
    dist.all_reduce(simrank.ones(4, device="cpu"), group=group)


def by_luck(rank):
    dist.init_process_group("gloo")
    thread = threading.Thread(target=reduce)
    thread.start()
    dist.barrier()
    thread.join()
    dist.destroy_process_group()


def test_threads_that_nothing_orders_are_a_finding():
    """With both lines, once for all ranks, and never an error."""
    (found,) = findings_of(by_luck)
    assert found.startswith("  ranks 0-1: two threads use group 'default_pg', and nothing orders")
    first, second = reduce.__code__.co_firstlineno + 1, by_luck.__code__.co_firstlineno + 4
    assert found.endswith(
        f"all_reduce at test_thread_calls.py:{first}, barrier at test_thread_calls.py:{second}"
    )


def joined():
    thread = threading.Thread(target=reduce)
    thread.start()
    thread.join()
    dist.barrier()


def future():
    with ThreadPoolExecutor(1) as pool:
        pool.submit(reduce).result()
        dist.barrier()
        done = pool.submit(reduce)
        while not done.done():
            time.sleep(0.001)
        dist.barrier()


def events():
    go, over = threading.Event(), threading.Event()

    def body():
        go.wait()
        reduce()
        over.set()

    thread = threading.Thread(target=body)
    thread.start()
    dist.barrier()
    go.set()
    over.wait()
    dist.barrier()
    thread.join()


def queues():
    asked, answered = queue.Queue(), queue.Queue()

    def serve():
        while asked.get():
            reduce()
            answered.put(True)

    thread = threading.Thread(target=serve)
    thread.start()
    for _ in range(2):
        asked.put(True)
        answered.get()
        dist.barrier()
    asked.put(False)
    thread.join()


def watched():
    done = []

    def body():
        reduce()
        done.append(True)

    thread = threading.Thread(target=body)
    thread.start()
    while not done:
        time.sleep(0.001)
    dist.barrier()
    thread.join()


def own_group():
    group = dist.new_group()
    thread = threading.Thread(target=reduce, args=(group,))
    thread.start()
    dist.barrier()
    thread.join()


@pytest.mark.parametrize("body", [joined, future, events, queues, watched, own_group])
def test_threads_that_the_program_orders_are_none(body):
    """By joins, futures, events, queues, what it watches, or a group of their own."""

    def program(rank):
        dist.init_process_group("gloo")
        body()
        dist.destroy_process_group()

    assert findings_of(program) == []
