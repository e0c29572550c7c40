"""Acts on shared objects, as a search over every timing distinguishes them (ADR 0094).

An engine with choices (`interface.Choices`) lets simulated time decide nothing. A rank that comes
to a shared object, or polls, is parked; once nothing else can go on, the choices pick the next one,
and a search makes the other picks in further runs. Without choices none of this is called.
"""

from __future__ import annotations

from enum import Enum

LONG_PS = 60 * 10**12  # Assumed: a limit of a minute or more does not expire.


class Act(Enum):
    """The kind of a call on an object that ranks share.

    AWAIT is a read that goes on once the object is there. UPDATE is a change whose result tells
    what was there before. Locks are taken (ACQUIRE) and released.
    """

    READ = "reads"
    AWAIT = "waits for"
    WRITE = "writes"
    UPDATE = "changes"
    ACQUIRE = "takes"
    RELEASE = "releases"


LOOKS = (Act.READ, Act.AWAIT)  # They change nothing.
