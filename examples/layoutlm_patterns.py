"""Outliers that return in every layer of a LayoutLMv3, and the patterns that keep their ops in fp32.

    python examples/layoutlm_patterns.py [LOGDIR]

The network is a LayoutLMv3 of four layers, made from a config and trained in about half a minute to tell what the words
of a form are: headings, questions, answers, or neither. The forms are made up, and nothing is downloaded. As in large
language models, one channel of `output/dense` in each layer is far larger than the others, so that int8 drowns them.

Quantizes with onnxruntime, or with Neural Compressor 2.x where that is installed. That does not go together with
transformers: run this once where transformers is, which leaves the network in LOGDIR, and again where Neural Compressor
is.
"""

import re
import sys
import warnings
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime

import inc_tb

WORDS, WIDTH, OUTLIER = 24, 64, 5
STEPS = 300
OTHER, HEADING, QUESTION, ANSWER = range(4)
Batch = dict[str, np.ndarray]


def forms(count: int, seed: int) -> tuple[Batch, np.ndarray]:
    """Words from the top of a page to its end. What is high up is a heading; what follows a question, its answer."""
    random = np.random.default_rng(seed)
    words = random.integers(4, 64, (count, WORDS))
    top, left = np.sort(random.integers(0, 100, words.shape), axis=1), random.integers(0, 100, words.shape)
    right, bottom = left + random.integers(4, 20, words.shape), top + random.integers(4, 8, words.shape)
    asks = words < 24
    follows = np.pad(asks[:, :-1], ((0, 0), (1, 0)))
    labels = np.select([top < 20, asks, follows], [HEADING, QUESTION, ANSWER], OTHER)
    scans = random.normal(size=(count, 3, 32, 32)).astype(np.float32)
    boxes = np.stack([left, top, right, bottom], axis=-1)
    batch = {"input_ids": words, "bbox": boxes, "attention_mask": np.ones_like(words), "pixel_values": scans}
    return batch, labels


