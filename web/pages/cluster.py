"""Cluster: members, what they run, and the commands that wait for them."""

from __future__ import annotations

from threading import Lock
from time import monotonic

from fastapi import APIRouter, HTTPException, Request, Response

from opgauge.harness.cluster.status import ClusterState, look
from opgauge.harness.errors import SettingsError
from opgauge.web.view import render

FRESH_S = 5.0
"""Age up to which a state is shown again: a scheduler is asked no more often, however many people look."""
router = APIRouter()


class Watched:
    """The latest state of one cluster, for all requests of this process."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._lock = Lock()
        self._taken = -FRESH_S
        self._state: ClusterState | None = None
        self._reason = ""

    def now(self) -> tuple[ClusterState | None, str]:
        """The state, at most `FRESH_S` old, or None and the reason why there is none."""
        with self._lock:
            if monotonic() - self._taken >= FRESH_S:
                try:
                    self._state, self._reason = look(self._address), ""
                except SettingsError as error:
                    self._state, self._reason = None, str(error)
                self._taken = monotonic()
            return self._state, self._reason


@router.get("/cluster")
def cluster(request: Request) -> Response:
    """The cluster of `OPGAUGE_SCHEDULER`; 404 where none is set."""
    address = request.app.state.settings.scheduler
    if not address:
        raise HTTPException(404, "No cluster is set: OPGAUGE_SCHEDULER names the scheduler of one.")
    watched: Watched | None = getattr(request.app.state, "cluster", None)
    if watched is None:
        request.app.state.cluster = watched = Watched(address)
    state, reason = watched.now()
    body = render("cluster.html", request, address=address, state=state, reason=reason)
    return Response(body, media_type="text/html", headers={"Cache-Control": "no-store"})
