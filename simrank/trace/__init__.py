"""Observers that write events of a run: start with `timeline`, then `summary`."""

from simrank.trace.summary import PeakMemory, Rates, Summary, summary_json, summary_text
from simrank.trace.timeline import Timeline

__all__ = ["PeakMemory", "Rates", "Summary", "Timeline", "summary_json", "summary_text"]
