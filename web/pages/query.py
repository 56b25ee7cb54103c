"""Query parameters of addresses, with limits."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query

Text = Annotated[str, Query(max_length=200)]
Word = Annotated[str, Query(max_length=64, pattern=r"^[A-Za-z0-9_.:\-]*$")]
Number = Annotated[int, Query(ge=1, le=1_000_000)]
