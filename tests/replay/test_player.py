"""What a rank of a replay does."""

import simrank
from simrank.engine import Observer
from simrank.replay.run import Player
from simrank.replay.trace import CALC, RECV, SEND, Node


def test_messages_of_one_size_share_a_buffer():
    """Receives that are posted at once need the memory of one."""
    nodes = (
        [Node(f"r{tag}", RECV, "t:1", size_bytes=1 << 30, peer=1, tag=tag) for tag in range(300)],
        [Node(f"s{tag}", SEND, "t:1", size_bytes=1 << 30, peer=0, tag=tag) for tag in range(300)],
    )
    with simrank.Context("hgx_h100", data=False) as ctx:
        players = [Player(rank, nodes[rank], [], ctx) for rank in range(2)]
        ctx.multiprocessing.spawn(lambda rank: players[rank].play(), nprocs=2, share_args=True)
        assert ctx.devices[0].memory.peak_bytes == 1 << 30


def test_calcs_run_on_streams_of_their_rank_under_their_labels():
    """As timelines show them."""
    seen = []

    class Seen(Observer):
        def on_operation(self, operation):
            seen.append((operation.name, operation.stream.name, operation.stream.device.index))

    with simrank.Context("hgx_h100", data=False) as ctx:
        ctx.observe(Seen())
        player = Player(0, [Node("l1", CALC, "t:1", duration_ps=5, stream=2)], [], ctx)
        ctx.multiprocessing.spawn(lambda rank: player.play(), nprocs=1, share_args=True)
    assert seen == [("l1", "cpu 2", 0)]
    assert player.end_ps == 5
