"""The tables. Generic column types only: the URL alone decides which database it is.

Raw samples stand in a table of their own, one row per measurement with all its numbers packed as
little-endian doubles: a row per sample would be forty times as many rows for nothing that a query
asks, and in the result's own row they would be read with every list.
"""

from __future__ import annotations

from datetime import UTC, date, datetime

from sqlalchemy import (
    JSON,
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
)
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from sqlalchemy.types import BigInteger, Integer, TypeDecorator

KEY = BigInteger().with_variant(Integer, "sqlite")
NAMES = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "fk": "fk_%(table_name)s_%(column_0_N_name)s",
    "pk": "pk_%(table_name)s",
}


class UTCDateTime(TypeDecorator[datetime]):
    """A moment, in UTC. SQLite keeps no zone, and PostgreSQL gives that of its server."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """To the database; what has no zone is in UTC."""
        return self.process_result_value(value, dialect)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:  # noqa: ARG002
        """From the database."""
        if value is None:
            return None
        return value.astimezone(UTC) if value.tzinfo else value.replace(tzinfo=UTC)


class Table(DeclarativeBase):
    """The root of the tables."""

    metadata = MetaData(naming_convention=NAMES)


class RunRow(Table):
    """A run: where, when, from which commit, and what became of it."""

    __tablename__ = "run"

    id: Mapped[int] = mapped_column(KEY, primary_key=True)
    uuid: Mapped[str] = mapped_column(String(36), unique=True)
    started: Mapped[datetime] = mapped_column(UTCDateTime(), index=True)
    finished: Mapped[datetime | None] = mapped_column(UTCDateTime())
    status: Mapped[str] = mapped_column(String(16))
    commit: Mapped[str] = mapped_column(String(64), index=True)
    command: Mapped[str] = mapped_column(Text)
    environment: Mapped[dict[str, object]] = mapped_column(JSON)


class CeilingRow(Table):
    """What a device reached in a run."""

    __tablename__ = "ceiling"
    __table_args__ = (UniqueConstraint("run_id", "device"),)

    id: Mapped[int] = mapped_column(KEY, primary_key=True)
    run_id: Mapped[int] = mapped_column(ForeignKey("run.id", ondelete="CASCADE"))
    device: Mapped[str] = mapped_column(String(16))
    data: Mapped[dict[str, object]] = mapped_column(JSON)


class CaseRow(Table):
    """A case as it was written: its identity, and the rest (name, tags, published figures) in `data`."""

    __tablename__ = "case"
    __table_args__ = (UniqueConstraint("digest"),)

    id: Mapped[int] = mapped_column(KEY, primary_key=True)
    case_id: Mapped[str] = mapped_column(String(16), index=True)
    digest: Mapped[str] = mapped_column(String(64))
    op: Mapped[str] = mapped_column(String(64), index=True)
    dtype: Mapped[str] = mapped_column(String(16))
    data: Mapped[dict[str, object]] = mapped_column(JSON)


class ResultRow(Table):
    """What became of one trial. `data` holds what lists do not sort or filter by.

    low_ns, high_ns: quartiles of the samples, which `data` has too: histories want those of hundreds of results,
    and taking them out of the JSON would be most of the work.
    """

    __tablename__ = "result"
    __table_args__ = (
        UniqueConstraint("run_id", "case_key", "implementation", "device", "block"),
        Index(None, "case_key", "device", "run_id", "implementation"),
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
    """The raw samples of one result, in nanoseconds (clock: MHz), as little-endian doubles in order."""

    __tablename__ = "sample"

    result_id: Mapped[int] = mapped_column(ForeignKey("result.id", ondelete="CASCADE"), primary_key=True)
    samples_ns: Mapped[bytes] = mapped_column(LargeBinary)
    cpu_ns: Mapped[bytes] = mapped_column(LargeBinary)
    clock_mhz: Mapped[bytes] = mapped_column(LargeBinary)


class AcknowledgementRow(Table):
    """A regression that somebody answers for: who, why, until when, expected new level over the old one."""

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


class SelfTestRow(Table):
    """What a self-test of the gate found (`kind`: aa, inject, agree), as plain JSON in `data`."""

    __tablename__ = "self_test"
    __table_args__ = (Index(None, "kind", "created"),)

    id: Mapped[int] = mapped_column(KEY, primary_key=True)
    created: Mapped[datetime] = mapped_column(UTCDateTime())
    kind: Mapped[str] = mapped_column(String(16))
    commit: Mapped[str] = mapped_column(String(64))
    device: Mapped[str] = mapped_column(String(16))
    data: Mapped[dict[str, object]] = mapped_column(JSON)


class TokenRow(Table):
    """A token that allows writing, by the SHA-256 of it: the token itself is nowhere."""

    __tablename__ = "token"
    __table_args__ = (UniqueConstraint("name"), UniqueConstraint("digest"))

    id: Mapped[int] = mapped_column(KEY, primary_key=True)
    name: Mapped[str] = mapped_column(String(64))
    digest: Mapped[str] = mapped_column(String(64))
    scope: Mapped[str] = mapped_column(String(16))
    created: Mapped[datetime] = mapped_column(UTCDateTime())
    revoked: Mapped[datetime | None] = mapped_column(UTCDateTime())


class PartRow(Table):
    """A part of a run on its way in, as it was sent (JSON, compressed): no query sees it before the run is whole."""

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
