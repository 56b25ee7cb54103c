"""Elements that one vector access of a kernel moves."""

from __future__ import annotations

from typing import Any


def widest_vector(itemsize: int, *lengths_and_arrays: Any) -> int:
    """Maximum elements per access: 16 bytes, or fewer if a length or an address does not allow that.

    Takes lengths in elements (int) and arrays; None is skipped.
    """
    width = 16 // itemsize
    for item in lengths_and_arrays:
        if item is None:
            continue
        number = item if isinstance(item, int) else item.data.ptr // itemsize
        while number % width:
            width //= 2
    return width


def whole_vector(array: Any, *lengths_and_arrays: Any) -> int:
    """Elements of `array` in 16 bytes if `widest_vector` allows that for it and the others; else 1."""
    itemsize = array.dtype.itemsize
    width: int = 16 // itemsize
    return width if widest_vector(itemsize, array, *lengths_and_arrays) == width else 1
