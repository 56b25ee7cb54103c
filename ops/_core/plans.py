"""Plans of launches: which kernel was chosen for a call, and why.

Host code announces a plan when it binds a kernel; `recording` collects the descriptions, which runs store and `opgauge
show --why` prints.
"""

from __future__ import annotations

from contextlib import AbstractContextManager

from opgauge.ops._core.listening import listening

_LISTENERS: list[list[str]] = []


def announce(plan: object) -> None:
    """Tell those who listen how `plan` describes itself: kernel, grid, block and reason."""
    for heard in _LISTENERS:
        heard.append(str(plan))


def recording() -> AbstractContextManager[list[str]]:
    """Descriptions of the plans that are announced in this context, in order."""
    return listening(_LISTENERS, [])
