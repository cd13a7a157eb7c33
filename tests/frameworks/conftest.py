from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """For torch's arithmetic, which is slower with several where other programs run."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def exact_products() -> Iterator[None]:
    """torch's int8 matrix products without oneDNN, whose sums saturate on CPUs without VNNI."""
    import torch

    before = torch.backends.mkldnn.enabled
    torch._C._set_mkldnn_enabled(False)
    yield
    torch._C._set_mkldnn_enabled(before)
