from typing import Any

import torch
from lightning import LightningModule
from torch import nn


class Module(LightningModule):
    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, images: torch.Tensor) -> Any:
        return self.net(images)

    def training_step(self, batch: Any, index: int) -> Any:
        return nn.functional.cross_entropy(self(batch[0]), batch[1])

    def validation_step(self, batch: Any, index: int) -> None:
        self.log("loss", self.training_step(batch, index))

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.01)
