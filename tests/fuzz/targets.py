"""Readers under test: each takes bytes, and may refuse them with an error of the harness, nothing else."""

from __future__ import annotations

import ast
import json
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, suppress
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from opgauge.harness.case.file import load_cases
from opgauge.harness.errors import ConfigurationError, HarnessError
from opgauge.harness.gate.policy import load_policy
from opgauge.harness.gate.waiver import load_waivers
from opgauge.harness.interchange import enter_file
from opgauge.harness.interchange.self_test_file import self_test_file
from opgauge.harness.project.configuration import FILE, PYPROJECT, read_project
from opgauge.harness.result.submission import parse, read_submission
from opgauge.harness.store import Store
from opgauge.harness.store.deleting import delete_runs
from opgauge.harness.store.self_tests import SelfTest
from opgauge.harness.worker import protocol
from opgauge.ops import TuningError
from opgauge.ops._core import tuning as tuning_files
from tests.harness import foreign_files

with warnings.catch_warnings():
    # the test client prefers another package than httpx
    warnings.simplefilter("ignore")
    from fastapi.testclient import TestClient

    from tests.web.submissions import a_run, bearer

ROOT = Path(__file__).parents[2]
KEPT = Path(__file__).parent / "corpus"
"""Inputs that reached new code in earlier fuzzing: a file per target, a bytes literal per line."""
SEED_BYTES = 3000
"""Length to which case files are cut: mutations of short inputs are tested sooner."""
RUN_ID = "3f1c2f0e-8f0a-4a0b-9a52-6d0c5b1f7a11"
SERVER_ERROR = 500
WAIVERS = b"""\
waivers:
  - cases: p_norm/seed-1*
    device: cuda*
    owner: Ada
    reason: wider accumulator
    until: 2027-03-31
    expected_ratio: 1.15
    verdicts: [slower]
"""
WORDS = (
    *(b"&a ", b"*a", b"- ", b": ", b"{", b"}", b"[", b"]", b"\n", b"  ", b"|", b"<<: ", b"? ", b'"', b"'"),
    *(b"!!python/object", b"%YAML 9.9\n", b"\x00", b"\xff", b"\xef\xbb\xbf"),
    *(b"1e999", b"-0", b"null", b".inf", b"9" * 30, b"true", b"NaN"),
)
"""Fragments that change the meaning of YAML and JSON."""


