"""A module with a thread: a worker that imports it cannot fork, and keeps its process."""

import threading

threading.Thread(target=threading.Event().wait, name="of the module", daemon=True).start()


def stay() -> None:
    """Have the module imported, as a pool's reset hook."""
