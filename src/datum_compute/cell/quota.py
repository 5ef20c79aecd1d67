"""Whether an Instance may run by the project's quota. Entry points: `Quota`, `Disabled`."""

from typing import Protocol

from msgspec import Struct

from datum_compute.api import reasons
from datum_compute.api.instance import Instance


class Verdict(Struct, frozen=True):
    """What is known now. `status` is that of the condition: True opens the gate, False is a denial."""

    status: str
    reason: str
    message: str

    @property
    def granted(self) -> bool:
        return self.status == "True"

    @property
    def denied(self) -> bool:
        return self.status == "False"


class Quota(Protocol):
    async def evaluate(self, instance: Instance) -> Verdict: ...

    async def release(self, instance: Instance) -> None:
        """Gives back what the Instance holds; raising keeps its finalizer."""
        ...


class Disabled:
    """No credential for a quota system is configured: nothing is asked for, everything may run."""

    async def evaluate(self, instance: Instance) -> Verdict:
        return Verdict("True", reasons.QUOTA_DISABLED, "Quota enforcement disabled: no credential configured")

    async def release(self, instance: Instance) -> None:
        pass
