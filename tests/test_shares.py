"""Tests that compile the same kernels are run by one worker."""

from __future__ import annotations

import pytest

from tests.shares import order_of, share_of


@pytest.mark.parametrize(
    ("nodeid", "share"),
    [
        ("tests/test_contract.py::test_kernel[p_norm_grad/optimized/cpu/float32/offset]", "kernels of p_norm"),
        ("tests/ops/p_norm/test_kernels.py::test_empty[shape0-0]", "kernels of p_norm"),
        ("tests/test_contract.py::test_kernel[conv_data_grad/optimized/cpu/float32/offset]", "kernels of residual"),
        ("tests/ops/conv_data_grad/test_conv_data_grad.py::test_a", "kernels of residual"),
        ("tests/ops/residual/test_residual.py::test_a[float32]", "kernels of residual"),
        (
            "tests/ops/core/test_tuning.py::test_every_candidate_is_right[normalization.cpu_chunks=1]",
            "kernels of residual",
        ),
        ("tests/ops/core/test_tuning.py::test_a_missing_file_is_named", "kernels of core"),
        ("tests/harness/test_cli.py::test_list", "tests/harness/test_cli.py"),
        ("tests/test_cuda_sources.py::test_a[mean-sm_90]", "tests/test_cuda_sources.py::test_a[mean-sm_90]"),
    ],
)
def test_what_compiles_the_same_is_one_share(nodeid: str, share: str) -> None:
    """Contract, meaning and launch parameters of an op go together; files do otherwise; CUDA sources go alone."""
    assert share_of(nodeid) == share


def test_long_shares_begin_with_the_contract() -> None:
    """What takes minutes comes before what takes seconds, of an op the contract first; what fills workers is last."""
    given = [
        "tests/harness/test_cli.py::test_list",
        "tests/ops/p_norm/test_kernels.py::test_empty[shape0-0]",
        "tests/test_contract.py::test_kernel[p_norm/optimized/cpu/float32/offset]",
        "tests/harness/test_cluster.py::test_a",
        "tests/test_cuda_sources.py::test_a[mean-sm_90]",
        "tests/web/test_api.py::test_a",
    ]
    assert sorted(given, key=order_of) == [given[number] for number in (2, 1, 3, 0, 5, 4)]
