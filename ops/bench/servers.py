"""Starting the servers under measurement, and what /proc says about them."""

import contextlib
import os
import pathlib
import re
import signal
import socket
import subprocess
import tempfile
import time

START_SECONDS = 30
STOP_SECONDS = 10


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def family(pid):
    """The process and all its descendants."""
    found = [pid]
    for task in pathlib.Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for child in task.read_text().split():
                found += family(int(child))
    return found


def cpu_seconds(pids):
    """User and system time that these processes have used so far."""
    ticks = 0
    for pid in pids:
        fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def pss_mib(pid):
    for line in pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) / 1024
    raise ValueError(f"no Pss of {pid}")


class Running:
    """One or more started processes that serve one port; always stopped at the end."""

    def __init__(self, name, port):
        self.name, self.port = name, port
        self.processes = []
        self.log = tempfile.TemporaryFile()
        self.ready_ms = None

    def spawn(self, command, env=None):
        self.processes.append(subprocess.Popen(
            [str(word) for word in command], env=os.environ | (env or {}), stdin=subprocess.DEVNULL,
            stdout=self.log, stderr=self.log, start_new_session=True))

    def said(self):
        return os.pread(self.log.fileno(), 1 << 20, 0).decode(errors="replace")

    def check_alive(self):
        for process in self.processes:
            if process.poll() is not None:
                raise SystemExit(f"{self.name} ended with {process.returncode}:\n{self.said()}")

    def wait(self, ready, begin):
        while not ready():
            self.check_alive()
            if time.perf_counter() - begin > START_SECONDS:
                raise SystemExit(f"{self.name} did not come up:\n{self.said()}")
            time.sleep(0.0005)
        self.ready_ms = (time.perf_counter() - begin) * 1e3

    def accepts(self):
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", self.port), 1).close()
            return True
        return False

    def pids(self):
        return [pid for process in self.processes for pid in family(process.pid)]

    def stop(self):
        for process in self.processes:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
        for process in self.processes:
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        self.log.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()


def bare(binary, workers):
    """The floor: as many bare servers on one port as okdb has workers."""
    server = Running("bare", free_port())
    begin = time.perf_counter()
    for _ in range(workers):
        server.spawn([binary, f"127.0.0.1:{server.port}"])
    try:
        server.wait(lambda: server.said().count("bare ready on") == workers, begin)
    except BaseException:
        server.stop()
        raise
    return server


def okdb(binary, root, workers, durability, *more):
    """okdb on this root; `ready_ms` is the time from exec to its ready line."""
    server = Running("okdb", 0)
    begin = time.perf_counter()
    server.spawn([binary, "--root", root, "--listen", "127.0.0.1:0", "--workers", workers,
                  "--durability", durability, "--auto-types", *more])
    line = re.compile(r"okdb ready on http://127\.0\.0\.1:(\d+)")
    try:
        server.wait(lambda: line.search(server.said()), begin)
    except BaseException:
        server.stop()
        raise
    server.port = int(line.search(server.said())[1])
    return server


def peer(description, folder, data, workers, strict):
    """A server that somebody else describes; see the README."""
    server = Running(description["name"], free_port())
    values = {"port": server.port, "data": data, "workers": workers, "strict": int(strict), "folder": folder}

    def fill(text):
        for name, value in values.items():
            text = text.replace("{" + name + "}", str(value))
        return text

    begin = time.perf_counter()
    server.spawn([fill(word) for word in description["start"]],
                 {name: fill(value) for name, value in description.get("env", {}).items()})
    try:
        server.wait(server.accepts, begin)
    except BaseException:
        server.stop()
        raise
    return server