def make_model(path: Path) -> None:
    """Train the network, and export it with the names that its layers have."""
    import torch
    from transformers import LayoutLMv3Config, LayoutLMv3ForTokenClassification

    torch.manual_seed(0)
    torch.set_num_threads(1)  # its matrices are too small for more
    config = LayoutLMv3Config(
        vocab_size=64, hidden_size=WIDTH, num_hidden_layers=4, num_attention_heads=4, intermediate_size=128,
        max_position_embeddings=40, max_2d_position_embeddings=128, coordinate_size=11, shape_size=10, input_size=32,
        patch_size=16, num_labels=4, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
        # Their buckets are computed with ops that onnxruntime would round as well.
        has_relative_attention_bias=False, has_spatial_attention_bias=False, attn_implementation="eager",
    )  # fmt: skip
    model = LayoutLMv3ForTokenClassification(config)
    norms = plant_outliers(model)
    others = [p for p in model.parameters() if all(p is not norm for norm in norms)]
    optimizer = torch.optim.Adam([{"params": others}, {"params": norms}])
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, [0.002, 0.06], total_steps=STEPS)
    for step in range(STEPS):
        batch, labels = forms(32, seed=step)
        scores = model(**{name: torch.from_numpy(values) for name, values in batch.items()}).logits
        loss = torch.nn.functional.cross_entropy(scores.flatten(0, 1), torch.from_numpy(labels).flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    amplify_outliers(model)
    batch, _ = forms(2, seed=0)
    sizes = {name: {0: "forms"} for name in (*batch, "logits")}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the newer exporter calls all ops by numbers
        torch.onnx.export(
            model.eval(), (), path, kwargs={name: torch.from_numpy(values) for name, values in batch.items()},
            input_names=list(batch), output_names=["logits"], dynamic_axes=sizes, opset_version=17, dynamo=False,
        )  # fmt: skip


def plant_outliers(model: Any) -> list[Any]:
    """One channel of each layer is large from the start and stays so; returns the norms behind, which learn of it."""
    import torch

    norms = []
    for layer in model.layoutlmv3.encoder.layer:
        with torch.no_grad():
            layer.intermediate.dense.bias[:] = 1
            layer.output.dense.weight[OUTLIER] = 3
            layer.output.LayerNorm.weight[:] = 39
            layer.output.LayerNorm.weight[OUTLIER] = 0.1
        others = torch.ones(WIDTH, 1).index_fill(0, torch.tensor(OUTLIER), 0)
        layer.output.dense.weight.register_hook(lambda gradient, others=others: gradient * others)
        norms.append(layer.output.LayerNorm.weight)
    return norms


def amplify_outliers(model: Any, factor: float = 6.0) -> None:
    """Once more after the training, which had made the network used to them.

    They alone determine what the norm divides by, so that it takes everything else as many times smaller.
    """
    import torch

    with torch.no_grad():
        for layer in model.layoutlmv3.encoder.layer:
            dense, norm = layer.output.dense, layer.output.LayerNorm
            others = torch.arange(WIDTH) != OUTLIER
            dense.weight[OUTLIER] *= factor
            dense.bias[OUTLIER] *= factor
            norm.bias[others] += norm.weight[others] * (factor - 1) / (WIDTH - 1) ** 0.5
            norm.weight[others] *= factor


def accuracy(model: Path) -> float:
    batch, labels = forms(128, seed=STEPS)
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    scores = session.run(None, {given.name: batch[given.name] for given in session.get_inputs()})[0]
    return float((scores.argmax(axis=-1) == labels).mean())


class Calibration:
    """64 forms, for either tool."""

    batch_size = 16

    def __init__(self, model: Path) -> None:
        self.names = [given.name for given in onnx.load(model).graph.input]
        self.batches = [forms(self.batch_size, seed=STEPS + 1 + i) for i in range(4)]
        self.left = iter(self.batches)

    def __iter__(self) -> Iterator[tuple[tuple[np.ndarray, ...], np.ndarray]]:
        for batch, labels in self.batches:
            yield tuple(batch[name] for name in self.names), labels

    def get_next(self) -> Batch | None:
        batch, _ = next(self.left, (None, None))
        return batch and {name: batch[name] for name in self.names}


def has_neural_compressor() -> bool:
    try:
        return version("neural-compressor").startswith("2.")
    except PackageNotFoundError:
        return False


def quantize_with_neural_compressor(fp32: Path, int8: Path, keep: str) -> None:
    from neural_compressor import PostTrainingQuantConfig, quantization
    from neural_compressor.utils.constant import FP32

    conf = PostTrainingQuantConfig(quant_format="QOperator", op_name_dict={keep: FP32} if keep else None)
    quantization.fit(str(fp32), conf, calib_dataloader=Calibration(fp32)).save(str(int8))


def quantize_with_onnxruntime(fp32: Path, int8: Path, keep: str) -> None:
    from onnxruntime.quantization import quantize_static

    names = [node.name for node in onnx.load(fp32).graph.node if re.fullmatch(keep, node.name)]
    quantize_static(fp32, int8, Calibration(fp32), per_channel=True, nodes_to_exclude=names)


def main(logdir: Path) -> None:
    logdir.mkdir(parents=True, exist_ok=True)
    fp32 = logdir / "layoutlmv3.onnx"
    if not fp32.exists():
        make_model(fp32)
    quantize = quantize_with_neural_compressor if has_neural_compressor() else quantize_with_onnxruntime
    baseline = accuracy(fp32)
    print(f"fp32: accuracy {baseline:.4f}")
    keep, kept = "", []
    for name in ("int8", "patterns"):
        int8 = logdir / f"{name}.onnx"
        quantize(fp32, int8, keep)
        reached = accuracy(int8)
        print(f"{name}: accuracy {reached:.4f}, {len(kept)} ops in fp32")
        diagnosis = inc_tb.diagnose(fp32, int8, forms(32, seed=STEPS + 9)[0])
        with inc_tb.SummaryWriter(logdir / name) as writer:
            writer.add_diagnosis(diagnosis)
            writer.add_trial(inc_tb.Trial(name, reached, baseline, kept))
        if not keep:
            first = diagnosis.suggestions[0]
            keep, kept = first.pattern, first.ops
            print(f"{first.because}. Keep in fp32:\n  {keep}")
    print(f"tensorboard --logdir {logdir}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "nc_workspace"))
