"""Federated compute: a workload asked for in cities, run at the right sites, shown as one truthful picture."""

PRODUCT = "datum-compute"
__version__ = "0.1.0"
