"""Bodies of requests, never larger than allowed: neither as they come nor unpacked."""

from __future__ import annotations

import asyncio
import zlib

from fastapi import HTTPException, Request
from fastapi.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect

SENT_BYTES = 16 << 20
UNPACKED_BYTES = 24 << 20
PATIENCE_S = 120.0
_STEP = 1 << 20


async def read_body(request: Request) -> bytes:
    """The body, unpacked where it is gzip.

    400 for one that breaks off or is no gzip, 408 for one that takes too long, 413 for one that is too
    large, 415 for another encoding.
    """
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in {"identity", "gzip"}:
        raise HTTPException(415, "Content-Encoding should be gzip, or left out")
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and len(declared) < 20 and int(declared) > SENT_BYTES:
        raise _too_large(SENT_BYTES)
    try:
        async with asyncio.timeout(PATIENCE_S):
            body = await _receive(request)
    except TimeoutError as error:
        raise HTTPException(408, "the body took too long to come") from error
    except ClientDisconnect as error:
        raise HTTPException(400, "the body broke off") from error
    return await run_in_threadpool(unpack, body) if encoding == "gzip" else body


async def _receive(request: Request) -> bytes:
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > SENT_BYTES:
            raise _too_large(SENT_BYTES)
    return bytes(body)


def unpack(body: bytes, limit: int = UNPACKED_BYTES) -> bytes:
    """Gunzip no more than `limit` bytes, whatever the body claims to hold."""
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
    return HTTPException(413, f"the body is larger than {limit >> 20} MiB; send the run in parts")
