"""MSCCL programs in the words of its XML, made by hand for these tests or written by its tool."""

from pathlib import Path

from simrank.formats.msccl import parse_msccl


class Block:
    """A thread block, to which steps are added."""

    def __init__(self, send=-1, recv=-1, channel=0):
        self.send, self.recv, self.channel = send, recv, channel
        self.steps = []

    def do(self, kind, src=("i", 0), dst=("o", 0), count=1, dep=(-1, -1), tell=0):
        """Add a step and return its number; `dep` is (thread block, step), `tell` is hasdep."""
        self.steps.append((kind, src, dst, count, dep, tell))
        return len(self.steps) - 1


def xml(coll, chunks, gpus, *, scratch=0, in_place=0, sizes=None):
    """Return the text of a program: of each GPU its blocks."""
    inputs, outputs = sizes or (chunks, chunks)
    channels = 1 + max((block.channel for blocks in gpus for block in blocks), default=0)
    lines = [
        f'<algo name="by hand" proto="LL" nchannels="{channels}" nchunksperloop="{chunks}" '
        f'ngpus="{len(gpus)}" coll="{coll}" inplace="{in_place}" outofplace="{1 - in_place}" '
        'minBytes="0" maxBytes="1048576">'
    ]
    for rank, blocks in enumerate(gpus):
        sizes_text = f'i_chunks="{inputs}" o_chunks="{outputs}" s_chunks="{scratch}"'
        lines.append(f'  <gpu id="{rank}" {sizes_text}>')
        for number, block in enumerate(blocks):
            ends = f'send="{block.send}" recv="{block.recv}" chan="{block.channel}"'
            lines.append(f'    <tb id="{number}" {ends}>')
            lines += [_step(*each) for each in enumerate(block.steps)]
            lines.append("    </tb>")
        lines.append("  </gpu>")
    return "\n".join([*lines, "</algo>", ""])


def _step(number, step):
    kind, src, dst, count, dep, tell = step
    return (
        f'      <step s="{number}" type="{kind}" srcbuf="{src[0]}" srcoff="{src[1]}" '
        f'dstbuf="{dst[0]}" dstoff="{dst[1]}" cnt="{count}" depid="{dep[0]}" deps="{dep[1]}" '
        f'hasdep="{tell}"/>'
    )


def program(*args, **kwargs):
    """Return a program read from the text of `xml`."""
    return parse_msccl(xml(*args, **kwargs).encode(), "test.xml")


def exchange():
    """An all_reduce of two GPUs as all pairs do it: in place, each sums what it received."""
    gpus = []
    for rank in range(2):
        pair = Block(send=1 - rank, recv=1 - rank)
        pair.do("s", ("i", 0), ("s", 0), 2)
        pair.do("r", ("i", 0), ("s", 0), 2, tell=1)
        first, second = Block(), Block()
        for chunk, adder in enumerate((first, second)):
            adder.do("nop", ("i", -1), ("o", -1), 0, dep=(0, 1))
            adder.do("re", ("s", chunk), ("i", chunk), dep=(0, 1))
        gpus.append([pair, first, second])
    return "allreduce", 2, gpus, {"scratch": 2, "in_place": 1, "sizes": (2, 0)}


def ring_all_reduce(world_size, *, kept=True):
    """An all_reduce around a ring with one thread block per GPU: s, rrs or rrcs, rcs, r."""
    gpus = []
    for rank in range(world_size):
        block = Block(send=(rank + 1) % world_size, recv=(rank - 1) % world_size)
        block.do("s", ("i", rank))
        for hop in range(1, world_size - 1):
            chunk = (rank - hop) % world_size
            kind = "rrcs" if kept else "rrs"
            block.do(kind, ("i", chunk), ("o", chunk))
        chunk = (rank + 1) % world_size
        block.do("rrcs", ("i", chunk), ("o", chunk))
        for hop in range(world_size - 2):
            block.do("rcs", dst=("o", (rank - hop) % world_size))
        block.do("r", dst=("o", (rank + 2) % world_size))
        gpus.append([block])
    return "allreduce", world_size, gpus, {}


