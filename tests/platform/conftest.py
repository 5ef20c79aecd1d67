"""The federation of the scenarios, for the built-ins that serve it."""

from tests.scenarios.conftest import embedded, federation  # noqa: F401 - fixtures, found by name
