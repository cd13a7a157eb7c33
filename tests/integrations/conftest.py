from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.register_assert_rewrite("tests.integrations.tiny")


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Threads that wait for each other make tiny models many times slower on a busy machine."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
