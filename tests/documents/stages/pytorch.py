from __future__ import annotations

import torch

from tests.documents.stages import copy_code
from tests.hard_network import Network


def prepare() -> None:
    torch.manual_seed(0)
    torch.save(Network().state_dict(), "weights.pt")
    copy_code("pytorch")
