"""Open regressions, kept for when the runs in which they began are no longer looked at."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import asdict, dataclass

from sqlalchemy import Engine, delete, insert

from opgauge.harness.store.columns import select
from opgauge.harness.store.tables import OpenRegressionRow


@dataclass(frozen=True, slots=True)
class OpenRegression:
    """A regression that was open when pages were made last.

    key: of the regression. kind: slower or broken. device: its slug. before, run: ids of the last good and the first
    bad run. before_ns: time before it, if it is slower.
    """

    key: str
    project: str
    case_id: str
    implementation: str
    device: str
    kind: str
    before: str
    run: str
    before_ns: float | None


def list_open(engine: Engine, project: str | None = None) -> list[OpenRegression]:
    """Open regressions of a project, or of all."""
    row = OpenRegressionRow
    query = select(row.data).order_by(row.key)
    if project is not None:
        query = query.where(row.project == project)
    with engine.connect() as connection:
        return [OpenRegression(**one) for one in connection.scalars(query)]


def replace_open(engine: Engine, added: Iterable[OpenRegression], removed: Collection[str]) -> None:
    """Store regressions, in place of those with their keys, and remove those with other keys; one transaction."""
    values = [{"key": one.key, "project": one.project, "data": asdict(one)} for one in added]
    with engine.begin() as connection:
        keys = {*removed, *(str(one["key"]) for one in values)}
        connection.execute(delete(OpenRegressionRow).where(OpenRegressionRow.key.in_(keys)))
        if values:
            connection.execute(insert(OpenRegressionRow), values)
