"""Reading the logs of a workload: what to ask for, in which pages, and what was read before."""
