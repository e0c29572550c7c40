"""Observers that write what happened: start with `timeline`."""

from simrank.trace.timeline import Timeline

__all__ = ["Timeline"]
