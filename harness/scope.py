"""What a token of the service allows."""

from __future__ import annotations

from enum import StrEnum


class Scope(StrEnum):
    """Sending runs, acknowledging regressions, or everything."""

    SUBMIT = "submit"
    ACK = "ack"
    ADMIN = "admin"
