"""How pytest-xdist hands out tests: what belongs together goes to one worker."""

from __future__ import annotations

from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

from tests.shares import share_of


class Shares(LoadScopeScheduling):  # type: ignore[misc]  # xdist is untyped
    """Hands out whole shares in the order of their first tests."""

    def __init__(self, config: pytest.Config, log: Any) -> None:
        super().__init__(config, log)
        config.option.loadscopereorder = False  # it would begin with the shares of most tests

    def _split_scope(self, nodeid: str) -> str:
        return share_of(nodeid)
