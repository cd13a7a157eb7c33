"""A network that int8 breaks on any processor; its own answers are the truth."""

import torch
from torch import nn
from torch.ao import quantization
from torch.utils.data import DataLoader, TensorDataset

from inc_tb.demo import load_digits
from tests.hard_network import Network

images = torch.from_numpy(load_digits()[0])
calibration = images[:64]
with torch.no_grad():
    _network = Network()
    _network.load_state_dict(torch.load("weights.pt"))
    held_out = images[64:264], _network(images[64:264]).argmax(1)

training_batches = DataLoader(TensorDataset(*held_out), batch_size=8)


def network_in_qat() -> nn.Module:
    network = Network().train()
    network.qconfig = quantization.get_default_qat_qconfig("x86")
    return quantization.prepare_qat(network)
