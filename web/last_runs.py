"""Last runs of the devices: when each has reported last, whichever commit or branch it measured."""

from __future__ import annotations

from itertools import chain

from opgauge.harness.store.run_queries import RunInfo
from opgauge.web.devices import DeviceInfo, device_names
from opgauge.web.reader import Reader

LATEST = 1000
"""Runs of the project that are looked at, beside those of the recent history."""


def last_runs(reader: Reader) -> dict[str, tuple[DeviceInfo, RunInfo]]:
    """Devices with results in the recent history, each with its run that started last, by slug."""
    recent = reader.recent()
    found = {slug: (recent.devices[slug], run) for slug, run in recent.last_run.items()}
    for run in chain(reader.runs()[:LATEST], recent.runs):
        for device in (reader.device(run, name) for name in device_names(run)):
            if device.slug in found and found[device.slug][1].started < run.started:
                found[device.slug] = (device, run)
    return found
