"""The process `compute-manager`. Entry point: `main`."""

import asyncio
import os
import random
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import structlog

from datum_compute import __version__
from datum_compute.kube.tracing import Tracer, TracingUnavailable, open_tracer
from datum_compute.operator.assembly import Assembly
from datum_compute.operator.certificates import ServingError
from datum_compute.operator.config import ConfigError, read
from datum_compute.operator.flags import CHECK, UsageError, parse
from datum_compute.operator.planes import Endpoints
from datum_compute.operator.serving import Servers
from datum_compute.operator.settings import Refused, Settings, settled
from datum_compute.runtime import LeaseLost, SystemClock
from datum_compute.runtime.process import allow_many_files, collect_rarely
from datum_compute.runtime.telemetry import logs

FAILED, MISUSED = 1, 2
_LAST_SPANS_SECONDS = 2.0

_log = structlog.get_logger(__name__)


def main() -> int:
    collect_rarely()
    allow_many_files()
    return start(sys.argv[1:], os.environ)


def start(arguments: Sequence[str], environment: Mapping[str, str]) -> int:
    """Returns 0 after a requested stop, 1 with one sentence when it cannot start or continue, 2 for bad usage.

    After the word `check` nothing is started; the code is 0 if everything that a start needs is there.
    """
    if arguments and arguments[0] == CHECK:
        from datum_compute.operator.check.command import run

        return run(arguments[1:], environment)
    try:
        flags = parse(arguments, environment, __version__)
        if not flags.server_config:
            raise UsageError("--server-config is required: name the config file")
    except UsageError as error:
        return _fail(MISUSED, f"{error}; see compute-manager --help")
    logs.configure(flags.log_level, flags.log_format)
    try:
        settings = settled(flags, read(Path(flags.server_config)))
        endpoints = Endpoints.read(settings, environment)
        tracer = open_tracer(environment, "compute-manager", __version__, os.urandom, _report_unsent)
        asyncio.run(_run(settings, endpoints, tracer))
    except (ConfigError, Refused, ServingError, LeaseLost, TracingUnavailable) as error:
        return _fail(FAILED, str(error))
    return 0


async def _run(settings: Settings, endpoints: Endpoints, tracer: Tracer | None) -> None:
    assembly = Assembly(settings, endpoints, clock=SystemClock(), generator=random.Random(), tracer=tracer)
    servers = Servers(settings, assembly)

    def leave() -> None:
        servers.drain()
        assembly.leave()

    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, leave)
    loop.add_signal_handler(signal.SIGINT, assembly.stop)  # sent from a terminal, where somebody waits
    _log.info(
        "starting",
        version=__version__,
        management=settings.management,
        cell=settings.cell,
        provider=settings.provider,
        builtins=sorted(settings.builtins),
        discovery=settings.config.discovery.mode,
        networking=settings.networking,
        tracing=tracer is not None,
    )
    try:
        await servers.start()
        await assembly.run()
    finally:
        await servers.stop()
        await assembly.close()
        if tracer is not None:
            await asyncio.to_thread(tracer.close, _LAST_SPANS_SECONDS)
    _log.info("stopped")


def _report_unsent(text: str) -> None:
    _log.warning("spans not sent", error=text)


def _fail(code: int, sentence: str) -> int:
    print(f"compute-manager: {sentence}", file=sys.stderr, flush=True)
    return code


if __name__ == "__main__":
    raise SystemExit(main())
