"""`ops.call`: arguments are checked before a kernel sees them, and outputs come in the caller's library."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from opgauge.ops import BackendError, DtypeError, KernelNotFoundError, ParameterError, ShapeError, call

torch = pytest.importorskip("torch")

F32 = np.float32
PLAIN = dict.fromkeys(("mean", "p_norm", "lerp", "lerp_grad"), "baseline")
"""Implementations of ops whose kernels take seconds to compile, which changes nothing of what a call does beside."""


def numbers(*shape: int, dtype: Any = F32) -> Any:
    """Small numbers that are not all alike."""
    return (np.arange(int(np.prod(shape))) % 7 - 3).reshape(shape).astype(dtype)


def test_it_computes_and_allocates() -> None:
    """One output is an array, several are a dict by name."""
    assert (call("add_n", in_0=numbers(5), in_1=numbers(5)) == 2 * numbers(5)).all()
    given = {"x": numbers(3), "y": numbers(2, 3), "dout": numbers(2, 3), "weight": 0.5}
    found = call("lerp_grad", implementation=PLAIN["lerp_grad"], **given)
    assert list(found) == ["dx", "dy"]
    assert (found["dx"] == numbers(2, 3).sum(0) / 2).all()


@pytest.mark.parametrize("op", ["add_n", "sign", "scale", "mean", "p_norm", "flatten"])
def test_torch_tensors_come_back_as_tensors(op: str) -> None:
    """Outputs of torch tensors are torch tensors, bfloat16 included."""
    x = torch.ones(4, 6, dtype=torch.bfloat16)
    given: dict[str, Any] = {"in_0": x, "in_1": x} if op == "add_n" else {"x": x}
    given |= {"scale": 1.0} if op == "scale" else {}
    found = call(op, implementation=PLAIN.get(op, "optimized"), **given)
    assert isinstance(found, torch.Tensor)
    assert found.dtype == torch.bfloat16


def test_out_is_written_in_place() -> None:
    """The caller's buffer is written and returned, of NumPy and of torch, alone or by name."""
    out = np.zeros(5, F32)
    assert call("sign", x=numbers(5), out=out) is out
    assert (out == np.sign(numbers(5))).all()
    target = torch.zeros(5)
    call("sign", x=torch.tensor(numbers(5)), out={"out": target})
    assert (target.numpy() == out).all()


def test_out_may_be_strided_or_an_input() -> None:
    """Memory that kernels cannot write to directly still ends with the result, and nothing beside it."""
    room = np.full((5, 2), 9, F32)
    call("sign", x=numbers(5), out=room[:, 0])
    assert (room[:, 0] == np.sign(numbers(5))).all()
    assert (room[:, 1] == 9).all()
    x = numbers(64)
    call("add_n", in_0=x[:-1], in_1=x[:-1].copy(), out=x[1:])
    assert (x[1:] == 2 * numbers(64)[:-1]).all()


def test_strided_and_unaligned_inputs_are_copied() -> None:
    """A transposed input and one at an odd address give what contiguous ones give."""
    x = numbers(4, 6)
    assert (call("sign", x=x.T) == np.sign(x.T)).all()
    raw = np.zeros(4 * 8 + 1, np.uint8)[1:].view(F32)
    raw[:] = numbers(8)
    assert (call("add_n", in_0=raw, in_1=raw) == 2 * raw).all()


@pytest.mark.parametrize(
    ("op", "given", "error", "words"),
    [
        ("add_n", {"in_0": numbers(40_000), "in_1": numbers(5)}, ShapeError, "does not broadcast"),
        ("add_n", {"in_0": numbers(5), "in_1": numbers(5, dtype=np.float64)}, DtypeError, "in_1 is float64"),
        ("add_n", {"in_0": numbers(5)}, ParameterError, "in_1"),
        ("add_n", {"in_0": numbers(5, dtype=np.int32), "in_1": numbers(5, dtype=np.int32)}, DtypeError, "int32"),
        ("add_n", {"in_0": numbers(5, dtype=">f4"), "in_1": numbers(5)}, DtypeError, "byte order"),
        ("add_n", {"in_0": numbers(5), "in_1": numbers(5), "in_2": numbers(5)}, ParameterError, "in_2"),
        ("add_n", {"in_0": numbers(5), "in_1": torch.ones(5)}, BackendError, "different libraries"),
        ("add_n", {"in_0": [1.0], "in_1": numbers(1)}, ParameterError, "takes an array"),
        ("sign", {"x": numbers(5).astype("U4")}, DtypeError, "dtype"),
        ("sign", {"x": numbers(5), "out": np.zeros(6, F32)}, ShapeError, "shape"),
        ("sign", {"x": numbers(5), "out": np.zeros(5)}, DtypeError, "float64"),
        ("sign", {"x": numbers(5), "out": {"y": np.zeros(5, F32)}}, ParameterError, "outputs are out"),
        ("sign", {"x": numbers(5), "out": np.broadcast_to(F32(0), (5,))}, ShapeError, "read-only"),
        ("sign", {"x": numbers(5), "implementation": "no"}, KernelNotFoundError, "no kernel"),
        ("sign", {}, ParameterError, "needs x"),
        ("mean", {"x": numbers(5), "axes": 0}, ParameterError, "did you mean 'axis'"),
        ("lerp", {"x": numbers(5), "y": numbers(4), "weight": 0.5}, ShapeError, "broadcast"),
        ("lerp_grad", {"x": numbers(5), "y": numbers(5), "weight": 0.5}, ParameterError, "dout"),
        (
            "lerp_grad",
            {"x": numbers(3), "y": numbers(3), "dout": numbers(3), "weight": 0.5, "out": numbers(3)},
            ParameterError,
            "dict of dx, dy",
        ),
    ],
)
def test_what_does_not_fit_is_refused(op: str, given: dict[str, Any], error: type[Exception], words: str) -> None:
    """Shapes, dtypes, devices, names and buffers that do not fit raise an error that names them."""
    with pytest.raises(error, match=words):
        call(op, **given)


def test_parameters_may_be_numbers_of_numpy() -> None:
    """An axis of np.int64, and a list of axes, are what ints and tuples are."""
    for axis, shape in ((np.int64(1), (3,)), ([0, 1], ())):
        assert call("mean", implementation=PLAIN["mean"], x=numbers(3, 4), axis=axis).shape == shape
    assert call("lerp", implementation=PLAIN["lerp"], x=numbers(3), y=numbers(3), weight=F32(0.5)).shape == (3,)


def test_views_share_memory() -> None:
    """flatten without a copy returns a view of the input."""
    x = numbers(3, 4)
    assert np.shares_memory(call("flatten", x=x, copy=False), x)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_tensors_on_a_gpu_stay_there(dtype: str) -> None:
    """torch tensors on CUDA are computed on torch's stream and come back as tensors there."""
    x = torch.arange(1000, device="cuda").to(getattr(torch, dtype))
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        found = call("add_n", in_0=x, in_1=x)
    stream.synchronize()
    assert found.device == x.device
    assert torch.equal(found, x + x)
    with pytest.raises(BackendError, match="different libraries or devices"):
        call("add_n", in_0=x, in_1=x.cpu())
