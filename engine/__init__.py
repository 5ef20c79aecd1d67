"""The real engine on one machine: Kubernetes API servers and Karmada as plain processes on loopback.

Entry points: `python -m engine`, and `engine.harness.Engine` for tests.
"""


class EngineError(Exception):
    """Something about the engine that a person has to know or do; the message says it in one sentence."""
