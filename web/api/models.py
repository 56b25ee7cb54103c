"""How answers look: for the description of the API, and checked against it in the tests."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict


class Model(BaseModel):
    """No field but those named."""

    model_config = ConfigDict(extra="forbid")


class RunModel(Model):
    """A run. statuses: results by what became of them."""

    id: str
    started: str
    finished: str | None
    status: str
    commit: str
    project: str
    branch: str
    committed: str | None
    dirty: bool
    submitter: str
    command: str
    environment: dict[str, dict[str, str]]
    results: int
    statuses: dict[str, int]


class RunPage(Model):
    """Runs, newest first. next: the offset of the next page, null on the last."""

    items: list[RunModel]
    next: int | None


class WholeRunModel(RunModel):
    """A run, and what its devices reached."""

    ceilings: list[dict[str, Any]]


class ResultModel(Model):
    """A result without its raw samples. Times in nanoseconds; what is not known is null."""

    number: int
    run: str
    started: str
    commit: str
    op: str
    case: str
    case_id: str
    dtype: str
    shapes: dict[str, list[int]]
    params: dict[str, Any]
    tags: list[str]
    implementation: str
    backend: str
    device: str
    block: int
    status: str
    reason: str
    median_ns: float | None
    min_ns: float | None
    p25_ns: float | None
    p75_ns: float | None
    samples: int | None
    hot_ns: float | None
    timer: str | None
    peak_bytes: int | None
    max_abs_error: float | str | None
    max_rel_error: float | str | None
    worst: float | str | None
    bytes: int
    flops: int
    gbps: float | None
    ceiling_share: float | None
    bound: str | None
    contended: int | None
    series: str | None
    deterministic: bool | None


class ResultPage(Model):
    """Results, latest first. next: `before` of the next page, null on the last; a page may hold fewer than asked."""

    items: list[ResultModel]
    next: int | None


class WholeResultModel(ResultModel):
    """A result with raw samples (the first of very many), in order, and with what explains it."""

    samples_ns: list[float]
    extra: dict[str, Any]


class CaseModel(Model):
    """A case as it was written last. data: all of it."""

    id: str
    op: str
    name: str
    dtype: str
    data: dict[str, Any]


class CasePage(Model):
    """Cases in the order in which they came. next: `after` of the next page."""

    items: list[CaseModel]
    next: int | None


class OpModel(Model):
    """An op, and how many cases of it have been seen."""

    op: str
    cases: int


class OpPage(Model):
    """Ops by name."""

    items: list[OpModel]
    total: int
    next: int | None


class PointModel(Model):
    """One result of a series. fingerprint: results of the same one may be compared in time."""

    number: int
    run: str
    started: str
    commit: str
    implementation: str
    backend: str
    device: str
    fingerprint: str
    block: int
    status: str
    median_ns: float | None
    min_ns: float | None
    p25_ns: float | None
    p75_ns: float | None
    hot_ns: float | None


class PointPage(Model):
    """Points of a case, latest first."""

    items: list[PointModel]
    next: int | None


class ComparisonModel(Model):
    """A case by one implementation in two runs. ratio: time of head over time of base; interval: 99 %."""

    op: str
    case: str
    case_id: str
    implementation: str
    device: str
    verdict: str | None
    kind: str
    reason: str
    detail: str
    pairs: int
    ratio: float | None
    interval: list[float] | None
    base_ns: float | None
    head_ns: float | None


class DifferenceModel(Model):
    """An entry of the environment that differs; hard ones forbid blaming the code."""

    key: str
    base: str
    head: str
    hard: bool


class ComparisonPage(Model):
    """Two runs side by side, what is broken first, then by ratio."""

    base: str
    head: str
    differences: list[DifferenceModel]
    counts: dict[str, int]
    items: list[ComparisonModel]
    total: int
    next: int | None


class RegressionModel(Model):
    """A series that got slower, or broke, and how that stands."""

    project: str
    op: str
    case: str
    case_id: str
    implementation: str
    device: str
    fingerprint: str
    kind: str
    state: str
    detail: str
    ratio: float | None
    before_ns: float | None
    after_ns: float | None
    good_run: str
    good_commit: str
    bad_run: str
    bad_commit: str
    fixed_run: str | None


class RegressionPage(Model):
    """Regressions: open, then acknowledged, then fixed; the newest first."""

    items: list[RegressionModel]
    total: int
    next: int | None


class SubmittedModel(Model):
    """Outcome of a submission. created: false if the run was stored already."""

    id: str
    created: bool
    results: int


class PartModel(Model):
    """A part that has come."""

    number: int
    results: int
    digest: str


class PartPage(Model):
    """The parts of a run that have come, by number."""

    run: str
    items: list[PartModel]
    next: int | None


class HealthModel(Model):
    """The service answers, and so does its database."""

    status: str
    schema_version: str
