"""Readers under test: each takes bytes, and may refuse them with an error of the harness, nothing else."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

from opgauge.harness.case.file import load_cases
from opgauge.harness.errors import HarnessError
from opgauge.harness.gate.policy import load_policy
from opgauge.harness.gate.waiver import load_waivers
from opgauge.harness.interchange import import_file
from opgauge.harness.result.submission import parse, read_submission
from opgauge.harness.store import Store
from opgauge.harness.worker import protocol

from tests.harness import foreign_files

ROOT = Path(__file__).parents[2]
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
    """A run of another tool, or of opgauge."""
    with Store.open("sqlite://") as store:
        _file(content, "x.json", lambda path: import_file(path, store))


def submissions(content: bytes) -> None:
    """The body of a pushed run."""
    read_submission(parse(content))


def messages(content: bytes) -> None:
    """A line on a worker's pipe."""
    protocol.decode(content)


TARGETS: dict[str, Callable[[bytes], None]] = {
    target.__name__: target for target in (cases, policy, waivers, imports, submissions, messages)
}
"""Targets by name."""


def attempt(target: str, content: bytes) -> None:
    """Read `content`; anything but success or an error of the harness is raised."""
    try:
        TARGETS[target](content)
    except HarnessError as error:
        str(error)


def corpus(target: str) -> list[bytes]:
    """Valid files to begin with, small ones first."""
    if target == "cases":
        files = [
            path.read_bytes() for path in (ROOT / "cases").glob("*.yaml") if path.stem not in {"policy", "waivers"}
        ]
        return sorted((file[:3000] for file in files), key=len)
    if target in {"policy", "waivers"}:
        return [path.read_bytes() for path in [ROOT / "cases" / f"{target}.yaml"] if path.exists()] or [
            b"fail: [slower]\n"
        ]
    if target == "messages":
        address = protocol.Address(1, "a", 2)
        return [protocol.encode(message, address).encode() for message in (protocol.Ready(), protocol.Phase("x"))]
    with tempfile.TemporaryDirectory() as folder:
        tools = (
            foreign_files.nvbench(Path(folder)),
            foreign_files.pytest_benchmark(),
            foreign_files.google_benchmark(),
        )
    return [json.dumps(content).encode() for content in tools]


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
