"""Between the processes of a distributed training."""

from __future__ import annotations

import numpy as np
import torch
from torch import distributed

from inc_tb.errors import UsageError


def gather_bytes(data: bytes) -> list[bytes]:
    """What every process has given, in the order of their ranks; all of them must call it."""
    if not distributed.is_available() or not distributed.is_initialized():
        raise UsageError(
            "distributed=True was given outside of a distributed training; expected torch.distributed to be "
            "initialized. Leave it out, or call torch.distributed.init_process_group first."
        )
    own = torch.from_numpy(np.frombuffer(data, np.uint8).copy())
    count = distributed.get_world_size()
    sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(count)]
    distributed.all_gather(sizes, torch.tensor([own.numel()]))
    longest = max(int(size) for size in sizes)
    padded = torch.zeros(longest, dtype=torch.uint8)
    padded[: own.numel()] = own
    found = [torch.zeros(longest, dtype=torch.uint8) for _ in range(count)]
    distributed.all_gather(found, padded)
    return [bytes(each[: int(size)].numpy()) for each, size in zip(found, sizes, strict=True)]
