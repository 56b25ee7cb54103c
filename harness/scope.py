"""Scopes of the service's tokens."""

from __future__ import annotations

from enum import StrEnum


class Scope(StrEnum):
    """Permission of a token: read, submit runs, acknowledge regressions, or everything. Every token may read."""

    READ = "read"
    SUBMIT = "submit"
    ACK = "ack"
    ADMIN = "admin"
