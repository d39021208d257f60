"""Load on a server: by wrk where it is installed, else by a driver of our own.

Both are closed loops: each connection sends its next request when the last one
was answered. Ours, in Python, is slow: it does not find a fast server's limit,
but the server's CPU time per request, which is what is compared, is the same.
"""

import json
import multiprocessing
import os
import random
import selectors
import shutil
import socket
import subprocess
import tempfile
import time

REQUESTS = 20_000
WRK = shutil.which("wrk")

SCRIPT = """
local requests, count = {}, 0
function init(arguments)
  local file = assert(io.open(arguments[1], "rb"))
  for length in file:lines() do
    count = count + 1
    requests[count] = file:read(tonumber(length))
  end
  file:close()
  math.randomseed(tonumber(arguments[2]))
end
function request() return requests[math.random(count)] end
function done(summary, latency)
  local e = summary.errors
  print(string.format(
    '{"requests":%d,"seconds":%f,"p50_ms":%f,"p99_ms":%f,"errors":%d}',
    summary.requests, summary.duration / 1e6, latency:percentile(50) / 1e3,
    latency:percentile(99) / 1e3, e.status + e.connect + e.read + e.write + e.timeout))
end
"""


def key(number):
    return f"k{number:06d}"


def document(number, rng):
    """About 200 bytes of JSON."""
    words = "north copper basil delta ember fjord grove heron islet jetty kayak larch".split()
    return json.dumps({"name": f"record {number:06d}", "kind": rng.choice(("a", "b", "c")),
                       "count": rng.randrange(1_000_000), "tags": rng.sample(words, 2),
                       "text": " ".join(rng.choices(words, k=18))}, separators=(",", ":"))


def requests(method, path, body, documents, seed=1):
    """Whole requests, prepared, so that no server costs the generator more than another.

    `{key}` and `{doc}` in path and body are filled in."""
    rng = random.Random(seed)
    made = []
    for _ in range(REQUESTS):
        number = rng.randrange(documents)
        head = f"{method} {path.replace('{key}', key(number))} HTTP/1.1\r\nHost: localhost\r\n"
        if body is None:
            made.append((head + "\r\n").encode())
            continue
        text = body.replace("{doc}", document(number, rng)).encode()
        made.append(f"{head}Content-Type: application/json\r\nContent-Length: {len(text)}\r\n\r\n".encode() + text)
    return made


def run(port, prepared, seconds, connections, seed):
    """Requests answered, seconds, latencies in ms, errors."""
    return (by_wrk if WRK else by_hand)(port, prepared, seconds, connections, seed)


def by_wrk(port, prepared, seconds, connections, seed):
    with tempfile.NamedTemporaryFile(suffix=".lua") as script, tempfile.NamedTemporaryFile() as file:
        script.write(SCRIPT.encode())
        script.flush()
        for request in prepared:
            file.write(b"%d\n%s" % (len(request), request))
        file.flush()
        done = subprocess.run(
            [WRK, "-t1", f"-c{connections}", f"-d{seconds}s", "--timeout", "10s", "-s", script.name,
             f"http://127.0.0.1:{port}", "--", file.name, str(seed)],
            check=True, capture_output=True, text=True, timeout=seconds + 60)
    return json.loads(next(line for line in done.stdout.splitlines() if line.startswith("{")))


class Connection:
    def __init__(self, port, rng):
        self.socket = socket.create_connection(("127.0.0.1", port), 10)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.rng = rng
        self.buffer = b""

    def send(self, prepared):
        self.begin = time.perf_counter()
        self.socket.sendall(self.rng.choice(prepared))

    def receive(self):
        """The status, once the answer is whole."""
        data = self.socket.recv(65536)
        if not data:
            raise ConnectionError("closed")
        self.buffer += data
        head, found, body = self.buffer.partition(b"\r\n\r\n")
        if not found:
            return None
        length = next((int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")), 0)
        if len(body) < length:
            return None
        self.buffer = body[length:]
        return int(head[9:12])


def drive(port, prepared, seconds, connections, seed, results):
    rng = random.Random(seed)
    ready = selectors.DefaultSelector()
    latencies, errors = [], 0
    begin = time.perf_counter()
    end = begin + seconds
    for _ in range(connections):
        connection = Connection(port, rng)
        ready.register(connection.socket, selectors.EVENT_READ, connection)
        connection.send(prepared)
    while time.perf_counter() < end:
        for event, _ in ready.select(0.1):
            connection = event.data
            try:
                status = connection.receive()
                if status is None:
                    continue
                latencies.append((time.perf_counter() - connection.begin) * 1e3)
                errors += status >= 400
                connection.send(prepared)
            except OSError:
                errors += 1
                ready.unregister(connection.socket)
    results.put((latencies, errors, time.perf_counter() - begin))


def by_hand(port, prepared, seconds, connections, seed):
    drivers = max(1, (os.cpu_count() or 2) // 2)
    results = multiprocessing.Queue()
    children = [multiprocessing.Process(target=drive, args=(
        port, prepared, seconds, max(1, connections // drivers), seed * 100 + number, results)) for number in range(drivers)]
    for child in children:
        child.start()
    gathered = [results.get(timeout=seconds + 60) for _ in children]
    for child in children:
        child.join()
    latencies = sorted(latency for found, _, _ in gathered for latency in found)
    if not latencies:
        raise SystemExit("no request was answered")
    return {"requests": len(latencies), "seconds": max(spent for _, _, spent in gathered),
            "p50_ms": latencies[len(latencies) // 2], "p99_ms": latencies[len(latencies) * 99 // 100],
            "errors": sum(errors for _, errors, _ in gathered)}
