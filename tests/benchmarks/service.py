"""How fast the service is over a large database: p95 of every route at a concurrency of four, and runs sent per second.

    python -m tests.benchmarks.service --db /tmp/service.db --runs 2000 --trials 500

fills the database where there is none (a minute or two, 1.3 GB), serves it in a process of its own, and
prints a table in Markdown. Clients and service share the machine's cores; only what a page or route holds is
timed, for each of many addresses. Run it from the root of the repository.
"""

from __future__ import annotations

import argparse
import gzip
import json
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection, RemoteDisconnected
from pathlib import Path
from threading import local

import httpx
import psutil
from opgauge.harness.result.result import Check, Measurement, Result, Status, Trial, to_json
from opgauge.harness.scope import Scope
from opgauge.harness.settings import ROOT
from opgauge.harness.store import Store
from opgauge.harness.store.tokens import create_token

from tests.benchmarks.filling import fill, some_cases
from tests.benchmarks.paint import first_paint_ms
from tests.benchmarks.routes import Known, api, files, pages

AT_ONCE = 4
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


@contextmanager
def service(path: Path, options: Sequence[str] = ()) -> Iterator[Service]:
    """`opgauge serve` over a database, until the block ends."""
    command = [sys.executable, "-m", "harness", "serve", "--db", f"sqlite:///{path}", "--port", str(PORT), *options]
    with subprocess.Popen(command, cwd=ROOT) as process:
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


def measure(served: Service, paths: Sequence[str]) -> tuple[float, ...]:
    """The first answer, then median and p95 at `AT_ONCE`, and processor time of each, in ms; kB of the first."""
    client = Client()
    first_ms, size = client.ask(paths[0])
    before_s = served.cpu_s()
    with ThreadPoolExecutor(AT_ONCE) as pool:
        asked = [paths[index % len(paths)] for index in range(max(REQUESTS, len(paths)))]
        times = sorted(taken for taken, _ in pool.map(client.ask, asked))
    cpu_ms = (served.cpu_s() - before_s) / len(asked) * 1000
    return first_ms, times[len(times) // 2], times[int(len(times) * 0.95)], cpu_ms, size / 1000


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
        with ThreadPoolExecutor(AT_ONCE) as pool:
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
    given = parser.parse_args()
    if not given.db.exists():
        start = time.perf_counter()
        fill(given.db, given.runs, given.trials)
        say(f"filled in {time.perf_counter() - start:.0f} s, {given.db.stat().st_size / 1e9:.2f} GB")
    with Store.open(f"sqlite:///{given.db}") as store:
        token = create_token(store.engine, f"benchmark-{uuid.uuid4().hex[:8]}", Scope.SUBMIT)
    options = [] if given.workers is None else ["--workers", str(given.workers)]
    with service(given.db, options) as served:
        known = Known(served.address)
        say("| route | first ms | median ms | p95 ms | CPU ms | kB |")
        say("|---|---:|---:|---:|---:|---:|")
        asked = {**pages(known), **api(known), **files(known)}
        for name, paths in asked.items():
            if given.only in name:
                first, middle, late, cpu, size = measure(served, paths)
                say(f"| {name} | {first:.0f} | {middle:.0f} | {late:.0f} | {cpu:.1f} | {size:.1f} |")
        say("")
        say_paint(served.address)
        if not given.only:
            say_submission(served, token, given.trials)
            say_news(served, token, given.trials)


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
