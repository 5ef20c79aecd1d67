"""The federation of the scenarios, which runs the built-ins."""

from tests.scenarios.conftest import embedded, federation  # noqa: F401 - fixtures, found by name
