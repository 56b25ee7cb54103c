"""The API, `/api/v1`, described by OpenAPI; beside it `/metrics` and `/healthz`."""

from fastapi import APIRouter, Depends

from web.api.answer import refuse_unknown
from web.api.cases import router as cases
from web.api.comparison import router as comparison
from web.api.health import router as health
from web.api.results import router as results
from web.api.runs import router as runs
from web.api.submit import router as submit

router = APIRouter()
for _part in (runs, submit, results, cases, comparison):
    router.include_router(_part, prefix="/api/v1", dependencies=[Depends(refuse_unknown)])
router.include_router(health)

__all__ = ["router"]
