"""The API, `/api/v1`, described by OpenAPI; beside it `/metrics` and `/healthz`."""

from fastapi import APIRouter, Depends

from opgauge.web.api.answer import refuse_unknown
from opgauge.web.api.cases import router as cases
from opgauge.web.api.comparison import router as comparison
from opgauge.web.api.health import router as health
from opgauge.web.api.results import router as results
from opgauge.web.api.runs import router as runs
from opgauge.web.api.submit import router as submit

router = APIRouter()
for _part in (runs, submit, results, cases, comparison):
    router.include_router(_part, prefix="/api/v1", dependencies=[Depends(refuse_unknown)])
router.include_router(health)

__all__ = ["router"]
