"""Tokens: who may write to the service. Shown once when created; only their SHA-256 is stored."""

from __future__ import annotations

import hashlib
import re
import secrets
from dataclasses import dataclass
from datetime import UTC, datetime

from opgauge.harness.errors import NothingError, StoreError
from opgauge.harness.scope import Scope
from opgauge.harness.store.tables import TokenRow
from sqlalchemy import Engine, func, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

PREFIX = "opg_"
SECRET_BYTES = 32
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True)
class Token:
    """A token without its secret."""

    name: str
    scope: Scope
    created: datetime
    revoked: datetime | None

    def allows(self, scope: Scope) -> bool:
        """Whether it is good for `scope`; `admin` is good for everything."""
        return self.revoked is None and self.scope in {scope, Scope.ADMIN}


def create_token(engine: Engine, name: str, scope: Scope) -> str:
    """Enter a token; gives its secret, which is kept nowhere. Raises StoreError for a name that is taken or odd."""
    if not _NAME.fullmatch(name):
        msg = f"a token's name has letters, digits, dots, dashes and underscores, at most 64: not {name!r}"
        raise StoreError(msg)
    secret = PREFIX + secrets.token_urlsafe(SECRET_BYTES)
    row = TokenRow(name=name, digest=_digest(secret), scope=str(scope), created=datetime.now(UTC))
    try:
        with Session(engine) as session, session.begin():
            session.add(row)
    except IntegrityError as error:
        msg = f"a token called {name} is there already, or was: choose another name"
        raise StoreError(msg) from error
    return secret


def list_tokens(engine: Engine) -> list[Token]:
    """Every token, revoked ones too, oldest first."""
    with Session(engine) as session:
        return [_token(row) for row in session.scalars(select(TokenRow).order_by(TokenRow.id))]


def revoke_token(engine: Engine, name: str) -> None:
    """Make a token useless, at once; raises NothingError where there is none."""
    with Session(engine) as session, session.begin():
        row = session.scalar(select(TokenRow).where(TokenRow.name == name))
        if row is None:
            msg = f"no token {name}; `opgauge token list` says what there is"
            raise NothingError(msg)
        row.revoked = row.revoked or datetime.now(UTC)


def find_token(engine: Engine, secret: str) -> Token | None:
    """The token with this secret, None where there is none or it is revoked."""
    with Session(engine) as session:
        row = session.scalar(select(TokenRow).where(TokenRow.digest == _digest(secret), TokenRow.revoked.is_(None)))
        return None if row is None else _token(row)


def count_tokens(engine: Engine) -> int:
    """Tokens that are good."""
    with Session(engine) as session:
        return session.scalar(select(func.count()).select_from(TokenRow).where(TokenRow.revoked.is_(None))) or 0


def _digest(secret: str) -> str:
    """SHA-256 suffices: the secret has 256 random bits, there is nothing to guess."""
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).hexdigest()


def _token(row: TokenRow) -> Token:
    return Token(row.name, Scope(row.scope), row.created, row.revoked)
