"""Commits as pages describe them: author, subject, address on the forge, and the commits between two runs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from heapq import heapify, heappop, heappush
from urllib.parse import quote

from opgauge.harness.store.history import commit_time, corrected_dates, first_measured
from opgauge.harness.store.projects import Commit
from opgauge.harness.store.run_queries import RunInfo
from opgauge.web.charts import literal
from opgauge.web.reader import Reader

MOST_BETWEEN = 40
"""Most commits between two runs that are listed."""
LINE = 90
"""Most characters of a line in a label of a figure."""
_SHA = re.compile("[0-9a-f]{7,64}")
_FORGES = (
    (re.compile(r"/commit/\{sha\}.*"), "/compare/{base}...{head}"),
    (re.compile(r"/commit/\?(.*&)?id=\{sha\}.*"), "/diff/?id={head}&id2={base}"),
)
"""Addresses of commits and of differences: GitHub, GitLab, Gitea and Forgejo; cgit."""


@dataclass(frozen=True, slots=True)
class CommitFacts:
    """A commit; `author`, `subject` and `link` are empty if unknown."""

    sha: str
    author: str = ""
    subject: str = ""
    link: str = ""


@dataclass(frozen=True, slots=True)
class CommitBook:
    """Commits of the projects of a reader, by SHA.

    measured: those that only runs describe, without parents. forges: address of a commit on the forge, with `{sha}`.
    dates: of `commits`, never before those of their parents.
    """

    commits: Mapping[str, Commit] = field(default_factory=dict)
    measured: Mapping[str, Commit] = field(default_factory=dict)
    forges: Mapping[str, str] = field(default_factory=dict)
    dates: Mapping[str, datetime] = field(default_factory=dict)

    def facts(self, commit: str) -> CommitFacts:
        """Facts of a commit, which may end with `-dirty`."""
        sha = commit.removesuffix("-dirty")
        known = self.commits.get(sha) or self.measured.get(sha)
        link = self.forges.get(sha, "").replace("{sha}", quote(sha, safe="")) if _SHA.fullmatch(sha) else ""
        return CommitFacts(sha, known.author if known else "", known.subject if known else "", link)

    def label(self, run: RunInfo) -> str:
        """The commit and the run, as a label of a figure; author and subject on a second line."""
        facts = self.facts(run.commit)
        lines = [f"{run.commit[:10] or 'no commit'} · run {run.id[:8]} of {run.started:%Y-%m-%d %H:%M}"]
        about = ": ".join(filter(None, (facts.author, facts.subject)))
        return "<br>".join(literal(line, LINE) for line in (*lines, about) if line)

    def diff(self, base: str, head: str) -> str:
        """Address of the difference of two commits on the forge; empty if unknown."""
        shas = {"base": base.removesuffix("-dirty"), "head": head.removesuffix("-dirty")}
        if len(set(shas.values())) < 2 or not all(map(_SHA.fullmatch, shas.values())):
            return ""
        forge = self.forges.get(shas["head"], "")
        for pattern, replacement in _FORGES:
            found = pattern.search(forge)
            if found:
                return forge[: found.start()] + replacement.format(**shas)
        return ""

    def between(self, base: str, head: str) -> list[CommitFacts]:
        """Commits that `head` has and `base` lacks, newest first, at most `MOST_BETWEEN`; none if they are unknown."""
        old, new = base.removesuffix("-dirty"), head.removesuffix("-dirty")
        if old == new or old not in self.commits or new not in self.commits:
            return []
        return [self.facts(sha) for sha in self._walk(old, new)]

    def _walk(self, base: str, head: str) -> list[str]:
        """Ancestors of `head` that are none of `base`, from the newest commits of both; empty if some are unknown."""
        in_base = {base: True, head: False}
        queue = [(-self.dates[sha].timestamp(), sha) for sha in in_base]
        heapify(queue)
        waiting, found = {head}, list[str]()
        while waiting and len(found) < MOST_BETWEEN:
            # the dates are in the order of parents: all descendants of this one were visited
            _, sha = heappop(queue)
            waiting.discard(sha)
            parents = self.commits[sha].parents
            if not in_base[sha]:
                found.append(sha)
                if not all(parent in self.commits for parent in parents):
                    return []
            for parent in filter(self.commits.__contains__, parents):
                if parent not in in_base:
                    heappush(queue, (-self.dates[parent].timestamp(), parent))
                in_base[parent] = in_base[sha] or in_base.get(parent, False)
                (waiting.discard if in_base[parent] else waiting.add)(parent)
        return found


def known_commits(reader: Reader) -> CommitBook:
    """Commits of the reader's projects, read once for each state of the data."""
    return reader.cache.get("commit book", lambda: _book(reader))


def _book(reader: Reader) -> CommitBook:
    names = [reader.project] if reader.project is not None else [name for name, _, _ in reader.projects()]
    commits: dict[str, Commit] = {}
    measured: dict[str, Commit] = {}
    started: dict[str, datetime] = {}
    forges: dict[str, str] = {}
    for own in map(reader.of_project, names):
        described = {run.sha: _measured(run) for run in own.runs() if run.sha}
        measured |= described
        started |= first_measured(own.runs())
        commits |= own.commits()
        forges |= dict.fromkeys((*described, *own.commits()), own.settings.forge)
    return CommitBook(commits, measured, forges, corrected_dates(commits, started))


def _measured(run: RunInfo) -> Commit:
    """The commit of a run as the run describes it."""
    soft = run.environment.soft
    author, subject = soft.get("commit_author", ""), soft.get("commit_subject", "")
    return Commit(run.sha, (), commit_time(run) or run.started, author, subject)
