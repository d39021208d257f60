#!/usr/bin/env python3
"""What clients notice of dying workers, and how fast the dead are replaced.

    cargo build --release -p okdb-cli
    ops/bench/deaths.py                 # about two minutes; needs wrk

Two measurements with four workers:

- respawn: from the end of a killed worker to the moment at which its successor serves,
  beyond the delay that the supervisor waits on purpose (250 ms at the first death).
- deaths: latency at half of what the generator reaches at most, while one worker dies every
  three seconds, beside the same load without deaths. Requests that were under way on the
  worker that died are errors; all others count.
"""

import argparse
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True

import load  # noqa: E402
import servers  # noqa: E402

WORKERS = 4
EVERY_SECONDS = 3
FIRST_DELAY_MS = 250
PATIENCE_SECONDS = 20
PAUSE_MS = 5

PACE = """
local lowest, highest = %d, %d
function delay() return math.random(lowest, highest) end
"""


def paced(port, prepared, seconds, connections, pause_ms):
    """Load of connections that pause between requests; as load.by_wrk."""
    script = load.SCRIPT
    if pause_ms:
        script += PACE % (max(0, int(pause_ms * 0.5)), int(pause_ms * 1.5) + 1)
    whole, load.SCRIPT = load.SCRIPT, script
    try:
        return load.by_wrk(port, prepared, seconds, connections, 1)
    finally:
        load.SCRIPT = whole


def children(pid):
    """Pids of the workers, by slot: their names say which."""
    found = {}
    for task in pathlib.Path(f"/proc/{pid}/task").glob("*/children"):
        for child in task.read_text().split():
            name = pathlib.Path(f"/proc/{child}/comm").read_text().strip()
            if name.startswith("okdb-worker-"):
                found[int(name.rpartition("-")[2])] = int(child)
    return found


def kill_worker(server, slot):
    pid = children(server.processes[0].pid).get(slot)
    if pid:
        os.kill(pid, signal.SIGKILL)
    return pid


def status(server):
    import json
    import urllib.request
    for _ in range(100):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/api/cluster/status", timeout=5) as answer:
                return json.load(answer)
        except OSError:
            # The connection was the dead worker's.
            time.sleep(0.001)
    raise SystemExit("no status")


def respawn_ms(server, slot):
    """From the death to the successor's Ready, in ms."""
    old = kill_worker(server, slot)
    begin = time.perf_counter()
    while time.perf_counter() - begin < PATIENCE_SECONDS:
        told = next(worker for worker in status(server)["workers"] if worker["slot"] == slot)
        if told["state"] == "ready" and told["pid"] not in (None, old):
            return (time.perf_counter() - begin) * 1e3
        time.sleep(0.0005)
    raise SystemExit(f"slot {slot} is not ready again")


def deaths_during(server, measure, seconds):
    """Runs a measurement while workers die in turn."""
    import threading
    over = threading.Event()

    def reaper():
        slot = 0
        while not over.wait(EVERY_SECONDS):
            kill_worker(server, slot)
            slot = (slot + 1) % WORKERS
    thread = threading.Thread(target=reaper)
    thread.start()
    try:
        return measure(seconds)
    finally:
        over.set()
        thread.join()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    repository = pathlib.Path(__file__).resolve().parents[2]
    parser.add_argument("--okdb", default=repository / "target/release/okdb", type=pathlib.Path)
    parser.add_argument("--seconds", default=15, type=int, help="length of each load")
    parser.add_argument("--rounds", default=3, type=int)
    options = parser.parse_args()
    if not load.WRK:
        raise SystemExit("this needs wrk: apt install wrk")

    with tempfile.TemporaryDirectory() as root, servers.okdb(options.okdb, root, WORKERS, "fast") as server:
        waits = []
        for number in range(8):
            waits.append(respawn_ms(server, number % WORKERS) - FIRST_DELAY_MS)
            if number == WORKERS - 1:
                # Ten seconds of being ready, and the next death is a first one again.
                time.sleep(10.5)
        print(f"respawn beyond the delay: median {statistics.median(waits):.1f} ms, worst {max(waits):.1f} ms of {len(waits)}")

        prepared = load.requests("GET", "/healthz", None, 1)
        connections = 32
        full = paced(server.port, prepared, 5, connections, 0)
        rate = full["requests"] / full["seconds"]
        # wrk pauses whole milliseconds, so it takes many connections that pause for some of them.
        connections = max(1, round(rate / 2 * PAUSE_MS / 1e3))
        print(f"full load {rate:.0f}/s, p99 {full['p99_ms']:.1f} ms; half of it by {connections} connections")
        time.sleep(10.5)
        for _ in range(options.rounds):
            for name in ("calm", "deaths"):
                def measure(seconds):
                    return paced(server.port, prepared, seconds, connections, PAUSE_MS)
                told = measure(options.seconds) if name == "calm" else deaths_during(server, measure, options.seconds)
                print(f"{name}: {told['requests'] / told['seconds']:.0f}/s, p50 {told['p50_ms']:.2f} ms, "
                      f"p99 {told['p99_ms']:.2f} ms, errors {told['errors']}")
        server.check_alive()


if __name__ == "__main__":
    main()
