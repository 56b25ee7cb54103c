"""Speed of the service over a large database: latency of every page and route by concurrency, memory, submissions.

    python -m tests.benchmarks.service --db /tmp/service.db --runs 2000 --trials 500 --at-once 4 --at-once 16

fills the database if there is none (a minute or two, 1.3 GB), serves it in processes of its own, and prints Markdown
tables: median, p95 and p99 in milliseconds, processor time, and memory of all processes after each route. Clients and
service share the machine's cores; documents are timed without the files that they link. Run it from the root of the
repository. `--postgresql 10` copies the runs ten times over into a PostgreSQL server of its own and serves those.
"""

from __future__ import annotations

import argparse
import gzip
import json
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection, RemoteDisconnected
from pathlib import Path
from threading import local

import httpx
import psutil

from opgauge.harness.result.record_json import to_json
from opgauge.harness.result.result import Check, Measurement, Result, Status, Trial
from opgauge.harness.scope import Scope
from opgauge.harness.settings import ROOT
from opgauge.harness.store import Store, run_queries
from opgauge.harness.store.tokens import create_token
from tests.benchmarks.copying import copy_into
from tests.benchmarks.filling import fill, some_cases
from tests.benchmarks.paint import first_paint_ms
from tests.benchmarks.routes import Known, api, files, pages
from tests.postgresql import find_programs, server

AT_ONCE = (4, 16)
"""Concurrent requests by default."""
SENDERS = 4
PORT = 8765
QUIET_S = 6.0
REQUESTS = 120


@dataclass(frozen=True)
class Service:
    """A service, and what it takes."""

    address: str
    process: psutil.Process

    def cpu_s(self) -> float:
        """Processor time of its processes until now: other work on the machine lengthens answers, not this."""
        family = (self.process, *self.process.children(recursive=True))
        return sum(times.user + times.system for times in (one.cpu_times() for one in family))

    def memory_mb(self) -> float:
        """Memory of its processes that they do not share, in MB."""
        family = (self.process, *self.process.children(recursive=True))
        return sum(float(one.memory_full_info().uss) for one in family) / 1e6


@dataclass(frozen=True)
class Latency:
    """Answers of one route, in ms: the first one alone, then at some concurrency. kb: size of the first."""

    first_ms: float
    median_ms: float
    p95_ms: float
    p99_ms: float
    cpu_ms: float
    kb: float


@contextmanager
def service(url: str, path: Path, options: Sequence[str] = ()) -> Iterator[Service]:
    """`opgauge serve` over a database, until the block ends; the log is at `path`."""
    command = [sys.executable, "-m", "opgauge", "serve", "--db", url, "--port", str(PORT), *options]
    # a line per request: the table would be lost among them
    log = path.open("w", encoding="utf-8")
    with log, subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log) as process:
        try:
            address = f"http://127.0.0.1:{PORT}"
            _wait(address)
            yield Service(address, psutil.Process(process.pid))
        finally:
            process.terminate()


def _wait(address: str) -> None:
    for _ in range(600):
        try:
            if httpx.get(f"{address}/healthz", timeout=60).status_code == 200:
                # others of its processes may be on their way still
                time.sleep(QUIET_S)
                return
        except httpx.TransportError:
            time.sleep(0.1)
    raise SystemExit("the service does not start")


class Client:
    """Asks as a browser does, on a connection for each thread, and leaves answers packed: the machine is shared."""

    def __init__(self) -> None:
        self._own = local()

    def ask(self, path: str) -> tuple[float, int]:
        """Time until the answer is there, in ms, and its bytes; ends all for anything but 200."""
        if not hasattr(self._own, "connection"):
            self._own.connection = HTTPConnection("127.0.0.1", PORT, timeout=60)
        start = time.perf_counter()
        status, body = self._get(path)
        taken = (time.perf_counter() - start) * 1000
        if status != 200:
            sys.exit(f"{status} from {path}: {body[:200]!r}")
        return taken, len(body)

    def _get(self, path: str) -> tuple[int, bytes]:
        connection: HTTPConnection = self._own.connection
        try:
            connection.request("GET", path, headers={"Accept-Encoding": "gzip"})
            answer = connection.getresponse()
        except (RemoteDisconnected, ConnectionResetError, BrokenPipeError):
            # it was idle for too long
            connection.close()
            connection.request("GET", path, headers={"Accept-Encoding": "gzip"})
            answer = connection.getresponse()
        return answer.status, answer.read()


