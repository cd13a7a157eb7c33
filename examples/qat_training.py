"""Watches quantization-aware training: what each op's quantization costs, from the first steps to the last.

    python examples/qat_training.py [LOGDIR]

A plain PyTorch loop with its own torch.utils.tensorboard writer. Every 20 steps the model is compared with itself
without fake quantization, on a few held-out images. In TensorBoard, Time Series has the error of each op over the
steps beside the loss, and the slider of the Quantization tab goes through the diagnoses. Trainers of transformers,
Lightning and Keras take a callback that does the same (inc_tb.integrations).
"""

import sys
import warnings
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.ao import quantization
from torch.utils.tensorboard import SummaryWriter

import inc_tb
from inc_tb.demo import load_digits

for message in ("torch.ao.quantization is deprecated", ".*reduce_range", "torch.quantize_per_tensor, "):
    warnings.filterwarnings("ignore", message)  # torch's own, in favor of torchao, whose QAT works too
torch.set_num_threads(1)  # threads that wait for each other cost more than so small a network
STEPS, EVERY, BATCH, SAMPLES = 200, 20, 64, 32


class DigitsNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.quant, self.dequant = quantization.QuantStub(), quantization.DeQuantStub()
        self.conv1, self.norm1, self.relu1 = nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU()
        self.conv2, self.norm2, self.relu2 = nn.Conv2d(8, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU()
        self.pool = nn.MaxPool2d(2)
        self.scores = nn.Linear(16 * 4 * 4, 10)

    def forward(self, image: Tensor) -> Tensor:
        x = self.relu1(self.norm1(self.conv1(self.quant(image))))
        x = self.pool(self.relu2(self.norm2(self.conv2(x))))
        return self.dequant(self.scores(x.flatten(1)))


def in_training(model: nn.Module) -> nn.Module:
    """With fake quantization: int8 weights per channel, activations of 7 bits."""
    model.train()
    model.qconfig = quantization.get_default_qat_qconfig("x86")
    fused = quantization.fuse_modules_qat(model, [["conv1", "norm1", "relu1"], ["conv2", "norm2", "relu2"]])
    return quantization.prepare_qat(fused)


def accuracy(model: nn.Module, images: Tensor, labels: Tensor) -> float:
    model.eval()
    with torch.no_grad():
        return float((model(images).argmax(1) == labels).float().mean())


def main(logdir: Path) -> None:
    torch.manual_seed(0)
    images, labels, held_out = map(torch.tensor, load_digits())
    test, train = (images[held_out], labels[held_out]), (images[~held_out], labels[~held_out])
    model = in_training(DigitsNet())
    optimizer = torch.optim.Adam(model.parameters(), lr=0.002)
    with SummaryWriter(str(logdir / "qat")) as writer:
        for step in range(1, STEPS + 1):
            rows = torch.randint(0, len(train[0]), (BATCH,))
            loss = nn.functional.cross_entropy(model(train[0][rows]), train[1][rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            writer.add_scalar("loss", loss, step)
            if step % EVERY == 0:
                diagnosis = inc_tb.diagnose(None, model, test[0][:SAMPLES])
                inc_tb.log_diagnosis(writer, diagnosis, step)
                worst = diagnosis.worst(1)[0]
                name, noise = diagnosis.ops["name"][worst], diagnosis.ops["added_sqnr_db"][worst]
                print(f"step {step}: loss {loss:.3f}, worst op {name}, {noise:.1f} dB")
    in_training_now = accuracy(model, *test)
    print(f"accuracy {in_training_now:.4f}, as int8 {accuracy(quantization.convert(model.eval()), *test):.4f}")
    print(f"tensorboard --logdir {logdir}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "nc_workspace"))
