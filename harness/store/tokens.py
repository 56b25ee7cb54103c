"""Access tokens of the service: displayed once at creation, stored only as their SHA-256."""

from __future__ import annotations

import hashlib
import re
import secrets
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import Engine, bindparam, func, or_, select, update
from sqlalchemy.exc import IntegrityError, OperationalError
from sqlalchemy.orm import Session

from opgauge.harness.errors import NothingError, StoreError
from opgauge.harness.scope import Scope
from opgauge.harness.store.tables import TokenRow

PREFIX = "opg_"
"""First characters of a secret."""
SECRET_BYTES = 32
"""Random bytes of a secret."""
USE_STEP = timedelta(minutes=1)
"""Accuracy of a token's last use: one write a minute instead of one a request."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_FIND = select(TokenRow.__table__).where(TokenRow.digest == bindparam("digest"))
"""A token by its digest, without the ORM: every request with a token runs it, good or bad."""


@dataclass(frozen=True)
class Token:
    """A token without its secret. project: the only project it is valid for, None for all."""

    name: str
    scope: Scope
    created: datetime
    revoked: datetime | None
    project: str | None = None
    expires: datetime | None = None
    last_used: datetime | None = None

    @property
    def is_valid(self) -> bool:
        """Whether it is neither revoked nor expired."""
        return self.revoked is None and (self.expires is None or self.expires > datetime.now(UTC))

    def allows(self, scope: Scope) -> bool:
        """Whether it permits `scope`; `admin` permits everything, and every token permits reading."""
        return self.is_valid and (scope is Scope.READ or self.scope in {scope, Scope.ADMIN})

    def covers(self, project: str) -> bool:
        """Whether it is valid for a project."""
        return self.project is None or self.project == project


def create_token(
    engine: Engine, name: str, scope: Scope, *, project: str | None = None, expires: datetime | None = None
) -> str:
    """Create a token; returns its secret, which is not stored. Raises StoreError for a bad or used name."""
    if not _NAME.fullmatch(name):
        msg = f"a token's name has letters, digits, dots, dashes and underscores, at most 64: not {name!r}"
        raise StoreError(msg)
    secret = PREFIX + secrets.token_urlsafe(SECRET_BYTES)
    row = TokenRow(
        name=name,
        digest=_digest(secret),
        scope=str(scope),
        created=datetime.now(UTC),
        project=project,
        expires=expires,
    )
    try:
        with Session(engine) as session, session.begin():
            session.add(row)
    except IntegrityError as error:
        msg = f"a token called {name} exists or existed: choose another name"
        raise StoreError(msg) from error
    return secret


def list_tokens(engine: Engine) -> list[Token]:
    """All tokens, including revoked ones, oldest first."""
    with Session(engine) as session:
        return [_token(row) for row in session.scalars(select(TokenRow).order_by(TokenRow.id))]


def revoke_token(engine: Engine, name: str) -> None:
    """Invalidate a token at once; raises NothingError if there is none."""
    with Session(engine) as session, session.begin():
        row = session.scalar(select(TokenRow).where(TokenRow.name == name))
        if row is None:
            msg = f"no token {name}; `opgauge token list` shows all"
            raise NothingError(msg)
        row.revoked = row.revoked or datetime.now(UTC)


def find_token(engine: Engine, secret: str) -> Token | None:
    """The valid token with this secret; None without one, or if it is revoked or expired."""
    with engine.connect() as connection:
        row = connection.execute(_FIND, {"digest": _digest(secret)}).first()
    found = None if row is None else _token(row)
    return found if found is not None and found.is_valid else None


def note_use(engine: Engine, token: Token) -> None:
    """Record that a token was used, at most once in `USE_STEP`; a busy database may skip it."""
    now = datetime.now(UTC)
    if token.last_used is not None and token.last_used > now - USE_STEP:
        return
    try:
        with engine.begin() as connection:
            connection.execute(update(TokenRow).where(TokenRow.name == token.name).values(last_used=now))
    except OperationalError:
        return


def count_tokens(engine: Engine) -> int:
    """Number of valid tokens."""
    row = TokenRow
    valid = row.revoked.is_(None) & or_(row.expires.is_(None), row.expires > datetime.now(UTC))
    with Session(engine) as session:
        return session.scalar(select(func.count()).select_from(row).where(valid)) or 0


def _digest(secret: str) -> str:
    """SHA-256 without a salt: the secret has 256 random bits, which cannot be guessed."""
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).hexdigest()


def _token(row: Any) -> Token:
    return Token(row.name, Scope(row.scope), row.created, row.revoked, row.project, row.expires, row.last_used)
