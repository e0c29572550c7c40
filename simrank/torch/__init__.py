"""Unchanged torch programs on simulated ranks."""