def measure(served: Service, paths: Sequence[str], at_once: int) -> Latency:
    """Answers of a route, each of `paths` in turn, by so many clients at once."""
    client = Client()
    first_ms, size = client.ask(paths[0])
    before_s = served.cpu_s()
    with ThreadPoolExecutor(at_once) as pool:
        asked = [paths[index % len(paths)] for index in range(max(REQUESTS, len(paths)))]
        times = sorted(taken for taken, _ in pool.map(client.ask, asked))
    cpu_ms = (served.cpu_s() - before_s) / len(asked) * 1000
    middle, late, latest = (times[int(len(times) * share)] for share in (0.5, 0.95, 0.99))
    return Latency(first_ms, middle, late, latest, cpu_ms, size / 1000)


def bodies(count: int, trials: int) -> list[tuple[str, bytes]]:
    """Runs as `opgauge push` sends them, compressed, by id."""
    cases = some_cases(-(-trials // 4))
    names = ("baseline", "optimized", "torch", "torch_compile")
    made = []
    for number in range(count):
        head = {
            "id": str(uuid.uuid4()),
            "started": "2026-01-31T12:00:00+00:00",
            "status": "finished",
            "environment": {"hard": {"cpu.model": "sent"}, "soft": {"commit": f"{number:040x}"}},
        }
        results = []
        for place in range(trials):
            samples = tuple(1000.0 + (place * 7919 + sample * 104729 + number) % 997 / 7 for sample in range(40))
            measurement = Measurement(samples, "events 1", 3, hot_ns=1000.0, peak_bytes=4096)
            check = Check(ok=True, max_abs_error=1e-6, max_rel_error=1e-6, worst=0.21)
            trial = Trial(cases[place // 4], names[place % 4], "cpu", "cpu")
            results.append(to_json(Result(trial, Status.OK, check=check, measurement=measurement, bytes=1 << 20)))
        run = {"opgauge": 1, "run": head, "ceilings": [], "results": results}
        made.append((str(head["id"]), gzip.compress(json.dumps(run).encode(), 6)))
    return made


def submit(address: str, token: str, sent: Sequence[tuple[str, bytes]], trials: int) -> float:
    """Results per second, entered and committed."""
    headers = {"Authorization": f"Bearer {token}", "Content-Encoding": "gzip", "Content-Type": "application/json"}
    with httpx.Client(headers=headers, timeout=60) as client:

        def put(one: tuple[str, bytes]) -> None:
            answer = client.put(f"{address}/api/v1/runs/{one[0]}", content=one[1])
            if answer.status_code != 201:
                sys.exit(f"{answer.status_code}: {answer.text[:200]}")

        start = time.perf_counter()
        with ThreadPoolExecutor(SENDERS) as pool:
            list(pool.map(put, sent))
        return trials * len(sent) / (time.perf_counter() - start)


def say(text: str) -> None:
    """A line of the table, at once."""
    print(text, flush=True)  # noqa: T201  what the script is for


def main() -> None:
    """Fill, serve, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--db", type=Path, required=True)
    parser.add_argument("--runs", type=int, default=2000)
    parser.add_argument("--trials", type=int, default=500)
    parser.add_argument("--workers", type=int, help="processes of the service; its own choice if none")
    parser.add_argument("--only", default="", help="only routes with this in their name")
    parser.add_argument("--at-once", type=int, action="append", help=f"concurrent requests; default {AT_ONCE}")
    parser.add_argument("--postgresql", type=int, metavar="N", help="serve N copies from a PostgreSQL server")
    given = parser.parse_args()
    if not given.db.exists():
        start = time.perf_counter()
        fill(given.db, given.runs, given.trials)
        say(f"filled in {time.perf_counter() - start:.0f} s, {given.db.stat().st_size / 1e9:.2f} GB")
    with database(given.db, given.postgresql) as url:
        measure_all(url, given)


@contextmanager
def database(path: Path, copies: int | None) -> Iterator[str]:
    """The URL of the SQLite file, or of a PostgreSQL database with copies of its runs."""
    if copies is None:
        yield f"sqlite:///{path}"
        return
    programs = find_programs()
    if programs is None:
        raise SystemExit("no PostgreSQL server's programs")
    with server(programs) as url:
        start = time.perf_counter()
        copy_into(url, path, copies)
        say(f"copied {copies} times in {time.perf_counter() - start:.0f} s")
        yield url


def measure_all(url: str, given: argparse.Namespace) -> None:
    """Serve the database, and measure its routes."""
    with Store.open(url) as store:
        count = run_queries.count_runs(store.engine)
        token = create_token(store.engine, f"benchmark-{uuid.uuid4().hex[:8]}", Scope.SUBMIT)
    options = [] if given.workers is None else ["--workers", str(given.workers)]
    with service(url, given.db.with_suffix(".log"), options) as served:
        known = Known(served.address, count)
        asked = {**pages(known), **api(known), **files(known)}
        chosen = {name: paths for name, paths in asked.items() if given.only in name and paths}
        for at_once in given.at_once or AT_ONCE:
            say_latencies(served, chosen, at_once)
        say("")
        say_paint(served.address)
        if not given.only:
            say_submission(served, token, given.trials)
            say_news(served, token, given.trials)


def say_latencies(served: Service, asked: Mapping[str, Sequence[str]], at_once: int) -> None:
    """A table of all routes at one concurrency."""
    say(f"{at_once} requests at once:\n")
    say("| route | first ms | median ms | p95 ms | p99 ms | CPU ms | kB | memory MB |")
    say("|---|---:|---:|---:|---:|---:|---:|---:|")
    for name, paths in asked.items():
        one = measure(served, paths, at_once)
        figures = [f"{value:.0f}" for value in (one.first_ms, one.median_ms, one.p95_ms, one.p99_ms)]
        figures += [f"{one.cpu_ms:.1f}", f"{one.kb:.1f}", f"{served.memory_mb():.0f}"]
        say(f"| {name} | {' | '.join(figures)} |")
    say("")


def say_paint(address: str) -> None:
    """First paint of the overview."""
    found = first_paint_ms(address)
    if found:
        say(f"First paint of the overview in Chromium: {found[0]:.0f} ms, on a second visit {found[1]:.0f} ms.")


def say_submission(served: Service, token: str, trials: int) -> None:
    """Runs entered and committed, by four senders at once."""
    sent = bodies(44, trials)
    submit(served.address, token, sent[:4], trials)
    before_s = served.cpu_s()
    rate = submit(served.address, token, sent[4:], trials)
    cpu = (served.cpu_s() - before_s) / (40 * trials) * 1000
    size = len(sent[0][1]) / 1000
    say(f"Submission: {rate:.0f} results/s, {cpu:.3f} ms of processor time each, {size:.0f} kB a run.")


def say_news(served: Service, token: str, trials: int) -> None:
    """What one more run costs: the answers that all pages rest on are made anew."""
    time.sleep(QUIET_S)
    idle_s = -served.cpu_s()
    time.sleep(QUIET_S)
    idle_s += served.cpu_s()
    before_s = served.cpu_s()
    submit(served.address, token, bodies(1, trials), trials)
    time.sleep(QUIET_S)
    spent_s = served.cpu_s() - before_s - idle_s
    say(f"After a run has come: {spent_s:.2f} s of processor time, in a thread that no request waits for.")


if __name__ == "__main__":
    main()
