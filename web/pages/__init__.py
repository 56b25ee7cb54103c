"""The pages, one file each; every one has its filters in its address."""

from fastapi import APIRouter, Depends

from opgauge.web.assets import style_ids
from opgauge.web.deps import reader_of
from opgauge.web.history_figure import timeline
from opgauge.web.known_regressions import known_regressions
from opgauge.web.pages import (
    case,
    cluster,
    compare,
    coverage,
    devices,
    op,
    overview,
    regressions,
    roofline,
    runs,
    search,
    trust,
)
from opgauge.web.reader import Reader
from opgauge.web.scope import each_project
from opgauge.web.steady import known_steady
from opgauge.web.view import compile_all

router = APIRouter(include_in_schema=False, dependencies=[Depends(reader_of)])
_PAGES = (overview, op, case, devices, cluster, coverage, roofline, runs, compare, regressions, search, trust)
for _page in _PAGES:
    router.include_router(_page.router)


def warm(reader: Reader) -> None:
    """Make what several pages rest on and takes long."""
    style_ids()
    compile_all()
    for one in each_project(reader):
        one.places(())
        timeline(one)
        known_regressions(one)
        known_steady(one)
        overview.known_standings(one)
        trust.known_noise(one)
