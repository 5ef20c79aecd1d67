"""The admission rules of a Workload. Entry points: `workload_violations`, `Facts`.

Pure functions over the JSON of the object: what has to be asked of the cluster comes in as `Facts`. The structural
schema has spoken first; what it would refuse (a text where a number belongs) reads as absent here, and never raises.
"""

from datum_compute.api.validation.facts import Facts
from datum_compute.api.validation.workload import workload_violations

__all__ = ["Facts", "workload_violations"]
