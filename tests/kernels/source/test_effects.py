"""What a kernel shows to other programs, read off its source."""

import ast

import pytest

from simrank.kernels.source.analyse import effects_of


def of(*lines):
    """The effects of a kernel with these lines; strings are known where they are written."""
    tree = ast.parse("def kernel():\n" + "".join(f"    {line}\n" for line in lines)).body[0]
    return effects_of(tree, lambda _: None, lambda text: getattr(text, "value", None))


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("tl.store(x, 1)", ""),
        ("tl.atomic_add(x, 1)", ["reads", "publishes"][0]),
        ('tl.atomic_add(x, 1, sem="release")', "reads publishes"),
        ('tl.atomic_xchg(x, 1, sem="relaxed", scope="sys")', "reads publishes"),
        ("tl.atomic_poll(x, 1)", "waits"),
        ("tl.inline_asm_elementwise('mov.u32 $0, %laneid;')", "reads publishes threads"),
        ("tl.inline_asm_elementwise('a: ld.u32 $0, [$1]; bra a;')", "reads waits"),
        ("tl.inline_asm_elementwise(text)", "reads waits publishes"),
        ("extern_call('', '', [], {(): ('nvshmem_my_pe', t)})", ""),
        ("extern_call('', '', [], {(): ('nvshmem_barrier_all', t)})", "publishes waits"),
        ("extern_call('', '', [], {(): (f'nvshmem_{name}', t)})", "publishes waits"),
        ("extern_call('nvshmem', '', [], {(): ('my_own', t)})", ""),
    ],
)
def test_a_line_says_what_it_does(line, names):
    """What is not known may wait and publish."""
    effects = of(line)
    found = {name for name in effects.__slots__ if getattr(effects, name)}
    assert found == set(names.split())


def test_a_kernel_does_what_its_lines_do():
    """All of them."""
    effects = of("tl.atomic_poll(x, 1)", 'tl.atomic_xchg(y, 1, sem="release")')
    assert (effects.waits, effects.publishes) == (True, True)
