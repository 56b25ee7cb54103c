"""Run every cheat on the CPU beside honest kernels of the same cases, and store the rates for the page Trust.

`python -m tests.cheats --db opgauge.db`
"""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser
from collections.abc import Sequence
from datetime import UTC, datetime

from opgauge.harness.measure import Limits
from opgauge.harness.result.result import Status
from opgauge.harness.run.environment import capture
from opgauge.harness.run.execute import LocalExecutor
from opgauge.harness.settings import Settings
from opgauge.harness.store import Store
from opgauge.harness.store.self_tests import SelfTest, add_self_test
from opgauge.harness.trust.cheat_rates import CheatOutcome, cheat_rates
from tests.cheats.catalogue import Cheat, trial
from tests.cheats.test_cheats import MODULES, of_device

HONEST = ("baseline", "optimized")


def reason_of(executor: LocalExecutor, cheat: Cheat, implementation: str = "") -> str:
    """Why a trial was flagged; empty if it is ok."""
    (found,) = executor.run([trial(cheat, implementation)])
    return "" if found.status is Status.OK else found.reason


def main(arguments: Sequence[str]) -> int:
    """Print the rates as JSON, and store them where a database is named."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--db", help="SQLite file or URL of the database")
    parser.add_argument("--family", help="only this family of cheats")
    parser.add_argument(
        "--budget", type=float, default=Settings.budget_s, help="seconds of sampling, as of `opgauge run`"
    )
    chosen = parser.parse_args(arguments)
    cheats = [one for one in of_device("cpu") if chosen.family in {None, one.family}]
    with LocalExecutor(limits=Limits(budget_s=chosen.budget), timeout_s=60, preload=MODULES) as executor:
        outcomes = [CheatOutcome(one.family, one.name, reason_of(executor, one)) for one in cheats]
        by_case = {one.case: one for one in cheats}.values()
        honest = [reason_of(executor, one, name) for one in by_case for name in HONEST]
    data = cheat_rates(outcomes, honest)
    sys.stdout.write(json.dumps(data, indent=1) + "\n")
    if chosen.db:
        url = chosen.db if "://" in chosen.db else f"sqlite:///{chosen.db}"
        with Store.open(url) as store:
            commit = capture(["cpu"]).commit
            add_self_test(store.engine, SelfTest("cheats", datetime.now(UTC), commit, "cpu", data))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