def _file(content: bytes, name: str, read: Callable[[Path], object]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_bytes(content)
        read(path)


def cases(content: bytes) -> None:
    """A case file."""
    _file(content, "x.yaml", lambda path: load_cases([path]))


def policy(content: bytes) -> None:
    """A policy file."""
    _file(content, "policy.yaml", load_policy)


def waivers(content: bytes) -> None:
    """A waiver file."""
    _file(content, "waivers.yaml", load_waivers)


def imports(content: bytes) -> None:
    """A run of another tool, or of opgauge, or self-tests."""
    store = _store()

    def enter(path: Path) -> None:
        what, _, run = enter_file(path, store).partition(" ")
        if what == "run":
            delete_runs(store.engine, [run])

    _file(content, "x.json", enter)


def submissions(content: bytes) -> None:
    """A run as another machine exports it."""
    read_submission(parse(content))


def bodies(content: bytes) -> None:
    """The body of each request that writes; the service never answers with an error of its own."""
    client, headers = _service()
    for method, path in (("PUT", ""), ("PUT", "/parts/1"), ("POST", "/finish")):
        answer = client.request(method, f"/api/v1/runs/{RUN_ID}{path}", content=content, headers=headers)
        if answer.status_code >= SERVER_ERROR:
            msg = f"{method} {path}: {answer.status_code} {answer.text[:200]}"
            raise AssertionError(msg)


def configuration(content: bytes) -> None:
    """A project configuration, in pyproject.toml and in a file of its own."""
    with suppress(ConfigurationError):
        _file(content, PYPROJECT, read_project)
    _file(content, FILE, read_project)


def tuning(content: bytes) -> None:
    """A file of launch parameters."""

    def read(path: Path) -> None:
        try:
            tuning_files.read(path)
        except TuningError as error:
            raise HarnessError(str(error)) from error

    _file(content, "tuning.json", read)


def messages(content: bytes) -> None:
    """A line on a worker's pipe."""
    protocol.decode(content)


READERS = (cases, policy, waivers, configuration, tuning, imports, submissions, bodies, messages)
TARGETS: dict[str, Callable[[bytes], None]] = {target.__name__: target for target in READERS}
"""Targets by name."""


def attempt(target: str, content: bytes) -> None:
    """Read `content`; anything but success or an error of the harness is raised."""
    try:
        TARGETS[target](content)
    except HarnessError as error:
        str(error)


def corpus(target: str) -> list[bytes]:
    """Inputs to begin with: files that people write, and those that reached new code in earlier fuzzing."""
    return [*valid(target), *kept(target)]


def kept(target: str) -> list[bytes]:
    """Inputs of earlier fuzzing."""
    file = KEPT / f"{target}.txt"
    lines = file.read_text(encoding="ascii").splitlines() if file.is_file() else []
    return [ast.literal_eval(line) for line in lines]


def keep(target: str, contents: Iterable[bytes]) -> None:
    """Replace the inputs of earlier fuzzing by `contents`."""
    KEPT.mkdir(exist_ok=True)
    lines = sorted({repr(content) for content in contents}, key=lambda line: (len(line), line))
    (KEPT / f"{target}.txt").write_text("".join(f"{line}\n" for line in lines), encoding="ascii")


def valid(target: str) -> list[bytes]:
    """Files to begin with, at least one of which is valid."""
    if target == "cases":
        files = [
            path.read_bytes() for path in (ROOT / "cases").glob("*.yaml") if path.stem not in {"policy", "waivers"}
        ]
        return sorted((file[:SEED_BYTES] for file in files), key=len)
    if target == "imports":
        found = SelfTest("aa", datetime.now(UTC), "c0ffee", "cpu", {"false_alarms_share": 0.0, "cases": []})
        return [json.dumps(content).encode() for content in (*_foreign_runs(), self_test_file([found]))]
    return {
        "policy": [(ROOT / "cases" / "policy.yaml").read_bytes()],
        "waivers": [WAIVERS],
        "configuration": [b'ops = ["."]\nbuiltin = true\n', b'[tool.opgauge]\ncases = ["."]\n'],
        "tuning": [path.read_bytes() for path in sorted((ROOT / "ops" / "tuning").glob("*.json"))],
        "submissions": [json.dumps(a_run()).encode()],
        "bodies": [json.dumps({**a_run(), "run": {**a_run()["run"], "id": RUN_ID}}).encode(), b'{"parts": 1}'],
        "messages": [
            protocol.encode(message, protocol.Address(1, "a", 2)).encode()
            for message in (protocol.Ready(), protocol.Phase("x"))
        ],
    }[target]


def _foreign_runs() -> tuple[dict[str, Any], ...]:
    with tempfile.TemporaryDirectory() as folder:
        nvbench = foreign_files.nvbench(Path(folder))
    return nvbench, foreign_files.pytest_benchmark(), foreign_files.google_benchmark()


@cache
def _store() -> Store:
    """A database in memory: making one for each input would take most of the time."""
    return Store.open("sqlite://")


@cache
def _service() -> tuple[Any, dict[str, str]]:
    """A client of the service over an empty database, without rate limits, and the headers of a token that writes."""
    from opgauge.harness.settings import Settings
    from opgauge.web.app import create_app
    from opgauge.web.rate import RateLimit, RateLimits

    folder = tempfile.mkdtemp(prefix="opgauge-fuzz-")
    app = create_app(Settings(database=f"sqlite:///{folder}/x.db"))
    unlimited = RateLimit(per_s=1e9, burst=10**9)
    app.state.limits = RateLimits(unlimited, unlimited, unlimited)
    client = ExitStack().enter_context(TestClient(app))
    return client, {**bearer(client), "Content-Type": "application/json"}


def mutations(target: str, count: int, seed: int) -> Iterator[bytes]:
    """So many mutated files: pieces removed, repeated, moved, replaced by fragments or single bits flipped."""
    random = Random(seed)  # noqa: S311  no secrets here
    files = corpus(target)
    for _ in range(count):
        content = bytearray(random.choice(files))
        for _ in range(random.randint(1, 6)):
            start = random.randrange(len(content) + 1)
            end = min(len(content), start + random.choice((0, 1, 2, 8, 40)))
            kind = random.randrange(4)
            if kind == 0:
                content[start:end] = random.choice(WORDS)
            elif kind == 1:
                content[start:end] = b""
            elif kind == 2:
                content[start:start] = content[end : end + random.randint(1, 60)]
            elif start < len(content):
                content[start] ^= 1 << random.randrange(8)
        yield bytes(content)