def hierarchical_all_gather(channels=1):
    """An all_gather of four GPUs: over to the partner, and what it sent passed on; two ways."""
    gpus = []
    for rank in range(4):
        near, far = rank ^ 1, rank ^ 2
        blocks = []
        for channel in range(channels):
            own = rank * channels + channel
            out = Block(near, far, channel)  # Receives from afar, and passes it to its neighbour.
            out.do("s", ("i", channel), ("o", own))
            out.do("rcs", dst=("o", far * channels + channel))
            into = Block(far, near, channel)
            into.do("s", ("i", channel), ("o", own))
            into.do("r", dst=("o", near * channels + channel))
            into.do("r", dst=("o", (near ^ 2) * channels + channel))
            into.do("cpy", ("i", channel), ("o", own))
            blocks += [out, into]
        gpus.append(blocks)
    sizes = (channels, 4 * channels)
    return "allgather", 4 * channels, gpus, {"sizes": sizes}


def all_gather_in_place():
    """An all_gather of three GPUs whose input lies in its output; every pair by itself."""
    gpus = []
    for rank in range(3):
        peers = [(rank + 1) % 3, (rank + 2) % 3]
        blocks = [Block(peer, peer) for peer in peers]
        for block in blocks:
            block.do("s", ("o", rank))
            block.do("r", dst=("o", block.recv))
        gpus.append(blocks)
    return "allgather", 3, gpus, {"in_place": 1, "sizes": (1, 3)}


def reduce_scatter_in_place(buffer="o"):
    """A reduce_scatter of two GPUs; in place, OUTPUT is a part of INPUT."""
    gpus = []
    for rank in range(2):
        block = Block(1 - rank, 1 - rank)
        block.do("s", ("i", 2 * (1 - rank)), count=2)
        own = ("o", 0) if buffer == "o" else ("i", 2 * rank)
        block.do("rrc", ("i", 2 * rank), own, 2)
        gpus.append([block])
    return "reducescatter", 4, gpus, {"in_place": 1, "sizes": (4, 2)}


def all_to_all():
    """An all_to_all of three GPUs that goes through SCRATCH, and keeps its own part by a copy."""
    gpus = []
    for rank in range(3):
        blocks = []
        for number, peer in enumerate(((rank + 1) % 3, (rank + 2) % 3)):
            block = Block(peer, peer)
            block.do("s", ("i", peer))
            block.do("r", dst=("s", number), tell=1)
            blocks.append(block)
        local = Block()
        local.do("cpy", ("i", rank), ("o", rank))
        for number, peer in enumerate(((rank + 1) % 3, (rank + 2) % 3)):
            local.do("cpy", ("s", number), ("o", peer), dep=(number, 1))
        gpus.append([*blocks, local])
    return "alltoall", 3, gpus, {"scratch": 2}


_BY_HAND = {
    "exchange": exchange(),
    "ring": ring_all_reduce(4),
    "ring without copies": ring_all_reduce(4, kept=False),
    "hierarchical": hierarchical_all_gather(2),
    "all_gather in place": all_gather_in_place(),
    "reduce_scatter in place": reduce_scatter_in_place(),
    "reduce_scatter onto its input": reduce_scatter_in_place("i"),
    "all_to_all": all_to_all(),
}


_WRITTEN = Path(__file__).parent / "written"  # By msccl-tools; see the README there.
WRITTEN = [
    "ring_2x.xml",
    "allpairs.xml",
    "gather_2x2.xml",
    "gather_2x2_in_place_2x.xml",
    "scatter.xml",
    "scatter_in_place.xml",
    "exchange.xml",
]
RIGHT = [*_BY_HAND, *WRITTEN]


def named(name):
    """Return one of `RIGHT` as a program."""
    if name in WRITTEN:
        return parse_msccl(text_of(name).encode(), name)
    *args, options = _BY_HAND[name]
    return program(*args, **options)


def text_of(name):
    """Return one of `RIGHT` as XML."""
    if name in WRITTEN:
        # MSCCL's runtime knows the second word alone, and who uses the tool writes it by hand.
        return as_written(name).replace('coll="reduce_scatter"', 'coll="reducescatter"')
    *args, options = _BY_HAND[name]
    return xml(*args, **options)


def as_written(name):
    """Return a file of msccl-tools, as it is."""
    return (_WRITTEN / name).read_text()
