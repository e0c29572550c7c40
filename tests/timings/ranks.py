"""Random programs of ranks: scenarios of messages, collectives, stores, clocks and streams."""

from __future__ import annotations

import textwrap
from itertools import pairwise
from string import Template
from typing import TYPE_CHECKING

from tests.timings.threads import Threads

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    Step = dict[int, str]  # Code by rank.

_ALL_KINDS_OF_POLLS = ("once", "bounded", "counted")
_RANKS = """\


def say(*values):
    print(f"r{rank}:", *values, flush=True)


$setup
rank, size = dist.get_rank(), dist.get_world_size()
store = $store
"""
_GLOO = 'device = "cpu"\ndist.init_process_group("gloo")'
_NCCL = (
    'device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))\ntorch.cuda.set_device(device)\n'
    'dist.init_process_group("nccl")'
)
_STORE = "dist.distributed_c10d._get_default_store()"


class Ranks(Threads):
    """A program that torchrun starts."""

    def __init__(self, rng: random.Random, *, is_safe: bool, cuda: bool) -> None:
        super().__init__(rng, is_safe=is_safe)
        self.num_ranks, self.cuda = rng.choice((2, 2, 3, 3, 4)), cuda

    def text(self) -> str:
        """Return the program."""
        scenarios = self._scenarios()
        store = _STORE
        if self.rng.random() < 0.3:
            store = f'dist.PrefixStore("mine", {_STORE})'
        setup = _NCCL if self.cuda else _GLOO
        parts = [self.head(self.num_ranks), Template(_RANKS).substitute(setup=setup, store=store)]
        parts += [self._written(step) for step in self._merged(scenarios)]
        return "".join([*parts, "dist.barrier()\ndist.destroy_process_group()\n"])

    def _scenarios(self) -> list[list[Step]]:
        """Return scenarios of two or three kinds, with 3 to 12 steps for each rank."""
        kinds = _CUDA_KINDS if self.cuda else _KINDS
        names = [name for name, weight in kinds.items() for _ in range(weight)]
        chosen = [self.rng.choice(names) for _ in range(self.rng.choice((1, 2, 2, 3, 3)))]
        found: list[list[Step]] = []
        target = self.rng.choice((3, 3, 4, 4, 5, 6, 8))  # Each choice multiplies the outcomes.
        counts = dict.fromkeys(range(self.num_ranks), 0)
        while sum(counts.values()) < target * self.num_ranks:
            name = self.rng.choice(chosen) if self.rng.random() < 0.85 else "collectives"
            self.kinds.append(name)  # First, since its length is the number of the scenario.
            steps = getattr(self, name)()
            for step in steps:
                for rank in step:
                    counts[rank] += 1
            if found and max(counts.values()) > 12:
                break
            found.append(steps)
        return found

    def _merged(self, scenarios: list[list[Step]]) -> list[Step]:
        """Return all steps in one order: scenario after scenario, or interleaved."""
        if self.rng.random() < 0.4:
            return [step for steps in scenarios for step in steps]
        rests, merged = [list(steps) for steps in scenarios], []
        while rests := [steps for steps in rests if steps]:
            merged.append(self.rng.choice(rests).pop(0))
        return merged

    def _written(self, step: Step) -> str:
        """Return a step as text: the branches of its ranks."""
        ranks_by_code: dict[str, list[int]] = {}
        for rank, code in step.items():
            slow = f"time.sleep({self.ms()})\n" if self.rng.random() < 0.15 else ""
            ranks_by_code.setdefault(f"jitter(rank)\n{slow}{code}\n", []).append(rank)
        if len(ranks_by_code) == 1 and len(step) == self.num_ranks:
            return next(iter(ranks_by_code))
        text = ""
        for number, (code, ranks) in enumerate(ranks_by_code.items()):
            among = f"rank == {ranks[0]}" if len(ranks) == 1 else f"rank in {tuple(ranks)}"
            text += f"{'el' if number else ''}if {among}:\n{textwrap.indent(code, '    ')}"
        return text

    def everyone(self, text: str, **names: object) -> Step:
        """Return a step with the same code for each rank."""
        return dict.fromkeys(range(self.num_ranks), self.code(text, **names))

    def each(self, text: str, **names: object) -> list[Step]:
        """Return a step per rank, with the same code."""
        return [{rank: code} for rank, code in self.everyone(text, **names).items()]

    def shuffled(self) -> list[int]:
        """Return all ranks in a random order."""
        return self.rng.sample(range(self.num_ranks), self.num_ranks)

    def poll(self, condition: str, *, ends: bool = True) -> str:
        """Return code that polls a condition; `ends` is whether a loop may wait for it."""
        kind = self.rng.choice(_ALL_KINDS_OF_POLLS if ends else _ALL_KINDS_OF_POLLS[:2])
        if kind == "once":
            shown = self.show(['"polled"'], ["done$v", "'early' if done$v else 'late'"])
            return self.code(f"done$v = {condition}\nsay({shown})")
        wait = self.rng.choice(["", f"time.sleep({self.ms()})"])
        shown = self.show(['"polled"'], ["n$v", "n$v > 0", "min(n$v, 2)"])
        bound = f" and n$v < {self.rng.randint(2, 4)}" if kind == "bounded" else ""
        if not bound and not wait and self.rng.random() < 0.7:
            wait = "time.sleep(0.001)"
        lines = [f"n$v = 0\nwhile not {condition}{bound}:\n    n$v += 1", f"    {wait}"]
        return self.code("\n".join([*lines[: 2 if wait else 1], f'say("polls", {shown})']))

    # ---- scenarios: messages ----

    def any_source_recv(self) -> list[Step]:
        """Receives from any source, one after the other."""
        dst, *srcs = self.shuffled()
        count = self.rng.choice((1, 1, 2))
        send = "for k in range($n):\n    dist.send(torch.tensor([rank * 10.0 + k]), $d, tag=$v)"
        receive = (
            "for {loop}:\n    part$v = torch.zeros(1)\n"
            "    got$v.append((dist.recv(part$v{source}, tag=$v), part$v.item()))\n"
        )
        loops = [receive.format(loop=f"_ in range({count * len(srcs)})", source="")]
        if count == 1 and len(srcs) > 1 and self.rng.random() < 0.4:
            others = f"source in sorted(set({srcs}) - {{got$v[0][0]}})"
            if self.plants_deadlock(0.25):  # The first may be the message of this source.
                others = f"source in ({srcs[0]},)"
            loops = [
                receive.format(loop="_ in range(1)", source=""),
                receive.format(loop=others, source=", source"),
            ]
        is_one = len(srcs) == 1  # Its messages come in order.
        everything = ["sorted(got$v)", "sum(part for _, part in got$v)", "len(got$v)"]
        ordered = ["got$v", "[source for source, _ in got$v]", "got$v[0]", "got$v[-1]"]
        shown = self.show(everything + ordered) if is_one else self.show(everything, ordered)
        failing = "pass" if is_one else self.failure(f"got$v[0][0] == {srcs[0]}")
        body = "got$v = []\n" + "".join(loops) + f'say("got", {shown})\n{failing}'
        sends = dict.fromkeys(srcs, self.code(send, n=count, d=dst))
        return [{dst: self.code(body), **sends}]

    def replies(self) -> list[Step]:
        """Answers of a server, in the order of its requests."""
        server, *clients = self.shuffled()
        serve = """
            for place in range($n):
                asked$v = torch.zeros(1)
                client$v = dist.recv(asked$v, tag=$v)
                dist.send(asked$v + 10 * place, client$v, tag=$v)
            """
        ask = f"""
            answer$v = torch.zeros(1)
            dist.send(torch.ones(1) * rank, $d, tag=$v)
            dist.recv(answer$v, $d, tag=$v)
            say("answer", {self.show(["answer$v.item() % 10"], ["answer$v.item()"])})
            """
        step = {server: self.code(serve, n=len(clients))}
        return [step | dict.fromkeys(clients, self.code(ask, d=server))]

    def any_source_irecv(self) -> list[Step]:
        """Posted receives from any source, and polls of them."""
        dst, *srcs = self.shuffled()
        post = """
            parts$v = [torch.zeros(1) for _ in range($n)]
            works$v = [dist.irecv(part, tag=$v) for part in parts$v]
            """
        steps = [{dst: self.code(post, n=len(srcs))}]
        send = self.code("dist.send(torch.ones(1) * rank, $d, tag=$v)", d=dst)
        steps += [{src: send} for src in srcs]
        if self.depends(0.4):
            polled = self.rng.choice(
                ["[work.is_completed() for work in works$v]", "works$v[0].is_completed()"]
            )
            place = self.rng.randint(1, len(steps))
            steps.insert(place, {dst: self.code(f'say("completed", {polled})')})
        shown = self.show(
            ["sorted(got$v)", "sum(part.item() for part in parts$v)"],
            ["got$v", "[part.item() for part in parts$v]", "got$v[0]"],
        )
        failing = self.failure(f"got$v[0] == {srcs[0]}") if len(srcs) > 1 else "pass"
        end = f"""
            for work in works$v:
                work.wait()
            got$v = [work._source_rank() for work in works$v]
            say("from", {shown})
            """
        return [*steps, {dst: self.code(textwrap.dedent(end).strip() + "\n" + failing)}]

    def polled_messages(self) -> list[Step]:
        """Polls of isend and irecv."""
        src, dst = self.shuffled()[:2]
        ends = self.rng.random() < 0.3 or self.cuda
        posts = [
            {src: self.code("sent$v = torch.full((4,), 3.0, device=device)\n"
                            "work$v = dist.isend(sent$v, $d, tag=$v)", d=dst)},
            {dst: self.code("part$v = torch.zeros(4, device=device)\n"
                            "work$v = dist.irecv(part$v, $s, tag=$v)", s=src)},
        ]  # fmt: skip
        self.rng.shuffle(posts)
        polls = [{rank: self.poll("work$v.is_completed()", ends=ends)} for rank in (src, dst)]
        if any(
            "while" in code and " and n" not in code for each in polls for code in each.values()
        ):
            self.marks += [] if self.cuda else ["simulated only"]
        ends_ = [
            {dst: self.code('work$v.wait()\nsay("part", part$v.sum().item())')},
            {src: self.code("work$v.wait()")},
        ]
        return [*posts, *self.rng.sample(polls, self.rng.randint(1, 2)), *ends_]

    def fixed_messages(self) -> list[Step]:
        """Messages in a fixed order, along a chain or around a ring."""
        ranks, steps = self.shuffled(), []
        if self.rng.random() < 0.4:
            ring = """
                sent$v = torch.tensor([float(rank)], device=device)
                part$v = torch.zeros(1, device=device)
                works$v = dist.batch_isend_irecv([
                    dist.P2POp(dist.isend, sent$v, (rank + 1) % size),
                    dist.P2POp(dist.irecv, part$v, (rank - 1) % size),
                ])
                for work in works$v:
                    work.wait()
                say("left", part$v.item())
                """
            return [self.everyone(ring)]
        for src, dst in pairwise(ranks):
            send = "dist.send(torch.tensor([rank + 0.5], device=device), $d)"
            receive = """
                part$v = torch.zeros(1, device=device)
                dist.recv(part$v, src=$s)
                say("received", part$v.item())
                """
            steps.append({src: self.code(send, d=dst), dst: self.code(receive, s=src)})
        return steps

    # ---- scenarios: collectives ----

    def collectives(self) -> list[Step]:
        """Blocking collectives whose values are printed."""
        root = self.rng.randrange(self.num_ranks)
        start = "x$v = torch.tensor([rank + 1.0, 2.0], device=device)\n"
        calls = [
            start + "dist.all_reduce(x$v)\nsay('sum', x$v.tolist())",
            start + "dist.all_reduce(x$v, op=dist.ReduceOp.MAX)\nsay('max', x$v.tolist())",
            start + f"dist.broadcast(x$v, src={root})\nsay('root', x$v.tolist())",
            start + "all$v = [torch.zeros_like(x$v) for _ in range(size)]\n"
            "dist.all_gather(all$v, x$v)\nsay('all', [x.tolist() for x in all$v])",
            start + f"dist.reduce(x$v, dst={root})\n"
            f"say('reduced', x$v.tolist() if rank == {root} else None)",
            "dist.barrier()",
        ]
        return [self.everyone(self.rng.choice(calls)) for _ in range(self.rng.randint(1, 2))]

    def polled_collectives(self) -> list[Step]:
        """Polls of an asynchronous collective."""
        start = self.rng.choice([
            "dist.all_reduce(x$v, async_op=True)",
            f"dist.broadcast(x$v, src={self.rng.randrange(self.num_ranks)}, async_op=True)",
        ])  # fmt: skip
        issue = "x$v = torch.full((3,), rank + 1.0, device=device)\nwork$v = " + start
        steps = [self.everyone(issue)]
        some = self.shuffled()[: self.rng.randint(1, 2)]
        steps += [{rank: self.poll("work$v.is_completed()")} for rank in some]
        steps.append(self.everyone('work$v.wait()\nsay("x", x$v.tolist())'))
        if self.depends(0.2):  # The poll of each rank changes the sum of all.
            poll = "early$v = torch.tensor([float(work$v.is_completed())], device=device)"
            total = 'dist.all_reduce(early$v)\nsay("early", early$v.item())'
            steps.insert(1, self.everyone(poll))
            steps.append(self.everyone(total))
        return steps

    # ---- scenarios: stores ----

    def store_values(self) -> list[Step]:
        """Store operations of which one must come before the other."""
        src, dst = self.shuffled()[:2]
        choices = [
            [{src: 'store.set("a$v", "7")'}, {dst: 'say("value", store.get("a$v").decode())'}],
            [*self.each('store.add("b$v", rank + 1)'), self.everyone("dist.barrier()"),
             {dst: 'say("sum", store.get("b$v").decode())'}],
            [{src: 'store.append("c$v", "x")\nstore.append("c$v", "y")'},
             self.everyone("dist.barrier()"), {dst: 'say("appended", store.get("c$v").decode())'}],
            [{src: 'store.set("d$v", "old")\nsay(store.compare_set("d$v", "old", "new").decode(),'
                   ' store.compare_set("d$v", "old", "newer").decode())\nstore.set("e$v", "1")'},
             {dst: 'store.wait(["e$v"])\nsay("checked", store.check(["d$v", "none$v"]), '
                   'store.check(["d$v"]))'}],
            [{src: 'store.set("f$v", "1")\nsay("deleted", store.delete_key("f$v"), '
                   'store.delete_key("f$v"), store.check(["f$v"]))'}],
        ]  # fmt: skip
        steps = self.rng.choice(choices)
        return [{rank: self.code(code) for rank, code in step.items()} for step in steps]

    def store_races(self) -> list[Step]:
        """Store operations whose results depend on the order of ranks."""
        if not self.depends():
            return self.store_values()
        src, dst, *_ = self.shuffled()
        end = [self.everyone("dist.barrier()"), {dst: 'say("value", store.get("a$v").decode())'}]
        choices = [
            [*self.each('store.append("a$v", str(rank))'), *end],
            [*self.each('store.set("a$v", str(rank))'), *end],
            self.each('say("added", store.add("a$v", 1))'),
            self.each('say("found", store.compare_set("a$v", "", str(rank)).decode())'),
            [{src: 'store.set("a$v", "1")'}, {dst: 'say("there", store.check(["a$v"]))'}],
            [{src: 'store.set("a$v", "1")'}, self.everyone("dist.barrier()"),
             *self.each('say("deleted", store.delete_key("a$v"))')],
            [self.everyone("before$v = store.num_keys()\ndist.barrier()"),
             {src: 'store.set("a$v", "1")\nstore.set("b$v", "1")'},
             {dst: 'say("new keys", store.num_keys() - before$v)'}],
            [{src: 'store.set("a$v", "old")\nstore.set("a$v", "new")'}, {dst: end[1][dst]}],
            [{dst: self.poll('store.check(["a$v"])', ends=False)},
             {src: 'store.set("a$v", "1")'}],
        ]  # fmt: skip
        steps = self.rng.choice(choices)
        return [{rank: self.code(code) for rank, code in step.items()} for step in steps]

    def store_wait(self) -> list[Step]:
        """A wait for a key with a time limit."""
        src, dst = self.shuffled()[:2]
        wait = """
            try:
                store.wait(["$key"], timedelta(milliseconds=$ms))
                say("there")
            except dist.DistStoreError:
                say("not there")
            """
        put = {src: self.code("time.sleep($s)\nstore.set('a$v', '1')", s=self.ms(2, 5, 20))}
        late = {dst: self.code(wait, key=f"none{len(self.kinds)}", ms=self.rng.randint(5, 20))}
        if self.depends(0.8):
            limited = {dst: self.code(wait, key=f"a{len(self.kinds)}", ms=self.rng.randint(5, 30))}
            return [limited, put] if self.rng.random() < 0.5 else [put, limited]
        known = {dst: self.code(wait, key=f"a{len(self.kinds)}", ms=8000)}
        return self.rng.choice([[late], [put, self.everyone("dist.barrier()"), known]])

    def election(self) -> list[Step]:
        """One rank becomes the leader by a store operation."""
        ways = [
            'if store.add("votes$v", 1) == 1:\n    store.set("leader$v", str(rank))\n'
            'leader$v = int(store.get("leader$v").decode())\n',
            'leader$v = int(store.compare_set("leader$v", "", str(rank)).decode())\n',
        ]
        safe, dependent = ["leader$v in range(size)"], ["leader$v", "rank == leader$v"]
        text = self.rng.choice(ways)
        shown = self.show(safe, dependent)
        text += f'say("leader", {shown})\n'
        steps = [self.everyone(text)]
        if self.rng.random() < 0.4:
            value = self.show(["x$v.item() == leader$v"], ["x$v.item()"])
            call = "x$v = torch.ones(1, device=device) * rank\ndist.broadcast(x$v, src=leader$v)\n"
            steps.append(self.everyone(f'{call}say("from leader", {value})'))
        rank = self.rng.randrange(self.num_ranks)
        failing = self.failure(f"leader$v != {rank}")
        return steps if failing == "pass" else [*steps, {rank: self.code(failing)}]

    def job_queue(self) -> list[Step]:
        """Ranks take jobs from a counter in the store."""
        take = """
            mine$v = []
            while (job := store.add("jobs$v", 1)) <= $jobs:
                mine$v.append(job)
                time.sleep($s)
            $show
            """
        shown = self.show(['say("no jobs left")'], ['say("jobs", mine$v)', "say(len(mine$v))"])
        jobs = self.rng.randint(2, 4)
        shown = self.code(shown)
        steps = self.each(take, jobs=jobs, s=self.ms(1, 2, 5), show=shown)
        total = """
            done$v = torch.tensor([float(len(mine$v))], device=device)
            dist.all_reduce(done$v)
            say("all jobs", done$v.item())
            """
        return [*steps, self.everyone(total)] if self.rng.random() < 0.6 else steps

    def own_barrier(self) -> list[Step]:
        """A barrier of the program's own: a counter in the store, and a polling loop."""
        polls = [
            'store.add("here$v", 0) == size', 'int(store.get("here$v")) == size',
            'store.check(["open$v"])',
        ]  # fmt: skip
        come = 'if store.add("here$v", 1) == size:\n    store.set("open$v", "1")\n'
        return [self.everyone(come + self._loop(self.rng.choice(polls)))]

    def _loop(self, condition: str) -> str:
        shown = self.show(['"passed"'], ["n$v", "n$v > 0", "'late' if n$v > 1 else 'in time'"])
        loop = f"n$v = 0\nwhile not {condition}:\n    n$v += 1\n    time.sleep({self.ms()})\n"
        return f'{loop}say("barrier", {shown})'

    # ---- scenarios: within a rank ----

    def clock(self) -> list[Step]:
        """Clock readings that are compared with thresholds."""
        clock = self.rng.choice(("time.time()", "time.perf_counter()", "time.monotonic()"))
        src, dst = self.shuffled()[:2]
        if not self.depends(0.8):
            sleep = f"t$v = {clock}\ntime.sleep(0.02)\nsay('slept', {clock} - t$v > 0.015)"
            return [{dst: self.code(sleep)}]
        threshold, send = self.ms(5, 10, 20), "dist.send(torch.ones(1, device=device), $d, tag=$v)"
        waits = [
            ("part$v = torch.zeros(1, device=device)\ndist.recv(part$v, $s, tag=$v)", send),
            ("store.wait(['t$v'])", "store.set('t$v', '1')"),
        ]
        wait, wake = waits[self.cuda or self.rng.randrange(2)]
        late = self.rng.choice(["say('late', late$v)", "if late$v:\n    say('too late')"])
        timed = f"t$v = {clock}\n{wait}\nlate$v = {clock} - t$v > {threshold}\n{late}"
        if self.rng.random() < 0.3:
            timed = (
                f"t$v, n$v = {clock}, 0\nwhile {clock} - t$v < 0.01:\n    n$v += 1\n"
                f"    time.sleep({self.ms(3, 4, 6)})\nsay('turns', n$v)"
            )
            return [{dst: self.code(timed)}]
        slow = f"time.sleep({self.ms(2, 10, 30)})\n"
        return [{dst: self.code(timed, s=src), src: self.code(slow + wake, d=dst)}]

    def threads(self) -> list[Step]:
        """Threads of a rank that share a list, a queue, a lock, an event or a variable."""
        rank, number = self.rng.randrange(self.num_ranks), self.rng.randint(2, 3)
        start = """
            threads$v = [threading.Thread(target=body$v, args=(i,)) for i in range($n)]
            for thread in threads$v:
                thread.start()
            """
        start = textwrap.dedent(start).strip("\n")
        join = "for thread in threads$v:\n    thread.join()\n"
        variants: list[Callable[[str, str], str]] = [
            self._appends, self._queue, self._event, self._updates, self._locks, self._counts,
        ]  # fmt: skip
        return [{rank: self.code(self.rng.choice(variants)(start, join), n=number)}]

    # ---- scenarios: CUDA ----

    def events(self) -> list[Step]:
        """Events of a side stream that are queried."""
        rank = self.rng.randrange(self.num_ranks)
        work = """
            side$v, event$v = torch.cuda.Stream(), torch.cuda.Event()
            x$v = y$v = torch.ones($m, $m, device=device)
            side$v.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side$v):
                for _ in range($n):
                    y$v = y$v @ x$v / $m
                event$v.record()
            """
        size, times = self.rng.choice((64, 256, 512)), self.rng.randint(1, 4)
        polled = self.rng.choice(("event$v.query()", "side$v.query()"))
        end = 'event$v.synchronize()\nsay("y", y$v[0, 0].item(), event$v.query())'
        codes = [self.code(work, m=size, n=times), self.poll(polled), self.code(end)]
        return [{rank: code} for code in codes]

    def two_streams(self) -> list[Step]:
        """Two streams, and the one that is idle first."""
        rank = self.rng.randrange(self.num_ranks)
        m, n = self.rng.choice((256, 512)), self.rng.choice((256, 1024))
        shown = self.show(["len(idle$v)"], ["idle$v", "idle$v[0]", "idle$v[-1]"])
        work = """
            streams$v = [torch.cuda.Stream() for _ in range(2)]
            x$v = [torch.ones(k, k, device=device) for k in ($m, $n)]
            for stream, x in zip(streams$v, x$v):
                stream.wait_stream(torch.cuda.current_stream())
                with torch.cuda.stream(stream):
                    x @ x
            idle$v = []
            while len(idle$v) < 2:
                idle$v += [i for i in (0, 1) if i not in idle$v and streams$v[i].query()]
            """
        return [{rank: self.code(work, m=m, n=n) + "\n" + self.code(f'say("idle", {shown})')}]


# Names of scenarios, with how often programs choose them.
_KINDS = {
    "any_source_recv": 4, "replies": 2, "any_source_irecv": 3, "polled_messages": 3,
    "fixed_messages": 2, "collectives": 2, "polled_collectives": 4, "store_values": 3,
    "store_races": 4, "store_wait": 2, "election": 3, "job_queue": 3, "own_barrier": 3,
    "clock": 3, "threads": 3,
}  # fmt: skip
_CUDA_KINDS = {
    "events": 5, "two_streams": 3, "polled_collectives": 5, "polled_messages": 2,
    "fixed_messages": 1, "collectives": 1, "store_races": 1, "own_barrier": 1, "clock": 1,
    "threads": 1,
}  # fmt: skip
