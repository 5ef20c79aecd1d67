"""How long does a line take from an instance to a terminal that follows it? Prints one table.

Run with `.venv/bin/python -m bench.log_terminal`, or with the names of what to measure. `compute logs -f` runs in a
terminal of its own. `simulated`: two instances of a local federation in a process of its own, whose lines say when they
were written. `reported`: two whose lines are written at random moments, as a provider reports them, to a server in this
process. SECONDS sets how long lines are followed, 60 by default.
"""

import os
import pty
import random
import re
import select
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path

from bench import chosen
from datum_compute.local import daemon
from tests.cli.log_federation import LogFederation, origin

SECONDS = float(os.environ.get("SECONDS", "60"))
RATE = 10  # lines per second of each instance
AIM = "250 ms"

_TIME = re.compile(rb"(\w{3} [ \d]\d \d\d:\d\d:\d\d\.\d{3})  (.*)")


def main() -> None:
    measures = {"simulated": simulated, "reported": reported}
    names = chosen(__doc__, measures)
    print("line to terminal, two instances, in milliseconds")
    print(f"  {'':<10} {'lines':>6} {'median':>7} {'p99':>6} {'worst':>6}   aim for p99")
    for name in names:
        delays = sorted(measures[name]())
        p99 = delays[min(int(len(delays) * 0.99), len(delays) - 1)]
        figures = f"{statistics.median(delays):>7.0f} {p99:>6.0f} {delays[-1]:>6.0f}"
        print(f"  {name:<10} {len(delays):>6} {figures}   {AIM}", flush=True)


def simulated() -> list[float]:
    with tempfile.TemporaryDirectory() as folder:
        state = Path(folder) / "state"
        environ = {"DATUM_COMPUTE_LOCAL_DIR": str(state), "DATUM_COMPUTE_INSTANCES": "simulated", "HOME": folder}
        environ["PATH"] = os.environ["PATH"]
        try:
            for line in ("local up", "deploy api --image=registry.example/api:1 --city=AMS,DFW --port=8080"):
                subprocess.run(_command(line), env=environ, check=True, stdout=subprocess.DEVNULL)
            return _delays(environ, "logs api -f --tail=0 --utc", lambda moment, text: _written(moment))
        finally:
            daemon.down(state)


def reported() -> list[float]:
    with tempfile.TemporaryDirectory() as folder:
        federation = LogFederation(Path(folder))
        origins = [origin(name) for name in ("api-default-ams-0", "api-default-dfw-0")]
        for writer in origins:
            federation.start(writer)
        ended = threading.Event()

        def write() -> None:
            generator = random.Random(1)
            while not ended.wait(generator.expovariate(RATE * len(origins))):
                federation.write(generator.choice(origins), str(time.time_ns()))

        thread = threading.Thread(target=write)
        thread.start()
        environ = {"KUBECONFIG": str(federation.kubeconfig), "DATUM_COMPUTE_SKIP_ACCESS_CHECK": "1", "HOME": folder}
        try:
            return _delays(environ, "logs api -f --tail=0", lambda moment, text: int(text) / 1e9)
        finally:
            ended.set()
            thread.join()
            federation.close()


def _command(line: str) -> list[str]:
    return [sys.executable, "-m", "datum_compute.cli.main", *line.split()]


def _written(moment: str) -> float:
    """The time in front of a line; the year is this one's."""
    year = datetime.now(UTC).year
    return datetime.strptime(f"{year} {moment}", "%Y %b %d %H:%M:%S.%f").replace(tzinfo=UTC).timestamp()


def _delays(environ: Mapping[str, str], line: str, written: Callable[[str, str], float]) -> list[float]:
    """Milliseconds of each line that a terminal shows."""
    master, slave = pty.openpty()
    process = subprocess.Popen(
        _command(line), stdin=slave, stdout=slave, stderr=slave, env=dict(environ), start_new_session=True
    )
    os.close(slave)
    delays, rest = [], b""
    deadline = time.monotonic() + SECONDS
    while (left := deadline - time.monotonic()) > 0:
        if not select.select([master], [], [], left)[0]:
            break
        *lines, rest = (rest + os.read(master, 65536)).split(b"\r\n")
        arrived = time.time()
        for found in filter(None, map(_TIME.search, lines)):
            delays.append((arrived - written(found[1].decode(), found[2].decode())) * 1000)
    process.send_signal(signal.SIGINT)
    while select.select([master], [], [], 5)[0]:
        try:
            if not os.read(master, 65536):
                break
        except OSError:  # the other end is closed
            break
    os.close(master)
    assert process.wait() == 0
    return delays


if __name__ == "__main__":
    main()
