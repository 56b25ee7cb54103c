"""The pages, one file each; every one has its filters in its address."""

from fastapi import APIRouter

from web.pages import case, compare, op, overview, regressions, runs, trust

router = APIRouter(include_in_schema=False)
for _page in (overview, op, case, runs, compare, regressions, trust):
    router.include_router(_page.router)
