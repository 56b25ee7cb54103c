"""What routes are given: the store of their app, and answers kept until the data changes.

These are coroutines, though they wait for nothing: FastAPI sends plain functions to a thread, each a change of
threads that a busy service waits for.
"""

from __future__ import annotations

from typing import Annotated, cast

from fastapi import Depends, Request
from opgauge.harness.settings import Settings
from opgauge.harness.store import Store
from opgauge.web.cache import Cache
from opgauge.web.reader import Reader


async def store_of(request: Request) -> Store:
    """The app's store; one engine, whose pool serves all threads."""
    return cast("Store", request.app.state.store)


async def settings_of(request: Request) -> Settings:
    """The app's settings."""
    return cast("Settings", request.app.state.settings)


async def cache_of(request: Request) -> Cache:
    """The app's answers, dropped when the data changes."""
    return cast("Cache", request.app.state.cache)


async def reader_of(request: Request) -> Reader:
    """What pages read through."""
    return cast("Reader", request.app.state.reader)


StoreOf = Annotated[Store, Depends(store_of)]
SettingsOf = Annotated[Settings, Depends(settings_of)]
CacheOf = Annotated[Cache, Depends(cache_of)]
ReaderOf = Annotated[Reader, Depends(reader_of)]
