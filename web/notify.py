"""Notifications: regressions, silent devices and dead runs, sent to webhooks, signed and repeated until they arrive.

A regression is announced once per webhook, when it is first suspected or confirmed; a webhook that did not choose
suspicions gets the confirmation. A device is silent if it has no run for a day; a run died if it is interrupted.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from threading import Event as Signal
from typing import Any
from urllib.parse import quote

import httpx
from sqlalchemy import Engine

from opgauge.harness.store.abandoned import end_lost_runs
from opgauge.harness.store.webhooks import (
    Delivery,
    Event,
    Form,
    finish_delivery,
    list_webhooks,
    queue_event,
    take_due,
)
from opgauge.web.observe import DELIVERIES, log
from opgauge.web.reader import Reader
from opgauge.web.regression import Regression, RegressionState, known_regressions
from opgauge.web.scope import prefix

SILENT_AFTER = timedelta(days=1)
RECENT = timedelta(days=7)
"""Age up to which events are announced: a new webhook is not told of the past."""
TIMEOUT_S = 10.0
SIGNATURE = "X-Opgauge-Signature"
"""Seconds that a receiver may take; header of the signature."""


def events_of(reader: Reader, now: datetime) -> Iterator[tuple[Event, str, dict[str, Any]]]:
    """Kind, unique key and message of each event of a project."""
    for one in known_regressions(reader):
        if one.state in {RegressionState.OPEN, RegressionState.SUSPECTED} and one.run.started > now - RECENT:
            kind = Event.SUSPECTED if one.state is RegressionState.SUSPECTED else Event(one.kind)
            yield kind, f"regression {one.key}", _regression_message(one, reader.settings.forge)
    for slug, (device, started) in latest_by_device(reader).items():
        if SILENT_AFTER < now - started < RECENT:
            text = f"{device} has not reported since {started:%Y-%m-%d %H:%M} UTC"
            yield (
                Event.SILENT,
                f"silent {slug} {started.isoformat()}",
                {"text": text, "device": str(device), "path": "/devices"},
            )
    for run in reader.runs():
        ended = run.finished or run.started
        if ended < now - RECENT:
            continue
        if run.status == "interrupted":
            text = f"run {run.id[:8]} of {run.commit[:10] or 'no commit'} was interrupted at {ended:%Y-%m-%d %H:%M} UTC"
            yield Event.DIED, f"died {run.id}", {"text": text, "run": run.id, "path": f"/runs/{run.id}"}


def latest_by_device(reader: Reader) -> dict[str, tuple[Any, datetime]]:
    """Device and start of its latest run of the history, by slug."""
    found: dict[str, tuple[Any, datetime]] = {}
    for run in reader.recent().runs:
        for name in {key.partition(".")[0] for key in run.environment.hard if "." in key}:
            device = reader.device(run, name)
            if device.slug not in found or found[device.slug][1] < run.started:
                found[device.slug] = (device, run.started)
    return found


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
                queued += queue_event(
                    reader.engine, hook, key, {"event": str(kind), "project": project, **_below(root, message)}
                )
    return queued


def _below(root: str, message: Mapping[str, Any]) -> dict[str, Any]:
    """A message whose paths are below the root of its project."""
    return {key: f"{root}{value}" if _is_path(key) else value for key, value in message.items()}


def _is_path(key: str) -> bool:
    return key == "path" or key.endswith("_path")


def send_due(engine: Engine, client: httpx.Client, base: str = "") -> int:
    """Send what is due; returns how many messages were tried. base: address of the service, for links."""
    tried = 0
    while (delivery := take_due(engine)) is not None:
        fault = _send(delivery, client, base)
        outcome = finish_delivery(engine, delivery, fault)
        DELIVERIES.labels(outcome).inc()
        log.info("webhook", name=delivery.webhook.name, event_key=delivery.event, outcome=outcome, fault=fault)
        tried += 1
    return tried


def _send(delivery: Delivery, client: httpx.Client, base: str) -> str:
    """Send one message; returns what went wrong, empty if it was taken."""
    body = body_of(delivery, base)
    stamp = str(int(datetime.now(UTC).timestamp()))
    headers = {"Content-Type": "application/json", "X-Opgauge-Timestamp": stamp}
    headers |= {"X-Opgauge-Delivery": str(delivery.key), SIGNATURE: signature(delivery.webhook.secret, stamp, body)}
    try:
        answer = client.post(delivery.webhook.url, content=body, headers=headers, timeout=TIMEOUT_S)
    except httpx.HTTPError as error:
        return f"{type(error).__name__}: {error}"
    return "" if answer.is_success else f"answered {answer.status_code}"


def body_of(delivery: Delivery, base: str) -> bytes:
    """The message in the form of its webhook."""
    given = delivery.payload
    links = {key.removesuffix("path") + "link": f"{base}{given[key]}" for key in given if base and _is_path(key)}
    link = links.get("link", "")
    if delivery.webhook.form is Form.SLACK:
        text = _slack_text(str(given["text"]))
        compare = f", <{_slack_text(links['compare_link'])}|compare>" if "compare_link" in links else ""
        data = {"text": f"{text} (<{link}|details>{compare})" if link else text}
    else:
        data = {key: value for key, value in given.items() if not (base and _is_path(key))} | links
    return json.dumps(data, ensure_ascii=False).encode()


def _slack_text(text: str) -> str:
    """Text in which Slack sees no markup: names of cases come from outside."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def signature(secret: str, stamp: str, body: bytes) -> str:
    """HMAC-SHA256 over the timestamp and the body: a receiver can tell forged and repeated messages."""
    return "sha256=" + hmac.new(secret.encode(), stamp.encode() + b"." + body, hashlib.sha256).hexdigest()


def follow(reader: Reader, stop: Signal, every_s: float, base: str = "") -> None:
    """Mark lost runs, queue events and send messages until `stop`; faults are logged, and tried again."""
    with httpx.Client(follow_redirects=False) as client:
        while not stop.wait(every_s):
            try:
                end_lost_runs(reader.engine)
                if list_webhooks(reader.engine):
                    queue_events(reader)
                    send_due(reader.engine, client, base)
            except Exception:  # noqa: BLE001  a thread that must not end; the fault is logged
                log.exception("notifications failed")
