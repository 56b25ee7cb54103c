"""normalization on CUDA: every plan leads to a declared kernel whose threads hold the whole slice."""

from __future__ import annotations

import pytest

from opgauge.ops.normalization import channels_first, channels_first_plan
from opgauge.ops.normalization.call import View
from opgauge.ops.normalization.channels_first_plan import Block

CTYPES = {2: "__half", 4: "float", 8: "double"}
IMAGES = (1, 2, 5, 16, 32, 784, 6272)
CHANNELS = (1, 2, 5, 8, 64, 256, 2048)
POSTS = (2, 3, 7, 15, 49, 196, 1089, 3136)


@pytest.fixture(params=[1, 132])
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A small and a large GPU with 227 KiB of shared memory a block."""
    monkeypatch.setattr(channels_first_plan, "multiprocessors", lambda: request.param)
    monkeypatch.setattr(channels_first_plan, "shared_memory_bytes", lambda: 227 * 1024)


def whole(view: View, width: int, group: int, how: Block) -> bool:
    """Whether vectors are whole, and classes of channels stay where the kernel takes them to be."""
    per_image = group * view.post // width
    if how.layout == "GROUPED":
        return how.active % per_image == 0
    return how.active == how.threads


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("itemsize", CTYPES)
@pytest.mark.parametrize("wide", [False, True])
def test_plans_hold_their_slices(itemsize: int, wide: bool) -> None:
    """Threads times vectors cover the slice of every shape planned in one pass, by a compiled kernel."""
    width = 16 // itemsize if wide else 1
    for view in (View(images, channels, post) for images in IMAGES for channels in CHANNELS for post in POSTS):
        found = channels_first_plan.plan_once(view, width, itemsize)
        if found is None:
            continue
        group, cluster = found
        how = channels_first_plan.block_of(view, width, itemsize, group, cluster)
        assert how is not None
        vectors = how.vectors(cluster)
        name = f"normalize_once<{CTYPES[itemsize]}, {width}, {vectors}, {cluster}, {how.layout}>"
        assert name in channels_first.SOURCE.expressions, view
        images = -(-view.images // cluster)
        assert group * view.post % width == view.channels % group == how.threads % 32 == 0, view
        assert how.rounds <= vectors, view
        assert how.active * how.rounds >= images * group * view.post // width, view
        assert whole(view, width, group, how), view
        assert how.layout == "SINGLE" or how.threads >= 32 * group, view


@pytest.mark.usefixtures("device")
def test_layouts_of_the_sites(monkeypatch: pytest.MonkeyPatch) -> None:
    """A channel a block where vectors are whole, groups where they are not, slices in shared memory for long images."""
    monkeypatch.setattr(channels_first_plan, "architecture", lambda: 90)
    monkeypatch.setattr(channels_first_plan, "multiprocessors", lambda: 132)
    for shape, layout in {(32, 512, 784): "SINGLE", (32, 2048, 49): "GROUPED"}.items():
        view = View(*shape)
        group, cluster = channels_first_plan.plan_once(view, 4, 4) or (0, 0)
        how = channels_first_plan.block_of(view, 4, 4, group, cluster)
        assert how is not None
        assert how.layout == layout
    long = View(16, 1536, 33 * 33)
    assert channels_first_plan.plan_once(long, 4, 4) is None
    assert channels_first_plan.plan_groups(long, 4, 4) == (4, 8)
