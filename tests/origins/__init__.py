"""Behaviours of the systems that simrank answers."""
