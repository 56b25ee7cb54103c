"""Bodies of requests, never larger than allowed: neither as they come, nor unpacked, nor all together."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import ClassVar

from fastapi import HTTPException, Request
from starlette.requests import ClientDisconnect

SENT_BYTES = 16 << 20
UNPACKED_BYTES = 24 << 20
HELD_BYTES = 192 << 20
"""Largest body as sent, largest after unpacking, and memory of all bodies that are in flight."""
PATIENCE_S = 120.0
"""Seconds that a body may take to arrive."""
_STEP = 1 << 20


@dataclass
class Body:
    """A body as it came. held: bytes that all bodies take now."""

    held: ClassVar[int] = 0
    sent: bytes
    is_gzip: bool

    def read(self) -> bytes:
        """The body, unpacked where it is gzip: call it in a thread. 400 for no gzip, 413 for too large a one."""
        return unpack(self.sent) if self.is_gzip else self.sent


@asynccontextmanager
async def body_of(request: Request, limit: int | None = None) -> AsyncIterator[Body]:
    """The body of a request, for as long as it is needed.

    400 for one that breaks off, 408 for one that takes too long, 413 for one that is too large, 415 for
    another encoding than gzip, 503 where other bodies leave no room.
    """
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in {"identity", "gzip"}:
        raise HTTPException(415, "Content-Encoding should be gzip, or left out")
    most = SENT_BYTES if limit is None else limit
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and len(declared) < 20 and int(declared) > most:
        raise _too_large(most)
    received = bytearray()
    try:
        await _receive(request, received, most)
        yield Body(bytes(received), encoding == "gzip")
    finally:
        Body.held -= len(received)


async def _receive(request: Request, received: bytearray, most: int) -> None:
    try:
        async with asyncio.timeout(PATIENCE_S):
            async for piece in request.stream():
                received += piece
                Body.held += len(piece)
                if len(received) > most:
                    raise _too_large(most)
                if Body.held > HELD_BYTES:
                    raise HTTPException(503, "too many runs are being sent: try again later", {"Retry-After": "5"})
    except TimeoutError as error:
        raise HTTPException(408, "the body took too long to come") from error
    except ClientDisconnect as error:
        raise HTTPException(400, "the body broke off") from error


def unpack(body: bytes, limit: int | None = None) -> bytes:
    """Gunzip no more than `limit` bytes, whatever the body claims to hold."""
    limit = UNPACKED_BYTES if limit is None else limit
    found = bytearray()
    rest = body
    try:
        while rest:
            stream = zlib.decompressobj(wbits=31)
            while not stream.eof:
                piece = stream.decompress(rest, _STEP)
                rest = stream.unconsumed_tail
                found += piece
                if len(found) > limit:
                    raise _too_large(limit)
                if not piece and not rest and not stream.eof:
                    raise HTTPException(400, "the gzip body breaks off")
            rest = stream.unused_data
    except zlib.error as error:
        raise HTTPException(400, "the body is no gzip") from error
    return bytes(found)


def _too_large(limit: int) -> HTTPException:
    size = f"{limit >> 20} MiB; send the run in parts" if limit >> 20 else f"{limit} bytes"
    return HTTPException(413, f"the body is larger than {size}")
