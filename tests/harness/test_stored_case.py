"""Stored cases of ops that this process does not have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from opgauge.harness.case.casejson import StoredCase, case_to_json, read_stored_case, stored_case
from opgauge.harness.errors import CaseError
from opgauge.harness.result.result import Environment, Result, Status, Trial
from opgauge.harness.store import Store
from tests.commandline import run_here

DATA: dict[str, Any] = {
    "id": "",
    "op": "somebodys_op",
    "name": "small",
    "dtype": "float32",
    "shapes": {"x": [3, 4]},
    "params": {"eps": 0.5},
    "inputs": {},
    "tags": ["gate"],
    "note": "",
    "published": {},
    "gate": {},
    "file": "cases.yaml",
    "line": 3,
}


def data(**changes: Any) -> dict[str, Any]:
    """A case's JSON, with the id of its content unless another is given."""
    made = {**DATA, "id": "0" * 16, **changes}
    if "id" not in changes:
        from opgauge.harness.case.case import content_id

        made["id"] = content_id(stored_case(made).content())
    return made


def test_a_case_of_an_unknown_op_keeps_its_id_and_content() -> None:
    """It is read and written back unchanged, and knows whether its id is that of its content."""
    written = data()
    case = read_stored_case(written)
    assert isinstance(case, StoredCase)
    assert (case.id, case.op, case.shapes, case.tags) == (written["id"], "somebodys_op", {"x": (3, 4)}, ("gate",))
    assert case_to_json(case) == written
    assert case.is_consistent
    assert not stored_case(data(id="0" * 16)).is_consistent


@pytest.mark.parametrize(
    ("changes", "said"),
    [({"id": "xyz"}, "16 hexadecimal digits"), ({"extra": 1}, "unknown key"), ({"shapes": {"x": "3"}}, "shapes.x")],
)
def test_what_no_run_has_written_is_refused(changes: dict[str, Any], said: str) -> None:
    """A wrong id, an unknown key, a shape that is none."""
    with pytest.raises(CaseError, match=said):
        stored_case({**data(), **changes})


def test_a_run_of_unknown_ops_is_shown_exported_and_imported(tmp_path: Path) -> None:
    """`show`, `export` and `history` read such a run where the op cannot be imported."""
    url = f"sqlite:///{tmp_path}/runs.db"
    with Store.open(url) as store:
        run = store.begin_run(Environment({"cpu.model": "m"}, {"project": "kernels", "commit": "abc"}))
        case = read_stored_case(data())
        store.add_result(
            run, Result(Trial(case, "triton", "cpu", "cpu"), Status.ERROR, reason="it broke", bytes=1, flops=1)
        )
        store.finish_run(run)
    shown = run_here("show", "--db", url, cwd=tmp_path, variables={})
    assert shown.returncode == 0, shown.stderr
    assert "somebodys_op" in shown.stdout
    exported = run_here("export", "--db", url, cwd=tmp_path, variables={})
    assert exported.returncode == 0, exported.stderr
    assert "somebodys_op" in exported.stdout
