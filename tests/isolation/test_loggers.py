"""What ranks set in `logging` is their own; loggers are the same objects for all."""

import io
import logging
import time

import pytest

import simrank
from simrank.isolation import diagnostics


@pytest.fixture(name="bare_root")
def fixture_bare_root(monkeypatch):
    """Return what gives the root logger, without what a test session has put there meanwhile."""

    def make():
        root = logging.getLogger()
        monkeypatch.setattr(root, "handlers", [])
        monkeypatch.setattr(root, "level", logging.WARNING)
        return root

    return make


@pytest.mark.parametrize("carrier", ["greenlet", "thread"])
def test_each_rank_configures_logging_for_itself(bare_root, carrier):
    """As scripts do: rank 0 says more; handlers do not add up."""
    root = bare_root()
    texts = [io.StringIO() for _ in range(3)]
    library = logging.getLogger("somelib")

    def program(rank):
        level = logging.INFO if rank == 0 else logging.ERROR
        logging.basicConfig(level=level, format=f"{rank}: %(message)s", stream=texts[rank])
        time.sleep(1e-6)
        logging.info("started %d", rank)
        library.info("from a library")
        assert library.isEnabledFor(logging.INFO) == (rank == 0)
        time.sleep(1e-6)
        library.error("failed")
        assert len(root.handlers) == 1

    with simrank.Context("hgx_h100", carrier=carrier) as ctx:
        ctx.multiprocessing.spawn(program, nprocs=3, share_args=True)
    assert texts[0].getvalue() == "0: started 0\n0: from a library\n0: failed\n"
    assert [text.getvalue() for text in texts[1:]] == ["1: failed\n", "2: failed\n"]
    assert root.handlers == []
    assert not library.isEnabledFor(logging.INFO)


def test_ranks_begin_with_what_the_main_program_has_set(bare_root):
    """Its handlers get their records; what one adds or disables is seen by nobody else."""
    text, root = io.StringIO(), bare_root()
    root.addHandler(logging.StreamHandler(text))
    logger = logging.getLogger("set up before")
    logger.setLevel(logging.INFO)

    def program(rank):
        if rank == 0:
            logging.disable(logging.CRITICAL)
            logger.addFilter(lambda record: False)
            logger.propagate = False
        time.sleep(1e-6)
        logger.info("%d", rank)

    with simrank.Context("hgx_h100") as ctx:
        ctx.multiprocessing.spawn(program, nprocs=2, share_args=True)
        logger.info("main")
    assert text.getvalue() == "1\nmain\n"
    assert (logger.filters, logger.propagate, logging.root.manager.disable) == ([], True, 0)


def test_a_logger_that_a_rank_makes_is_everybodys():
    """With what loggers begin with; what that rank has set in it stays its own."""
    found = {}

    def program(rank):
        if rank == 0:
            made = logging.getLogger("made by a rank")
            made.setLevel(logging.DEBUG)
            made.addHandler(logging.NullHandler())
        time.sleep(1e-6)
        logger = logging.getLogger("made by a rank")
        found[rank] = (logger, logger.level, len(logger.handlers))

    with simrank.Context("hgx_h100") as ctx:
        ctx.multiprocessing.spawn(program, nprocs=2, share_args=True)
    assert found[0][0] is found[1][0]
    assert (found[0][1:], found[1][1:]) == ((logging.DEBUG, 1), (logging.NOTSET, 0))
    assert (found[0][0].level, found[0][0].handlers) == (logging.NOTSET, [])


def test_nothing_is_left_in_the_class_afterwards():
    """Attributes of loggers are plain ones again."""
    with simrank.Context("hgx_h100"):
        assert isinstance(vars(logging.Logger)["level"], diagnostics.OwnName)
    assert "level" not in vars(logging.Logger)
    assert "_disable" not in vars(logging.Manager)
