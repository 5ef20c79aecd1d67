"""The network of Services for an API server without one: whatever it has for a Service reaches a ready replica.

Entry point: `Services`. The API server of an empty engine sends such connections through a socket, by HTTP CONNECT to
the address of the Service.
"""

import asyncio
import threading
from contextlib import suppress
from pathlib import Path

from engine.api import Api
from tests.install.kubelet import NAMESPACE, Kubelet, Replica
from tests.install.pod import relay


class Relays:
    """A loop in a thread of its own, on which connections are passed on."""

    def __init__(self) -> None:
        self._servers: list[asyncio.Server] = []
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="relays")
        self._thread.start()

    def listen(self, path: Path, connected: "asyncio.streams._ClientConnectedCallback") -> None:
        path.unlink(missing_ok=True)
        listening = asyncio.run_coroutine_threadsafe(asyncio.start_unix_server(connected, path), self.loop)
        self._servers.append(listening.result(timeout=30))

    def to_port(self, path: Path, port: int) -> None:
        """A socket that leads to a port on loopback, for those who have another loopback."""

        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with suppress(OSError, asyncio.CancelledError):
                await relay(reader, writer, *await asyncio.open_connection("127.0.0.1", port))
            writer.close()

        self.listen(path, connected)

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self.loop).result(timeout=30)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()

    async def _end(self) -> None:
        for server in self._servers:
            server.close()
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class Services:
    def __init__(self, relays: Relays, path: Path, api: Api, kubelet: Kubelet) -> None:
        self.connections = 0
        self._api = api
        self._kubelet = kubelet
        relays.listen(path, self._connected)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        method, target, _ = head.partition("\r\n")[0].split()
        assert method == "CONNECT"
        host, _, port = target.rpartition(":")
        replica = await asyncio.to_thread(self._backend, host, int(port))
        if replica is None:
            writer.write(b"HTTP/1.1 503 No ready replica\r\n\r\n")
        else:
            self.connections += 1
            with suppress(OSError, asyncio.CancelledError):
                there, back = await asyncio.open_unix_connection(replica)
                writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
                await relay(reader, writer, there, back)
        writer.close()

    def _backend(self, address: str, port: int) -> Path | None:
        """The socket of a ready replica that the Service with this address selects."""
        for service in self._api.items("v1", "Service", NAMESPACE):
            spec = service["spec"]
            for entry in spec["ports"]:
                if spec["clusterIP"] == address and entry["port"] == port:
                    ready = [replica for replica in self._kubelet.replicas if _serves(replica, spec["selector"])]
                    return ready[self.connections % len(ready)].socket(entry["targetPort"]) if ready else None
        return None


def _serves(replica: Replica, selector: dict[str, str]) -> bool:
    labels: dict[str, str] = replica.template["metadata"]["labels"]
    return replica.is_ready and selector.items() <= labels.items()
