"""Preloaded into a member of a cluster: its child processes measure ceilings in a hundredth of the time."""

from __future__ import annotations

from functools import partial

from opgauge.harness.cluster import member
from opgauge.harness.run.execute import LocalExecutor
from opgauge.harness.run.worker_process import PRELOADED

vars(member)["LocalExecutor"] = partial(LocalExecutor, preload=(*PRELOADED, "tests.faulty.brief"))
