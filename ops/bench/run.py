#!/usr/bin/env python3
"""Measures okdb against a bare HTTP server on this machine, in interleaved pairs.

    cargo build --release -p okdb-cli
    cargo build --release -p okdb-tests --example bare
    ops/bench/run.py                    # about ten minutes
    ops/bench/run.py --quick            # about one; the numbers mean little
    ops/bench/run.py --only get,start

Machines are noisy: each pair measures both sides one after the other, the order
alternates, and what is told is the median of the pairs' ratios with their range.
See README.md beside this file for the peers and for how to read the numbers.
"""

import argparse
import http.client
import json
import os
import pathlib
import platform
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request

sys.dont_write_bytecode = True

import load  # noqa: E402
import servers  # noqa: E402

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
PATH = "/api/default/types/doc/{key}"
BODY = '{"value":{doc}}'
IMPORT_RECORDS = 171_075


# --- measuring ---------------------------------------------------------------

def loaded(server, prepared, options, seed):
    """One run of load on a server, with the CPU time it cost the server."""
    pids = server.pids()
    before = servers.cpu_seconds(pids)
    result = load.run(server.port, prepared, options.seconds, options.connections, seed)
    server.check_alive()
    result["rps"] = result["requests"] / result["seconds"]
    result["cpu_ms_per_1k"] = (servers.cpu_seconds(pids) - before) * 1e6 / result["requests"]
    if result["errors"]:
        print(f"  {server.name}: {result['errors']} errors", file=sys.stderr)
    return result


def pairs(sides, options):
    """Runs every side once in each pair, in turning order; name -> list of results."""
    found = {name: [] for name, _ in sides}
    for pair in range(options.pairs):
        order = sides if pair % 2 == 0 else sides[::-1]
        for name, measure in order:
            found[name].append(measure(pair))
        print(f"  pair {pair + 1} of {options.pairs}", file=sys.stderr)
    return found


def median(results, field):
    return statistics.median(result[field] for result in results)


def ratio(results, base, field):
    """The median of the pairs' ratios, and their range."""
    ratios = sorted(one[field] / other[field] for one, other in zip(results, base) if other[field])
    return f"{statistics.median(ratios):.2f} ({ratios[0]:.2f}–{ratios[-1]:.2f})"


# --- what is measured --------------------------------------------------------

def preload(options, root):
    """A root with the documents that the requests name."""
    lines = root.parent / "documents.ndjson"
    rng = random.Random(7)
    with open(lines, "w") as file:
        for number in range(options.documents):
            file.write(f'{{"key":"{load.key(number)}","value":{load.document(number, rng)}}}\n')
    with servers.okdb(options.okdb, root, options.workers, "strict") as server:
        command([options.okdb, "import", "doc", lines, "--url", f"http://127.0.0.1:{server.port}"])
    lines.unlink()


def command(words):
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, words))} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def http_table(title, found):
    """okdb and the others against the floor, which comes first."""
    base_name, base = next(iter(found.items()))
    rows = [[name, f"{median(results, 'rps'):,.0f}", ratio(results, base, "rps"),
             f"{median(results, 'cpu_ms_per_1k'):.1f}", ratio(results, base, "cpu_ms_per_1k"),
             f"{median(results, 'p50_ms'):.2f}", f"{median(results, 'p99_ms'):.2f}",
             f"{median(results, 'p99_ms') / median(results, 'p50_ms'):.1f}", sum(result["errors"] for result in results)]
            for name, results in found.items()]
    return table(title, ["server", "requests/s", f"× {base_name}", "CPU ms per 1,000", f"× {base_name}",
                         "p50 ms", "p99 ms", "p99/p50", "errors"], rows)


def measure_get(options, place, root):
    get = load.requests("GET", PATH, None, options.documents)
    with servers.bare(options.bare, options.workers) as bare, \
            servers.okdb(options.okdb, root, options.workers, "strict") as okdb:
        for server in (bare, okdb):
            load.run(server.port, get, 1, options.connections, 0)
        found = pairs([("bare", lambda pair: loaded(bare, get, options, pair)),
                       ("okdb", lambda pair: loaded(okdb, get, options, pair))], options)
    return http_table("GET of a 200-byte record by key", found)


