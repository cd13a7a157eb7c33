"""Tunes a BERT for accuracy and watches whether in int8 it still decides because of the same words.

    python examples/bert_shapley.py [--logdir nc_workspace] [--tolerance 0.01] [--tiny] [--healthy]

The models and the options are those of bert_dynamic.py. A Shapley value is what one word contributes to the score of
the class: its average gain over all orders in which the words can be shown, here over a few of them. Words that are not
shown are masked out of the attention. The mean squared difference between fp32's and int8's values is an objective of
every trial, beside latency and size.
"""

import sys

import numpy as np
import torch
from bert_dynamic import Inputs, accuracy, arguments, make_task, rows
from torch import Tensor, nn

import inc_tb

SENTENCES = 16
ORDERS = 16


def masks(words: int) -> np.ndarray:
    """For each order, which words are shown after each step: ORDERS x (words + 1) x words."""
    rng = np.random.default_rng(0)
    found = np.zeros((ORDERS, words + 1, words), bool)
    for order in found:
        for step, word in enumerate(rng.permutation(words)):
            order[step + 1 :, word] = True
    return found


def shapley_values(model: nn.Module, sentences: Inputs, classes: Tensor) -> np.ndarray:
    """One value for each word of each sentence; the first token, which stands for the sentence, is always shown."""
    values = []
    for ids, mask, wanted in zip(sentences["input_ids"], sentences["attention_mask"], classes, strict=True):
        words = int(mask.sum()) - 1
        shown = masks(words)
        seen = torch.zeros(ORDERS * (words + 1), len(ids), dtype=torch.long)
        seen[:, 0] = 1
        seen[:, 1 : words + 1] = torch.from_numpy(shown.reshape(-1, words))
        with torch.no_grad():
            scores = model(ids.expand(len(seen), -1), seen)[:, wanted].double().numpy()
        gains = np.diff(scores.reshape(ORDERS, words + 1), axis=1)
        added = shown[:, 1:] & ~shown[:, :-1]  # which word each step has shown
        values.append((added * gains[:, :, None]).sum(axis=(0, 1)) / ORDERS)
    return np.concatenate(values)


def main() -> None:
    given = arguments(__doc__)
    task = make_task(is_tiny=given.tiny, is_healthy=given.healthy)
    explained, classes = rows(task.held_out, slice(SENTENCES)), task.labels[:SENTENCES]
    reasons = shapley_values(task.model, explained, classes)

    def shapley_mse(model: nn.Module) -> float:
        return float(np.square(shapley_values(model, explained, classes) - reasons).mean())

    tuned = inc_tb.tune(
        task.model, task.calibration, lambda model: accuracy(model, task), tolerance=given.tolerance,
        quantizer=inc_tb.TorchQuantizer(approach="dynamic", per_channel=False),
        objectives=["latency", "size", shapley_mse], logdir=given.logdir,
    )  # fmt: skip
    print(f"fp32: accuracy {tuned.baseline:.4f}, the words' values differ by {reasons.std():.4f}")
    for trial in tuned.trials:
        error = trial.objectives["shapley_mse"]
        kept = f"{len(trial.fallback)} layers in fp32"
        print(f"{trial.name}: accuracy {trial.accuracy:.4f}, Shapley MSE {error:.4f}, {kept}")
    print(f"tensorboard --logdir {given.logdir}")


if __name__ == "__main__":
    try:
        main()
    except inc_tb.IncTbError as error:
        sys.exit(str(error))
