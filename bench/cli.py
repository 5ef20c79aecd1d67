"""How long does a command take to start, compared with a bare interpreter and kubectl? Prints one table.

Run with `.venv/bin/python -m bench.cli`. Everything runs in turn, round after round, so that a busy machine is busy for
all of them alike; times are medians over the rounds, next to the CPU time. Lists are read from a server in this
process, on loopback. kubectl is left out where there is none.
"""

import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from bench import parser
from datum_compute.api.workload import WORKLOAD
from datum_compute.runtime import SystemClock
from tests.cli.conftest import World, admit, kubeconfig
from tests.cli.server import ApiServer
from tools import bundle

ROUNDS = 15
BUDGETS = {
    "--help": 150,
    "--version": 150,
    "--plugin-manifest": 150,
    "workloads": 250,
    "instances": 250,
    "status shop": 250,
}


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, ApiServer(SystemClock()) as api:
        home = Path(folder)
        admit(api)
        World(api).settled()
        environ = {
            "PATH": f"{sys.base_prefix}/bin{os.pathsep}{os.environ['PATH']}",  # not through a shim
            "HOME": folder,
            "KUBECONFIG": str(kubeconfig(home / "kubeconfig", api.project_url())),
        }
        plugin = home / "datumctl-compute"
        bundle.main([str(plugin)])
        show(measured(lines(plugin, api.project_url().removeprefix(api.url)), environ))


def lines(plugin: Path, project: str) -> dict[str, list[str]]:
    """The commands to run, by their name in the table."""
    compute = [sys.executable, "-c", "import sys; from datum_compute.cli.main import main; sys.exit(main())"]
    found = {"python -c pass": [sys.executable, "-c", "pass"]}
    found |= {f"compute {words}": [*compute, *words.split()] for words in BUDGETS}
    found["compute __complete status ''"] = [*compute, "__complete", "status", ""]
    found["datumctl-compute (one file) --plugin-manifest"] = [str(plugin), "--plugin-manifest"]
    found["datumctl-compute (one file) workloads"] = [str(plugin), "workloads"]
    if kubectl := shutil.which("kubectl"):
        found["kubectl --help"] = [kubectl, "--help"]
        found["kubectl version --client"] = [kubectl, "version", "--client"]
        found["kubectl get --raw (the same list)"] = [kubectl, "get", "--raw", f"{project}{WORKLOAD.path('default')}"]
    return found


class Taken(NamedTuple):
    """Milliseconds from start to end, and of CPU time."""

    wall: float
    busy: float


def measured(lines: dict[str, list[str]], environ: dict[str, str]) -> dict[str, list[Taken]]:
    for words in lines.values():
        once(words, environ)  # bytecode, caches, and what a single file unpacks
    times: dict[str, list[Taken]] = {name: [] for name in lines}
    for _ in range(ROUNDS):
        for name, words in lines.items():
            times[name].append(once(words, environ))
    return times


def once(words: Sequence[str], environ: dict[str, str]) -> Taken:
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(words, env=environ, capture_output=True, text=True, check=False)
    wall, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        sys.exit(f"{' '.join(words)} ended with {done.returncode}: {done.stderr}")
    busy = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Taken(wall * 1000, busy * 1000)


def show(times: dict[str, list[Taken]]) -> None:
    print(f"{'command':<48} {'median':>9} {'best':>9} {'processor':>10} {'aim':>8}")
    for name, taken in times.items():
        walls = [run.wall for run in taken]
        busy = statistics.median(run.busy for run in taken)
        aim = BUDGETS.get(name.removeprefix("compute "))
        goal = f"{aim} ms" if aim else ""
        print(f"{name:<48} {statistics.median(walls):>6.0f} ms {min(walls):>6.0f} ms {busy:>7.0f} ms {goal:>8}")


if __name__ == "__main__":
    parser(__doc__).parse_args()
    main()