def measure_put(options, place, root):
    put = load.requests("PUT", PATH, BODY, options.documents)
    commits = []

    def on_okdb(pair):
        before = commit_counters(okdb)
        result = loaded(okdb, put, options, pair)
        after = commit_counters(okdb)
        if before and after:
            commits.append({name: after[name] - before[name] for name in after})
        return result

    with servers.bare(options.bare, options.workers) as bare, \
            servers.okdb(options.okdb, root, options.workers, "strict") as okdb:
        found = pairs([("bare", lambda pair: loaded(bare, put, options, pair)), ("okdb strict", on_okdb)], options)
    text = http_table("PUT of a 200-byte record, strict", found)
    if commits:
        total = {name: sum(one[name] for one in commits) for name in commits[0]}
        text += (f"\n{total['operations']:,} operations in {total['commits']:,} commits with {total['syncs']:,} syncs: "
                 f"a mean batch of {total['operations'] / max(1, total['commits']):.1f}.\n")
    return text


def commit_counters(server):
    """Commits, operations and syncs so far, over all workers, where the status tells them."""
    with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/api/cluster/status", timeout=10) as answer:
        workers = json.load(answer)["workers"]
    names = ("commits", "operations", "syncs")
    if not all(name in worker for worker in workers for name in names):
        return None
    return {name: sum(worker[name] for worker in workers) for name in names}


def import_lines(options, place):
    """The file to import: the given one, or places made up in many scripts."""
    if options.import_file:
        with open(options.import_file, "rb") as file:
            return options.import_file, sum(1 for _ in file)
    names = ["Łódź", "Zürich", "São Paulo", "Санкт-Петербург", "القاهرة", "תל אביב", "東京都", "서울특별시", "กรุงเทพ"]
    records = IMPORT_RECORDS // 20 if options.quick else IMPORT_RECORDS
    rng = random.Random(3)
    path = place / "places.ndjson"
    with open(path, "w") as file:
        for number in range(records):
            value = {"name": f"{rng.choice(names)} {number}", "country": rng.choice(("PL", "CH", "BR", "RU", "EG", "JP")),
                     "admin1": f"{rng.randrange(90):02d}", "lat": round(rng.uniform(-90, 90), 5),
                     "lng": round(rng.uniform(-180, 180), 5)}
            file.write(json.dumps({"key": f"place-{number:06d}", "value": value}, ensure_ascii=False,
                                  separators=(",", ":")) + "\n")
    return path, records


def measure_import(options, place, root):
    path, records = import_lines(options, place)

    def once(durability):
        def measure(pair):
            fresh = place / "import-root"
            shutil.rmtree(fresh, ignore_errors=True)
            with servers.okdb(options.okdb, fresh, options.workers, durability) as server:
                begin = time.perf_counter()
                command([options.okdb, "import", "place", path, "--url", f"http://127.0.0.1:{server.port}"])
                seconds = time.perf_counter() - begin
                peak = max(servers.pss_mib(pid) for pid in server.pids())
            shutil.rmtree(fresh, ignore_errors=True)
            return {"rate": records / seconds, "peak": peak}
        return measure

    found = pairs([("fast", once("fast")), ("strict", once("strict"))], options)
    rows = [[name, f"{median(results, 'rate'):,.0f}",
             f"{min(r['rate'] for r in results):,.0f}–{max(r['rate'] for r in results):,.0f}",
             ratio(results, found["fast"], "rate"), f"{max(r['peak'] for r in results):.1f}"]
            for name, results in found.items()]
    return table(f"Import of {records:,} records through a cluster", ["durability", "records/s", "range", "× fast",
                 "largest PSS of a process after it, MiB"], rows)


def measure_start(options, place, root):
    def bare(pair):
        with servers.bare(options.bare, options.workers) as server:
            return {"ready_ms": server.ready_ms, "pss": statistics.mean(map(servers.pss_mib, server.pids()))}

    def okdb(pair):
        with servers.okdb(options.okdb, root, options.workers, "strict") as server:
            time.sleep(1)
            primary, *workers = server.pids()
            return {"ready_ms": server.ready_ms, "pss": statistics.mean(map(servers.pss_mib, workers)),
                    "primary_pss": servers.pss_mib(primary)}

    found = pairs([("bare", bare), ("okdb", okdb)], options)
    rows = [[name, f"{median(results, 'ready_ms'):.0f}",
             f"{min(r['ready_ms'] for r in results):.0f}–{max(r['ready_ms'] for r in results):.0f}",
             f"{median(results, 'pss'):.1f}",
             f"{median(results, 'primary_pss'):.1f}" if "primary_pss" in results[0] else "–"]
            for name, results in found.items()]
    return table("Start on an existing root, and idle memory", ["server", "exec to ready ms", "range",
                 "idle PSS of a worker, MiB", "of the primary, MiB"], rows)


