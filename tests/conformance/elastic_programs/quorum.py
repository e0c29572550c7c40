"""A manager of replicas: each quorum makes its group by hand; replicas die, come and join."""

import os
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

STEPS, DIES_AT, PAUSES_AT = 8, 3, 6


class Replica:
    def __init__(self, me, port):
        self.me = me
        self.store = dist.TCPStore("127.0.0.1", port, is_master=False)
        self.group, self.quorum, self.rank, self.size = None, -1, 0, 0

    def wait_for_change(self):
        while int(self.store.get("quorum")) == self.quorum:
            time.sleep(0.05)

    def configure(self):
        self.group = None  # So that others who wait for this one know, too.
        self.wait_for_change()
        self.quorum = int(self.store.get("quorum"))
        members = [int(text) for text in self.store.get(f"members {self.quorum}").split(b",")]
        if self.me in members:
            self.rank, self.size = members.index(self.me), len(members)
            place = dist.PrefixStore(f"quorum {self.quorum}", self.store)
            self.group = dist.ProcessGroupGloo(place, self.rank, self.size)

    def step(self, number):
        x, step = torch.tensor([self.me + 1.0]), torch.tensor([number])
        self.group.allreduce([x]).wait()
        options = dist.AllreduceOptions()
        options.reduceOp = dist.ReduceOp.MAX
        self.group.allreduce([step], options).wait()
        return int(step.item()), x.item()


def work(me, port, results, *, is_new):
    replica, number, done = Replica(me, port), 0, []
    while replica.group is None:
        replica.configure()
    while number < STEPS:
        if (me, number, is_new) == (2, DIES_AT, False):
            os._exit(9)
        try:
            number, total = replica.step(number)
        except RuntimeError:
            done.append((number, "failed"))
            replica.store.add(f"lost {replica.quorum}", 1)
            replica.configure()
            continue
        done.append((number, replica.size, total))
        number += 1
        if number == PAUSES_AT and replica.size == 2:
            replica.store.set("paused", "")
            replica.configure()
    results.put((me, done))


def main():
    context = mp.get_context("spawn")
    results = context.SimpleQueue()
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)

    def start(me, *, is_new):
        process = context.Process(
            target=work, args=(me, store.port, results), kwargs={"is_new": is_new}
        )
        process.start()
        return process

    def form(quorum, members):
        store.set(f"members {quorum}", ",".join(map(str, members)))
        store.set("quorum", str(quorum))

    form(0, [0, 1, 2])
    processes = [start(me, is_new=False) for me in range(3)]
    processes[2].join()
    print("replica 2 ended with", processes[2].exitcode)
    while store.add("lost 0", 0) < 2:
        time.sleep(0.05)
    form(1, [0, 1])
    store.wait(["paused"])
    processes[2:] = [start(2, is_new=True), start(3, is_new=True)]
    form(2, [0, 1, 2, 3])
    for result in sorted(results.get() for _ in processes):
        print(result)
    for process in processes:
        process.join()
    print([process.exitcode for process in processes])


if __name__ == "__main__":
    main()
