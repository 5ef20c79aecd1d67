"""The real engine on one machine: Kubernetes API servers and Karmada as plain processes on loopback.

Entry points: `python -m engine`, and `engine.harness.Engine` for tests.
"""


class EngineError(Exception):
    """A problem that a person has to solve; the message is one sentence."""
