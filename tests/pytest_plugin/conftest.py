"""Here `ctx` is the plugin's, not the one of the tests around."""

from simrank.pytest_plugin import ctx  # noqa: F401 - a fixture
