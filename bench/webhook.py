"""How fast does the webhook answer at a steady rate? Prints one line.

Run with `.venv/bin/python -m bench.webhook`, after `.venv/bin/python -m engine build etcd kubernetes`. A
compute-manager under the generated roles admits a Workload of 4 kB over TLS, and asks a kube-apiserver for one access
review per call. Calls are due at fixed times, and a call that starts late counts from the time at which it was due.
"""

import http.client
import json
import os
import ssl
import statistics
import tempfile
import threading
import time
from pathlib import Path

from bench import parser
from datum_compute.admission.webhook import VALIDATE
from datum_compute.kube.meta import Json, encode
from tests.clients.installation import CITY, HOST, Installation, workload

SIZE = 4096
CONNECTIONS = 8
WARM_UP_SECONDS = 3.0
AIM_MS = 10
_NOT_DUE = 30 * 24 * 3600.0


def review() -> bytes:
    body = workload(CITY)
    container = body["spec"]["template"]["spec"]["runtime"]["sandbox"]["containers"][0]
    container["env"] = [{"name": "FILLER", "value": ""}]
    container["env"][0]["value"] = "x" * (SIZE - len(encode(body)))
    assert len(encode(body)) == SIZE
    request: Json = {
        "uid": "705ab4f5-6393-11e8-b7cc-42010a800002",
        "operation": "CREATE",
        "namespace": "default",
        "name": "web",
        "object": body,
        "userInfo": {"username": "administrator", "groups": ["system:masters", "system:authenticated"]},
    }
    return encode({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request})


def measure(port: int, rate: float, seconds: float) -> list[float]:
    """Seconds for each answer."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    body, latencies = review(), list[float]()
    start = time.perf_counter() + 0.5
    numbers = iter(range(int(rate * (seconds + WARM_UP_SECONDS))))
    lock = threading.Lock()

    def work() -> None:
        connection = http.client.HTTPSConnection(HOST, port, context=context, timeout=60)
        while True:
            with lock:
                number = next(numbers, None)
            if number is None:
                connection.close()
                return
            due = start + number / rate
            time.sleep(max(0.0, due - time.perf_counter()))
            connection.request("POST", VALIDATE, body, {"Content-Type": "application/json"})
            answer = json.loads(connection.getresponse().read())
            if number >= rate * WARM_UP_SECONDS:
                latencies.append(time.perf_counter() - due)
            assert answer["response"]["allowed"] is True, answer

    threads = [threading.Thread(target=work) for _ in range(CONNECTIONS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return latencies


def main(rate: float, seconds: float) -> None:
    with tempfile.TemporaryDirectory(prefix="webhook-") as directory:
        installation = Installation(Path(directory), _NOT_DUE)
        try:
            installation.until_called()
            load = os.getloadavg()[0]
            latencies = measure(installation.replicas[0].port("webhook"), rate, seconds)
        finally:
            installation.close()
    assert len(latencies) == int(rate * seconds), "a call failed"
    percentiles = statistics.quantiles(latencies, n=100)
    print(
        f"{len(latencies)} reviews of a Workload of {SIZE} bytes, {rate:g} per second: "
        f"p50 {percentiles[49] * 1000:.1f} ms, p99 {percentiles[98] * 1000:.1f} ms (aim: {AIM_MS} ms); "
        f"load {load:.1f} on {os.cpu_count()} processors"
    )


if __name__ == "__main__":
    arguments = parser(__doc__)
    arguments.add_argument("--rate", type=float, default=100, help="calls per second; 100 by default")
    arguments.add_argument("--seconds", type=float, default=30, help="how long to measure; 30 by default")
    options = arguments.parse_args()
    main(options.rate, options.seconds)
