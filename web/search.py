"""Search over ops, cases, kernels, commits, runs and projects of the service."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from urllib.parse import quote

from opgauge.harness.counting import counted
from opgauge.harness.store import queries
from opgauge.web.profile import kernel_times
from opgauge.web.reader import Reader
from opgauge.web.scope import prefix

KINDS = ("op", "case", "kernel", "commit", "run", "project")
"""Kinds of hits, in the order in which they are listed."""
CHARACTERS = 300
"""Longest indexed text of an entry; GPU kernel names can have thousands of characters."""


@dataclass(frozen=True, slots=True)
class Hit:
    """A page that a search can find. key: the text that ranks best, lower case; text: all that is searched, lower case.

    href: address below the root of the project, of the service for a project.
    """

    kind: str
    title: str
    detail: str
    href: str
    key: str = field(repr=False)
    text: str = field(repr=False)


def search(reader: Reader, wanted: str, most: int, kinds: Sequence[str] = KINDS) -> dict[str, list[Hit]]:
    """At most `most` entries of each kind that have every word of `wanted`, the best first; no kind without any."""
    words = wanted.lower().split()
    if not words:
        return {}
    index: Mapping[str, Sequence[Hit]] = reader.cache.get("search", lambda: _index(reader))
    found = {}
    for kind in kinds:
        hits = [hit for hit in index.get(kind, ()) if all(word in hit.text for word in words)]
        if hits:
            found[kind] = sorted(hits, key=lambda hit: _rank(hit, words[0]))[:most]
    return found


def _rank(hit: Hit, word: str) -> tuple[int, int, str]:
    """Exact names first, then beginnings, then the rest; shorter names before longer ones."""
    key = hit.key
    closeness = 0 if key == word else 1 if key.startswith(word) else 2 if word in key else 3
    return closeness, len(key), key


def _index(reader: Reader) -> dict[str, list[Hit]]:
    found: dict[str, list[Hit]] = {}
    for make in (_cases, _kernels, _commits, _runs, _projects):
        for hit in make(reader):
            found.setdefault(hit.kind, []).append(hit)
    return found


def _hit(kind: str, title: str, detail: str, href: str, also: str = "") -> Hit:
    title = title[:CHARACTERS]
    return Hit(kind, title, detail, href, title.lower(), f"{title} {detail} {also}".lower())


def _cases(reader: Reader) -> Iterator[Hit]:
    """Ops and cases of the recent runs."""
    cases = reader.recent().cases
    for op in sorted({case.op for case in cases.values()}):
        yield _hit("op", op, "", f"/ops/{quote(op, safe='')}")
    for case in cases.values():
        tags = " ".join(str(tag) for tag in case.data.get("tags", ()))
        yield _hit("case", case.name, f"{case.op}, {case.dtype}", f"/cases/{case.case_id}", f"{case.case_id} {tags}")


def _kernels(reader: Reader) -> Iterator[Hit]:
    """Implementations of each op, and GPU kernels in the profiles of the latest run of each device."""
    recent = reader.recent()
    pairs = {(name, recent.cases[case_id].op) for case_id, name, _ in recent.series}
    for name, op in sorted(pairs):
        yield _hit("kernel", name, f"implementation of {op}", f"/ops/{quote(op, safe='')}")
    for run in {run.key: run for run in recent.last_run.values()}.values():
        launched = reader.cached_for_run("launched", run, partial(_launched, reader, run.key))
        for name, (case_key, implementation) in launched.items():
            case = reader.cases([case_key]).get(case_key)
            if case is not None:
                detail = f"launched by {implementation} of {case.op}"
                yield _hit("kernel", name, detail, f"/cases/{case.case_id}?run={run.id}")


def _launched(reader: Reader, run_key: int) -> dict[str, tuple[int, str]]:
    """Names of the GPU kernels in a run's profiles, with a case and an implementation that launches each."""
    found: dict[str, tuple[int, str]] = {}
    for line in queries.list_lines(reader.engine, run_key):
        for kernel in kernel_times(line.data):
            found.setdefault(kernel.name[:CHARACTERS], (line.case_key, line.implementation))
    return found


def _commits(reader: Reader) -> Iterator[Hit]:
    """Commits with runs."""
    known = reader.commits()
    for sha in dict.fromkeys(run.sha for run in reader.runs() if run.sha):
        info = known.get(sha)
        detail = f"{info.subject} – {info.author}" if info else ""
        yield _hit("commit", sha[:12], detail, f"/runs?commit={quote(sha[:40], safe='')}", sha)


def _runs(reader: Reader) -> Iterator[Hit]:
    for run in reader.runs():
        detail = f"{run.started:%Y-%m-%d %H:%M}, {run.branch or 'no branch'}, {run.status}"
        yield _hit("run", run.id[:8], detail, f"/runs/{quote(run.id, safe='')}", run.id)


def _projects(reader: Reader) -> Iterable[Hit]:
    listed = reader.projects()
    if len(listed) > 1:
        for name, count, _ in listed:
            yield _hit("project", name or "unnamed", counted(count, "run"), f"{prefix(name)}/")
