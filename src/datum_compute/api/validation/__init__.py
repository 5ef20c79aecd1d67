"""The admission rules of a Workload. Entry points: `workload_violations`, `Facts`.

Pure functions over the JSON of the object; what they need to know about the cluster is passed in as `Facts`. They run
after the structural schema: a value that it would refuse, such as a string for a number, is treated as absent here.
"""

from datum_compute.api.validation.facts import Facts
from datum_compute.api.validation.workload import workload_violations

__all__ = ["Facts", "workload_violations"]
