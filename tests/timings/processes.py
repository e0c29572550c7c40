"""Random programs that start processes themselves."""

from __future__ import annotations

import textwrap
from string import Template

from tests.timings.program import Program

_PLAIN = """\


def say(who, *values):
    print(f"r{who}:", *values, flush=True)


def child(rank, messages, value, lock, event, folder):
$child

if __name__ == "__main__":
    ctx = mp.get_context("spawn")
    messages, value = ctx.Queue(), ctx.Value("i", 0, lock=False)
    lock, event = ctx.Lock(), ctx.Event()
    with tempfile.TemporaryDirectory() as folder:
        args = messages, value, lock, event, folder
$parent
"""


class Processes(Program):
    """A program that starts processes itself, which share a queue, a value, a lock, an event."""

    def text(self) -> str:
        """Return the program."""
        self.marks.append("plain")
        number = self.rng.randint(2, 3)
        child, before, after = "", "", ""
        kinds = ["_messages", "_value", "_event", "_try_lock", "_group"]
        for kind in self.rng.sample(kinds, self.rng.randint(2, 3)):
            self.kinds.append(f"processes{kind}")
            parts = [self.code(part, n=number) for part in getattr(self, kind)()]
            child += f"jitter(rank)\n{parts[0]}\n"
            before += f"{parts[1]}\n" if parts[1] else ""
            after += f"{parts[2]}\n" if parts[2] else ""
        start = (
            "children = [ctx.Process(target=child, args=(i, *args)) for i in range($n)]\n"
            "for each in children:\n    each.start()\n"
        )
        join = (
            "for each in children:\n    each.join()\nsay('main', [p.exitcode for p in children])\n"
        )
        if self.rng.random() < 0.3:
            start = "children = mp.spawn(child, args=args, nprocs=$n, join=False)\n"
            join = "while not children.join():\n    pass\n"
        parent = self.code(start, n=number) + "\n" + before + join + after
        text = self.head(1).replace("import queue\n", "import queue\nimport tempfile\n")
        return text + Template(_PLAIN).substitute(
            child=textwrap.indent(child, "    "), parent=textwrap.indent(parent, " " * 8).rstrip()
        )

    # Each returns code of each child, of the parent while children run, and after their end.

    def _messages(self) -> tuple[str, str, str]:
        """Messages of the children in one queue."""
        count = self.rng.randint(1, 2)
        put = f"for k in range({count}):\n    messages.put(rank * 10 + k)"
        total = f"$n * {count}"
        get = f"got = [messages.get() for _ in range({total})]\n"
        if self.depends(0.3):
            get = (
                f"got = []\ntry:\n    got.append(messages.get(timeout={self.ms(2, 10, 20)}))\n"
                f"except queue.Empty:\n    say('main', 'empty')\n"
                f"got += [messages.get() for _ in range({total} - len(got))]\n"
            )
        shown = self.show(["sorted(got)", "sum(got)"], ["got", "got[0]", "got[-1]"])
        failing = self.failure("got[0] < 10")
        return put, f"{get}say('main', 'got', {shown})\n{failing}", ""

    def _value(self) -> tuple[str, str, str]:
        """Updates of a value, with a lock or without."""
        update = "old = value.value\ntime.sleep(0.001)\nvalue.value = old + 1"
        if not self.depends(0.6):
            update = "with lock:\n" + textwrap.indent(update, "    ")
        return update, "", "say('main', 'value', value.value)"

    def _event(self) -> tuple[str, str, str]:
        """An event that a child sets, and the others wait for."""
        wait, limit = f"time.sleep({self.ms()})\nevent.set()", "120"
        if self.depends(0.7):
            limit = self.ms(5, 20, 50)
        look = f"say(rank, 'set', event.wait({limit}))"
        return f"if rank == 0:\n{textwrap.indent(wait, '    ')}\nelse:\n    {look}", "", ""

    def _try_lock(self) -> tuple[str, str, str]:
        """A lock that each child takes, or tries to take."""
        limit = self.rng.choice(["block=False", f"timeout={self.ms(1, 4)}"])
        limit = limit if self.depends(0.7) else ""
        take = (
            f"locked = lock.acquire({limit})\nsay(rank, 'locked', locked)\nif locked:\n"
            f"    time.sleep({self.ms(1, 4)})\n    lock.release()"
        )
        return take, "", ""

    def _group(self) -> tuple[str, str, str]:
        """A process group of the children."""
        recv = "\n    got = [dist.recv(torch.zeros(1)) for _ in range($n - 1)]"
        shown = self.show(["sorted(got)"], ["got"])
        text = (
            'path = os.path.join(folder, "store")\n'
            'method = f"file://{path}"\n'
            'dist.init_process_group("gloo", init_method=method, rank=rank, world_size=$n)\n'
            "x = torch.ones(1) * rank\ndist.all_reduce(x)\nsay(rank, 'sum', x.item())\n"
            f"if rank == 0:{recv}\n    say(rank, 'from', {shown})\nelse:\n    dist.send(x, 0)\n"
            "dist.barrier()\ndist.destroy_process_group()"
        )
        return text, "", ""
