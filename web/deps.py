"""Dependencies of routes: store, settings, cache and reader of their app.

They are coroutines although they never await, as FastAPI runs plain functions in a thread, which costs time.
"""

from __future__ import annotations

from typing import Annotated, cast

from fastapi import Depends, HTTPException, Request
from starlette.concurrency import run_in_threadpool

from opgauge.harness.settings import Settings
from opgauge.harness.store import Store
from opgauge.web.cache import Cache
from opgauge.web.reader import Reader
from opgauge.web.scope import leave_project, reader_for


async def store_of(request: Request) -> Store:
    """Store of the app; the pool of its engine serves all threads."""
    return cast("Store", request.app.state.store)


async def settings_of(request: Request) -> Settings:
    """Settings of the app."""
    return cast("Settings", request.app.state.settings)


async def cache_of(request: Request) -> Cache:
    """Cached answers of the app, dropped when the data change."""
    return cast("Cache", request.app.state.cache)


async def reader_of(request: Request) -> Reader:
    """Reader of the project that the address selects; 404 if there is none: its pages would say that nothing is wrong.

    Raises HTTPException.
    """
    reader = reader_for(request)
    if reader.project is not None and not await run_in_threadpool(reader.is_there):
        leave_project(request)
        raise HTTPException(404, f"there is no project {reader.project or 'without a name'}")
    return reader


StoreOf = Annotated[Store, Depends(store_of)]
SettingsOf = Annotated[Settings, Depends(settings_of)]
CacheOf = Annotated[Cache, Depends(cache_of)]
ReaderOf = Annotated[Reader, Depends(reader_of)]
