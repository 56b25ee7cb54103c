"""Scopes of the service's tokens."""

from __future__ import annotations

from enum import StrEnum


class Scope(StrEnum):
    """Permission of a token: to read, submit runs, acknowledge regressions, or everything. All may read."""

    READ = "read"
    SUBMIT = "submit"
    ACK = "ack"
    ADMIN = "admin"
