"""Threads of a rank that share a list, a queue, a lock, an event or a variable."""

from __future__ import annotations

import textwrap

from tests.timings.program import Program


class Threads(Program):
    """Code of threads: each method returns it, given the lines that start and join threads."""

    def _appends(self, start: str, join: str) -> str:
        shown = self.show(["sorted(seen$v)", "len(seen$v)"], ["seen$v", "seen$v[0]"])
        body = (
            "def body$v(i):\n"
            f"    time.sleep({self.ms()})\n    with lock$v:\n        seen$v.append(i)\n"
        )
        failing = self.failure("seen$v[0] == 0")
        made = "seen$v, lock$v = [], threading.Lock()\n\n"
        return f"{made}{body}\n{start}\n{join}say('order', {shown})\n{failing}"

    def _counts(self, start: str, join: str) -> str:
        shown = self.show(["len(seen$v), store.add('count$v', 0)"], ["seen$v", "seen$v[0]"])
        body = (
            f"def body$v(i):\n    time.sleep({self.ms()})\n"
            '    seen$v.append(store.add("count$v", i + 1))\n'
        )
        return f"seen$v = []\n\n{body}\n{start}\n{join}say('counts', {shown})"

    def _queue(self, start: str, join: str) -> str:
        shown = self.show(["sorted(got$v)"], ["got$v"])
        body = f"def body$v(i):\n    time.sleep({self.ms()})\n    items$v.put(i)\n"
        take = "got$v = [items$v.get() for _ in range($n)]\n"
        if self.depends(0.4):
            take = (
                f"got$v = []\ntry:\n    got$v.append(items$v.get(timeout={self.ms()}))\n"
                "except queue.Empty:\n    say('empty')\n"
                "got$v += [items$v.get() for _ in range($n - len(got$v))]\n"
            )
        return f"items$v = queue.Queue()\n\n{body}\n{start}\n{take}{join}say('items', {shown})"

    def _event(self, start: str, join: str) -> str:
        body = f"def body$v(i):\n    time.sleep({self.ms()})\n    event$v.set()\n"
        limit = self.ms() if self.depends(0.8) else "9"
        look = self.rng.choice([f"event$v.wait({limit})", f"event$v.wait(timeout={limit})"])
        return (
            f"event$v = threading.Event()\n\n{body}\n{start}\nsay('set', {look})\n{join}"
            "say('in the end', event$v.is_set())"
        )

    def _updates(self, start: str, join: str) -> str:
        lost = self.depends(0.8)
        update = f"old = total$v[0]\ntime.sleep({self.ms(1, 2)})\ntotal$v[0] = old + 1\n"
        if not lost:
            update = "with lock$v:\n" + textwrap.indent(update, "    ")
        update = f"time.sleep({self.ms()} * i)\n{update}"
        failing = self.failure("total$v[0] == $n") if lost else "pass"
        return (
            "total$v, lock$v = [0], threading.Lock()\n\ndef body$v(i):\n"
            f"{textwrap.indent(update, '    ')}\n{start}\n{join}say('total', total$v[0])\n{failing}"
        )

    def _locks(self, start: str, join: str) -> str:
        """Two locks: taken in different orders (rarely), or one of them with a time limit."""
        one, two = ("first$v", "second$v")
        made = "first$v, second$v, seen$v = threading.Lock(), threading.Lock(), []\n\n"
        if self.plants_deadlock(0.25):
            body = (
                "def body$v(i):\n"
                f"    one, two = ({one}, {two}) if i else ({two}, {one})\n"
                f"    with one:\n        time.sleep({self.ms(1, 2)} * i)\n"
                "        with two:\n            seen$v.append(i)\n"
            )
            late = self.ms(4, 8)
            slow = start.replace(
                "    thread.start()", f"    thread.start()\n    time.sleep({late})"
            )
            return f"{made}{body}\n{slow}\n{join}say('both', len(seen$v))"
        limit = self.rng.choice([f"timeout={self.ms(1, 3, 6)}", "blocking=False"])
        if not self.depends(0.9):
            limit = ""
        body = (
            f"def body$v(i):\n    time.sleep({self.ms()})\n    if first$v.acquire({limit}):\n"
            f"        time.sleep({self.ms(1, 4)})\n        seen$v.append(i)\n"
            "        first$v.release()\n"
        )
        shown = (
            "sorted(seen$v)" if not limit else self.rng.choice(["sorted(seen$v)", "len(seen$v)"])
        )
        return f"{made}{body}\n{start}\n{join}say('locked', {shown})"
