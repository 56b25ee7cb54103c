"""Last runs of the devices: when each has reported last, whichever commit or branch it measured, and which are gone."""

from __future__ import annotations

from datetime import datetime
from itertools import islice

from opgauge.harness.store.run_queries import RunInfo
from opgauge.web.devices import DeviceInfo, device_names
from opgauge.web.reader import Reader

LATEST = 1000
"""Runs of the project that are looked at, the latest first; a device that none of them has reported long ago."""


def last_runs(reader: Reader) -> dict[str, tuple[DeviceInfo, RunInfo]]:
    """Devices with results in the recent history, each with its run that started last, by slug."""
    recent = reader.recent()
    found = {slug: (recent.devices[slug], run) for slug, run in recent.last_run.items()}
    missing = set(found)
    for run in islice(reader.runs(), LATEST):
        for device in (reader.device(run, name) for name in device_names(run)):
            if device.slug in missing:
                missing.remove(device.slug)
                found[device.slug] = (device, run)
        if not missing:
            break
    return found


def replaced_devices(reader: Reader) -> frozenset[str]:
    """Slugs of the devices that another one of their kind, GPU or CPU, follows: it ran first after they ran last."""
    return reader.cache.get("replaced devices", lambda: _replaced(reader))


def _replaced(reader: Reader) -> frozenset[str]:
    first: dict[DeviceInfo, datetime] = {}
    last: dict[DeviceInfo, datetime] = {}
    for run in islice(reader.runs(), LATEST):
        for device in (reader.device(run, name) for name in device_names(run)):
            first[device] = run.started
            last.setdefault(device, run.started)
    newest = {
        is_cpu: max((first[one] for one in first if (one.name == "cpu") is is_cpu), default=None)
        for is_cpu in (True, False)
    }
    return frozenset(one.slug for one, when in last.items() if (begun := newest[one.name == "cpu"]) and when < begun)