def measure_peers(options, place, root):
    """GET and strict PUT against servers that a folder describes."""
    folder = options.peers.resolve()
    parts = []
    for description in json.loads((folder / "peers.json").read_text()):
        name, path, body = (description[field] for field in ("name", "path", "body"))
        data = place / f"peer-{name}"
        shutil.rmtree(data, ignore_errors=True)
        data.mkdir()
        with servers.peer(description, folder, data, options.workers, True) as peer, \
                servers.okdb(options.okdb, root, options.workers, "strict") as okdb:
            for kind, okdb_body, peer_body in (("PUT", BODY, body), ("GET", None, None)):
                on_okdb = load.requests(kind, PATH, okdb_body, options.documents)
                on_peer = load.requests(kind, path, peer_body, options.documents)
                if kind == "GET":
                    fill(peer.port, path, body, options.documents)
                found = pairs([(name, lambda pair: loaded(peer, on_peer, options, pair)),
                               ("okdb", lambda pair: loaded(okdb, on_okdb, options, pair))], options)
                parts.append(http_table(f"{kind}, strict, against {name}", found))
    return "\n".join(parts)


def fill(port, path, body, documents):
    """Writes every document once, so that each GET finds one."""
    rng = random.Random(7)
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    for number in range(documents):
        connection.request("PUT", path.replace("{key}", load.key(number)),
                           body.replace("{doc}", load.document(number, rng)), {"Content-Type": "application/json"})
        connection.getresponse().read()
    connection.close()


# --- telling -----------------------------------------------------------------

def table(title, header, rows):
    lines = [header, ["---"] + ["---:"] * (len(header) - 1), *rows]
    return f"### {title}\n\n" + "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines) + "\n"


def machine(options):
    info = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
    cpu = next((line.split(":")[1].strip() for line in info if line.startswith("model name")), platform.machine())
    version = command([options.okdb, "--version"]).strip()
    driver = "wrk" if load.WRK else "the built-in driver (wrk is not installed: `apt-get install wrk`)"
    return (f"{version}, {time.strftime('%Y-%m-%d %H:%M')}, {cpu}, {os.cpu_count()} cores, Linux {platform.release()}; "
            f"{options.workers} workers, {options.connections} connections, {options.seconds} s a run, {options.pairs} pairs, "
            f"{options.documents:,} documents, load by {driver} on the same cores.\n")


PARTS = {"get": measure_get, "put": measure_put, "import": measure_import, "start": measure_start, "peers": measure_peers}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    release = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", REPOSITORY / "target")) / "release"
    parser.add_argument("--okdb", type=pathlib.Path, default=release / "okdb")
    parser.add_argument("--bare", type=pathlib.Path, default=release / "examples" / "bare")
    parser.add_argument("--only", help="some of " + ",".join(PARTS))
    parser.add_argument("--peers", type=pathlib.Path, help="a folder with a peers.json")
    parser.add_argument("--import-file", type=pathlib.Path, help="NDJSON to import instead of made-up places")
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--seconds", type=int, default=4, help="of each run of load")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--connections", type=int, default=64)
    parser.add_argument("--documents", type=int, default=100_000)
    parser.add_argument("--quick", action="store_true", help="two short pairs of everything")
    options = parser.parse_args()
    if options.quick:
        options.pairs, options.seconds, options.documents = 2, 1, 5_000
    wanted = options.only.split(",") if options.only else [part for part in PARTS if part != "peers" or options.peers]
    if unknown := [part for part in wanted if part not in PARTS]:
        parser.error(f"unknown {unknown}; there are {list(PARTS)}")
    if "peers" in wanted and not options.peers:
        parser.error("peers need --peers FOLDER")
    for path, how in ((options.okdb, "-p okdb-cli"), (options.bare, "-p okdb-tests --example bare")):
        if not path.is_file():
            parser.error(f"there is no {path}: cargo build --release {how}")

    with tempfile.TemporaryDirectory(prefix="okdb-bench-") as folder:
        place = pathlib.Path(folder)
        root = place / "root"
        preload(options, root)
        print(machine(options), flush=True)
        for part in wanted:
            print(f"{part} …", file=sys.stderr)
            print(PARTS[part](options, place, root), flush=True)


if __name__ == "__main__":
    main()
