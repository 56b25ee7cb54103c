"""Notifications: regressions, silent devices and dead runs, queued for webhooks.

A regression is announced once per webhook, when it is first suspected or confirmed; a webhook that did not choose
suspicions gets the confirmation. A device is silent if it has no run for a day; a run died if it is interrupted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from threading import Event as Signal
from typing import Any
from urllib.parse import quote

from opgauge.harness.store.abandoned import end_lost_runs
from opgauge.harness.store.webhooks import Event, list_webhooks, queue_event
from opgauge.web.delivery import Sender, is_path
from opgauge.web.known_regressions import known_regressions
from opgauge.web.last_runs import last_runs
from opgauge.web.look_back import look_back
from opgauge.web.observe import log
from opgauge.web.reader import Reader
from opgauge.web.regression import Regression, RegressionState
from opgauge.web.scope import prefix

SILENT_AFTER = timedelta(days=1)
RECENT = timedelta(days=7)
"""Age up to which events are announced: a new webhook is not told of the past."""


def events_of(reader: Reader, now: datetime) -> Iterator[tuple[Event, str, dict[str, Any]]]:
    """Kind, key and message of each event of a project."""
    for one in known_regressions(reader):
        is_new = (one.seen or one.run.started) > now - RECENT
        if one.state in {RegressionState.OPEN, RegressionState.SUSPECTED} and is_new:
            kind = Event.SUSPECTED if one.state is RegressionState.SUSPECTED else Event(one.kind)
            yield kind, f"regression {one.key}", _regression_message(one, reader.settings.forge)
    for slug, (device, run) in last_runs(reader).items():
        if SILENT_AFTER < now - run.started < RECENT:
            text = f"{device} has not reported since {run.started:%Y-%m-%d %H:%M} UTC"
            message = {"text": text, "device": str(device), "path": "/devices"}
            yield Event.SILENT, f"silent {slug} {run.started.isoformat()}", message
    for run in reader.runs():
        ended = run.finished or run.started
        if ended < now - RECENT:
            continue
        if run.status == "interrupted":
            text = f"run {run.id[:8]} of {run.commit[:10] or 'no commit'} was interrupted at {ended:%Y-%m-%d %H:%M} UTC"
            yield Event.DIED, f"died {run.id}", {"text": text, "run": run.id, "path": f"/runs/{run.id}"}


def _regression_message(one: Regression, forge: str) -> dict[str, Any]:
    """Message of a regression; with links to the commits where the project's forge is known."""
    change = f"{100 * (one.ratio - 1):+.1f} %" if one.ratio else one.detail
    since = one.run.commit[:10] or one.run.id[:8]
    subject = f"{one.case.op}/{one.case.name} ({one.implementation} on {one.device})"
    return {
        "text": f"{one.state} regression: {subject} is {one.kind}, {change}, since {since}",
        "state": str(one.state),
        "kind": one.kind,
        "op": one.case.op,
        "case": one.case.name,
        "case_id": one.case.case_id,
        "implementation": one.implementation,
        "device": str(one.device),
        "ratio": one.ratio,
        "good_commit": one.before.commit,
        "bad_commit": one.run.commit,
        "path": f"/regressions/{one.key}",
        "compare_path": f"/compare?base={one.before.id}&head={one.run.id}&op={quote(one.case.op, safe='')}",
        "case_path": f"/cases/{one.case.case_id}?device={one.device.slug}",
        **{
            f"{name}_commit_link": forge.replace("{sha}", run.sha)
            for name, run in (("good", one.before), ("bad", one.run))
            if forge and run.sha
        },
    }


def queue_events(reader: Reader, now: datetime | None = None) -> int:
    """Queue the events that the webhooks have not had; returns how many."""
    now = now or datetime.now(UTC)
    queued = 0
    hooks = list_webhooks(reader.engine)
    for project in {hook.project for hook in hooks}:
        # the pages of one project, however many the service has
        root = prefix(project)
        events = list(events_of(reader.of_project(project), now))
        for hook in hooks:
            wanted = [found for found in events if hook.project == project and found[0] in hook.events]
            for kind, key, message in wanted:
                payload = {"event": str(kind), "project": project, **_below(root, message)}
                queued += queue_event(reader.writing, hook, key, payload)
    return queued


def _below(root: str, message: Mapping[str, Any]) -> dict[str, Any]:
    """A message whose paths are below the root of its project."""
    return {key: f"{root}{value}" if is_path(key) else value for key, value in message.items()}


def follow(reader: Reader, stop: Signal, every_s: float, base: str = "") -> None:
    """Mark lost runs, queue events and send messages until `stop`; faults are logged, and tried again."""
    with Sender(reader.writing, base, stop) as sender:
        while not stop.wait(every_s):
            try:
                end_lost_runs(reader.writing)
                look_back(reader)
                if list_webhooks(reader.engine):
                    queue_events(reader)
                    sender.send_due()
            except Exception:  # noqa: BLE001  a thread that must not end; the fault is logged
                log.exception("notifications failed")
