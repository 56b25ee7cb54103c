"""A function that ends the process that calls it. Members of a cluster import this module."""

from __future__ import annotations

import os


def end_process(*_: object, **__: object) -> None:
    """End this process at once, whatever is given."""
    os._exit(1)
