"""Forms that pages send: small, urlencoded, and nothing else."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import parse_qsl

from fastapi import Depends, HTTPException, Request

MOST_BYTES = 16 << 10
MOST_FIELDS = 20
KIND = "application/x-www-form-urlencoded"
"""Largest form in bytes and fields, and its media type."""


async def form_of(request: Request) -> dict[str, str]:
    """The fields of a form, the last of a name counting; raises HTTPException for any other body, or a large one."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != KIND:
        raise HTTPException(415, f"send the form as {KIND}")
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > MOST_BYTES:
            raise HTTPException(413, f"at most {MOST_BYTES:,} bytes are read")
    try:
        pairs = parse_qsl(body.decode("utf-8"), keep_blank_values=True, max_num_fields=MOST_FIELDS, errors="strict")
    except ValueError as error:
        raise HTTPException(422, "the form cannot be read") from error
    return {name: value.replace("\x00", "") for name, value in pairs}


Form = Annotated[dict[str, str], Depends(form_of)]
