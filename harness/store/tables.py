"""Tables of the store, with generic column types only: the URL alone selects the database.

Raw samples have a table of their own, one row per measurement, packed as little-endian doubles. One row per sample
would multiply the rows by forty, and samples in the result's row would be read with every list.
"""

from __future__ import annotations

from datetime import UTC, date, datetime

from sqlalchemy import (
    JSON,
    Boolean,
    Date,
    DateTime,
    Dialect,
    Float,
    ForeignKey,
    Index,
    LargeBinary,
    MetaData,
    String,
    Text,
    UniqueConstraint,
    false,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from sqlalchemy.types import BigInteger, Integer, TypeDecorator

KEY = BigInteger().with_variant(Integer, "sqlite")
"""Type of keys."""
NAMES = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "fk": "fk_%(table_name)s_%(column_0_N_name)s",
    "pk": "pk_%(table_name)s",
}
"""Names of indexes and constraints."""


class UTCDateTime(TypeDecorator[datetime]):
    """A moment in UTC: SQLite stores no zone, and PostgreSQL returns its server's."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """The value for the database; a value without a zone counts as UTC."""
        return self.process_result_value(value, dialect)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:  # noqa: ARG002
        """The value from the database, in UTC."""
        if value is None:
            return None
        return value.astimezone(UTC) if value.tzinfo else value.replace(tzinfo=UTC)


class Table(DeclarativeBase):
    """Base class of the tables."""

    metadata = MetaData(naming_convention=NAMES)


class RunRow(Table):
    """A run: its place, time, commit and outcome.

    project, branch, committed, dirty, opgauge: copies of the environment's entries, for filters and order.
    submitter: name of the token that sent the run. digest: hash of the submitted content, which tells a repetition
    from another run with the same id. seen: last sign of life; a run that is `running` long after it is lost.
    """

    __tablename__ = "run"
    __table_args__ = (Index(None, "project", "branch"),)

    id: Mapped[int] = mapped_column(KEY, primary_key=True)
    uuid: Mapped[str] = mapped_column(String(36), unique=True)
    started: Mapped[datetime] = mapped_column(UTCDateTime(), index=True)
    finished: Mapped[datetime | None] = mapped_column(UTCDateTime())
    status: Mapped[str] = mapped_column(String(16))
    commit: Mapped[str] = mapped_column(String(64), index=True)
    command: Mapped[str] = mapped_column(Text)
    environment: Mapped[dict[str, object]] = mapped_column(JSON)
    project: Mapped[str] = mapped_column(String(64), server_default="")
    branch: Mapped[str] = mapped_column(String(128), server_default="")
    committed: Mapped[datetime | None] = mapped_column(UTCDateTime())
    dirty: Mapped[bool] = mapped_column(Boolean, server_default=false())
    opgauge: Mapped[str] = mapped_column(String(32), server_default="")
    submitter: Mapped[str] = mapped_column(String(64), server_default="")
    digest: Mapped[str | None] = mapped_column(String(64))
    seen: Mapped[datetime | None] = mapped_column(UTCDateTime())


class DeletionRow(Table):
    """A run that was deleted, or replaced by its continuation; without a name, one whose raw samples were dropped.

    Readers that cache rows by number forget them: SQLite reuses numbers of deleted rows.
    """

    __tablename__ = "deletion"

    id: Mapped[int] = mapped_column(KEY, primary_key=True)
    created: Mapped[datetime] = mapped_column(UTCDateTime())
    run: Mapped[str] = mapped_column(String(36))


class ProjectRow(Table):
    """Settings of a project; a project without a row has the defaults.

    default_branch: branch whose runs are the history; empty for `main`, `master` or the most frequent one. forge:
    address of a commit with `{sha}` in it. samples_days: age at which `opgauge db prune` drops raw samples.
    """

    __tablename__ = "project"

    name: Mapped[str] = mapped_column(String(64), primary_key=True)
    default_branch: Mapped[str] = mapped_column(String(128), server_default="")
    forge: Mapped[str] = mapped_column(Text, server_default="")
    samples_days: Mapped[int | None] = mapped_column(Integer)


class CommitRow(Table):
    """A commit as git describes it; `parents` are the SHAs, for the order of history."""

    __tablename__ = "commit_info"
    __table_args__ = (UniqueConstraint("project", "sha"),)

    id: Mapped[int] = mapped_column(KEY, primary_key=True)
    project: Mapped[str] = mapped_column(String(64))
    sha: Mapped[str] = mapped_column(String(64))
    parents: Mapped[list[str]] = mapped_column(JSON)
    committed: Mapped[datetime] = mapped_column(UTCDateTime())
    author: Mapped[str] = mapped_column(String(128))
    subject: Mapped[str] = mapped_column(String(256))


class CeilingRow(Table):
    """Achieved peaks of a device, measured in a run."""

    __tablename__ = "ceiling"
    __table_args__ = (UniqueConstraint("run_id", "device"),)

    id: Mapped[int] = mapped_column(KEY, primary_key=True)
    run_id: Mapped[int] = mapped_column(ForeignKey("run.id", ondelete="CASCADE"))
    device: Mapped[str] = mapped_column(String(16))
    data: Mapped[dict[str, object]] = mapped_column(JSON)


class CaseRow(Table):
    """A case as a run recorded it: its identity, and name, tags and published figures in `data`."""

    __tablename__ = "case"
    __table_args__ = (UniqueConstraint("digest"),)

    id: Mapped[int] = mapped_column(KEY, primary_key=True)
    case_id: Mapped[str] = mapped_column(String(16), index=True)
    digest: Mapped[str] = mapped_column(String(64))
    op: Mapped[str] = mapped_column(String(64), index=True)
    dtype: Mapped[str] = mapped_column(String(16))
    data: Mapped[dict[str, object]] = mapped_column(JSON)


class ResultRow(Table):
    """Result of one trial; `data` has the fields by which no list sorts or filters.

    low_ns, high_ns: quartiles of the samples. `data` has them too, but a history reads hundreds of them, and
    extracting them from JSON would dominate its time.
    """

    __tablename__ = "result"
    __table_args__ = (
        UniqueConstraint("run_id", "case_key", "implementation", "device", "block"),
        # covers the query of a history of times: the table's rows, which are wide, are not read
        Index("ix_result_history", "case_key", "device", "run_id", "implementation", "block", "status", "median_ns"),
        Index(None, "run_id", "status"),
    )

    id: Mapped[int] = mapped_column(KEY, primary_key=True)
    run_id: Mapped[int] = mapped_column(ForeignKey("run.id", ondelete="CASCADE"))
    case_key: Mapped[int] = mapped_column(ForeignKey("case.id"))
    implementation: Mapped[str] = mapped_column(String(64))
    backend: Mapped[str] = mapped_column(String(8))
    device: Mapped[str] = mapped_column(String(16))
    block: Mapped[int] = mapped_column(Integer)
    status: Mapped[str] = mapped_column(String(16))
    reason: Mapped[str] = mapped_column(Text)
    median_ns: Mapped[float | None] = mapped_column(Float(53))
    low_ns: Mapped[float | None] = mapped_column(Float(53))
    high_ns: Mapped[float | None] = mapped_column(Float(53))
    bytes: Mapped[int] = mapped_column(BigInteger)
    flops: Mapped[int] = mapped_column(BigInteger)
    data: Mapped[dict[str, object]] = mapped_column(JSON)


class SampleRow(Table):
    """Raw samples of one result in order, as little-endian doubles: nanoseconds, the clock in MHz."""

    __tablename__ = "sample"

    result_id: Mapped[int] = mapped_column(ForeignKey("result.id", ondelete="CASCADE"), primary_key=True)
    samples_ns: Mapped[bytes] = mapped_column(LargeBinary)
    cpu_ns: Mapped[bytes] = mapped_column(LargeBinary)
    clock_mhz: Mapped[bytes] = mapped_column(LargeBinary)


class AcknowledgementRow(Table):
    """An acknowledged regression: owner, reason, last day, expected ratio of the new level to the old one.

    recorded_by: name of the token. withdrawn, withdrawn_by: time and token of the withdrawal.
    """

    __tablename__ = "acknowledgement"

    id: Mapped[int] = mapped_column(KEY, primary_key=True)
    created: Mapped[datetime] = mapped_column(UTCDateTime())
    case_id: Mapped[str] = mapped_column(String(16), index=True)
    implementation: Mapped[str] = mapped_column(String(64))
    device: Mapped[str] = mapped_column(String(16))
    verdict: Mapped[str] = mapped_column(String(16))
    owner: Mapped[str] = mapped_column(Text)
    reason: Mapped[str] = mapped_column(Text)
    until: Mapped[date] = mapped_column(Date)
    expected_ratio: Mapped[float | None] = mapped_column(Float(53))
    project: Mapped[str] = mapped_column(String(64), server_default="")
    recorded_by: Mapped[str] = mapped_column(String(64), server_default="")
    withdrawn: Mapped[datetime | None] = mapped_column(UTCDateTime())
    withdrawn_by: Mapped[str] = mapped_column(String(64), server_default="")
    regression: Mapped[str] = mapped_column(String(16), server_default="")


class RegressionKeyRow(Table):
    """Key of a regression at one of the beginnings that runs have given it; first: the key that it has since."""

    __tablename__ = "regression_key"

    key: Mapped[str] = mapped_column(String(16), primary_key=True)
    first: Mapped[str] = mapped_column(String(16))


class OpenRegressionRow(Table):
    """A regression that was open last, as plain JSON in `data`."""

    __tablename__ = "open_regression"

    key: Mapped[str] = mapped_column(String(16), primary_key=True)
    project: Mapped[str] = mapped_column(String(64))
    data: Mapped[dict[str, object]] = mapped_column(JSON)


class SelfTestRow(Table):
    """Findings of a self-test of the gate (`kind`: aa, inject, agree), as plain JSON in `data`."""

    __tablename__ = "self_test"
    __table_args__ = (Index(None, "kind", "created"),)

    id: Mapped[int] = mapped_column(KEY, primary_key=True)
    created: Mapped[datetime] = mapped_column(UTCDateTime())
    kind: Mapped[str] = mapped_column(String(16))
    commit: Mapped[str] = mapped_column(String(64))
    device: Mapped[str] = mapped_column(String(16))
    data: Mapped[dict[str, object]] = mapped_column(JSON)


class TokenRow(Table):
    """An access token, stored as its SHA-256 only.

    project: the only project it is valid for; None for all. last_used: accurate to a minute.
    """

    __tablename__ = "token"
    __table_args__ = (UniqueConstraint("name"), UniqueConstraint("digest"))

    id: Mapped[int] = mapped_column(KEY, primary_key=True)
    name: Mapped[str] = mapped_column(String(64))
    digest: Mapped[str] = mapped_column(String(64))
    scope: Mapped[str] = mapped_column(String(16))
    created: Mapped[datetime] = mapped_column(UTCDateTime())
    revoked: Mapped[datetime | None] = mapped_column(UTCDateTime())
    project: Mapped[str | None] = mapped_column(String(64))
    expires: Mapped[datetime | None] = mapped_column(UTCDateTime())
    last_used: Mapped[datetime | None] = mapped_column(UTCDateTime())


class AuditRow(Table):
    """An entry of the audit log: actor, action, time and address."""

    __tablename__ = "audit"

    id: Mapped[int] = mapped_column(KEY, primary_key=True)
    created: Mapped[datetime] = mapped_column(UTCDateTime(), index=True)
    actor: Mapped[str] = mapped_column(String(64))
    action: Mapped[str] = mapped_column(String(32))
    subject: Mapped[str] = mapped_column(String(256))
    detail: Mapped[str] = mapped_column(Text)
    address: Mapped[str] = mapped_column(String(64))
    request: Mapped[str] = mapped_column(String(32))


class WebhookRow(Table):
    """An address that is notified of events of a project; `secret` signs the messages.

    form: json or slack. events: names of events, separated by commas.
    """

    __tablename__ = "webhook"
    __table_args__ = (UniqueConstraint("name"),)

    id: Mapped[int] = mapped_column(KEY, primary_key=True)
    name: Mapped[str] = mapped_column(String(64))
    project: Mapped[str] = mapped_column(String(64))
    url: Mapped[str] = mapped_column(Text)
    form: Mapped[str] = mapped_column(String(16))
    events: Mapped[str] = mapped_column(String(128))
    secret: Mapped[str] = mapped_column(String(64))
    created: Mapped[datetime] = mapped_column(UTCDateTime())


class DeliveryRow(Table):
    """A message to a webhook, one per event. due: time of the next attempt. state: waiting, sent or failed."""

    __tablename__ = "delivery"
    __table_args__ = (UniqueConstraint("webhook_id", "event"), Index(None, "state", "due"))

    id: Mapped[int] = mapped_column(KEY, primary_key=True)
    webhook_id: Mapped[int] = mapped_column(ForeignKey("webhook.id", ondelete="CASCADE"))
    event: Mapped[str] = mapped_column(String(128))
    payload: Mapped[dict[str, object]] = mapped_column(JSON)
    created: Mapped[datetime] = mapped_column(UTCDateTime())
    due: Mapped[datetime] = mapped_column(UTCDateTime())
    tries: Mapped[int] = mapped_column(Integer)
    state: Mapped[str] = mapped_column(String(16))
    detail: Mapped[str] = mapped_column(Text)


class PartRow(Table):
    """A part of a run that is being submitted, as compressed JSON; no query reads it before the run is complete."""

    __tablename__ = "part"
    __table_args__ = (UniqueConstraint("run", "number"),)

    id: Mapped[int] = mapped_column(KEY, primary_key=True)
    run: Mapped[str] = mapped_column(String(36))
    number: Mapped[int] = mapped_column(Integer)
    owner: Mapped[str] = mapped_column(String(64))
    received: Mapped[datetime] = mapped_column(UTCDateTime(), index=True)
    results: Mapped[int] = mapped_column(Integer)
    size: Mapped[int] = mapped_column(BigInteger)
    digest: Mapped[str] = mapped_column(String(64))
    body: Mapped[bytes] = mapped_column(LargeBinary)
