"""`opgauge gate --store` and `--against` in somebody else's repository."""

from __future__ import annotations

from pathlib import Path

from opgauge.harness.gate.gate import ExitCode
from tests.harness.test_gate_project import QUICK, REFERENCE, ForeignProject


def test_stored_blocks_of_a_project(tmp_path: Path) -> None:
    """Blocks of its own ops are kept, and what is compared with them tells that the reference changed since."""
    project, url = ForeignProject(tmp_path / "kernels"), f"sqlite:///{tmp_path}/runs.db"
    code, printed = project.gate("--all", "--store", "--db", url)
    assert code in {ExitCode.PASSED, ExitCode.UNDECIDED}, printed
    stored = printed.rpartition("run ")[2].split()[0]
    for told in (False, True):
        if told:
            project.change(*REFERENCE)
        code, printed = project.opgauge("gate", "--against", stored, *QUICK, "--all", "--db", url)
        assert code in {ExitCode.PASSED, ExitCode.UNDECIDED}, printed
        assert ("doubled: the reference changed" in printed) == told
