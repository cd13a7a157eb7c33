"""A language model of torch with its linear layers rounded, compared with itself token by token.

A batch goes through the model as it is once; what leaves each block is kept, so that a change deep in the model runs
only what is behind it. Nothing is kept beyond a batch.
"""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from inc_tb.errors import MismatchError, ModelError
from inc_tb.frameworks.language import Border, Matrix, Round, Told
from inc_tb.frameworks.ops import Array, Batch
from inc_tb.frameworks.registry import describe
from inc_tb.frameworks.torch.adapter import read_inputs
from inc_tb.frameworks.torch.arguments import feeds, said
from inc_tb.frameworks.torch.opening import opened
from inc_tb.frameworks.torch.state import undisturbed

See = Callable[[str, Tensor, Tensor], None]
"""Matrix, what it reads and the gradient of what it writes: (places, inputs), (places, outputs)."""
_AT_ONCE = 1 << 24
"""Scores that are compared at once."""


class TorchLanguage:
    """The matrices in its blocks, which are the members of a list of modules: 0, 1, 2, …"""

    def __init__(self, model: Any) -> None:
        self.model = opened(model)
        self.inputs = read_inputs(self.model)
        found = _linears(self.model)
        self._modules = {matrix.name: module for matrix, module in found}
        self.matrices = [matrix for matrix, _ in found]
        if not self.matrices:
            raise ModelError(
                f"{describe(model)} has no linear layers in numbered blocks (as layers.0.mlp.down_proj) with plain "
                "weights; expected a transformer that is not quantized."
            )
        self.others = sum(p.numel() for p in self.model.parameters()) - sum(m.size for m in self.matrices)
        self.blocks = _blocks(self.model, self.matrices[0].name)

    def weight(self, name: str) -> Array:
        found: Array = self._modules[name].weight.detach().float().numpy()
        return found

    def watch(self, batches: Iterator[Batch]) -> Iterator[TorchWatched]:
        for batch in batches:
            with undisturbed(self.model):
                yield TorchWatched(self, batch)

    @contextlib.contextmanager
    def rounded(self, rounds: Mapping[str, Round]) -> Iterator[None]:
        own = {name: self._modules[name].weight.data for name in rounds}
        try:
            for name, round_ in rounds.items():
                made = torch.from_numpy(np.ascontiguousarray(round_(self.weight(name))))
                self._modules[name].weight.data = made.to(own[name].dtype)
            yield
        finally:
            for name, data in own.items():
                self._modules[name].weight.data = data

    @contextlib.contextmanager
    def hooked(self, hook: Callable[[str, Tensor, Tensor], None]) -> Iterator[None]:
        """Called with what each matrix reads and writes."""
        handles = [
            module.register_forward_hook(lambda _, given, made, name=name: hook(name, given[0], made))
            for name, module in self._modules.items()
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def scores(self, fed: Mapping[str, Tensor]) -> Tensor:
        more = {"use_cache": False} if getattr(getattr(self.model, "config", None), "use_cache", None) else {}
        made = self.model(**fed, **more)
        scores = getattr(made, "logits", made[0] if isinstance(made, tuple) else made)
        ids = fed["input_ids"]
        if not isinstance(scores, Tensor) or scores.ndim != 3 or scores.shape[:2] != ids.shape:
            raise MismatchError(
                f"{describe(self.model)} gives no scores of tokens for each place of input_ids; expected a language "
                "model with its head."
            )
        return scores


class TorchWatched:
    def __init__(self, language: TorchLanguage, batch: Batch) -> None:
        self._language = language
        self._batch = batch
        self._fed = feeds(language.model, batch)
        if "input_ids" not in self._fed or self._fed["input_ids"].ndim != 2:
            raise MismatchError(f"the data has the arrays {sorted(batch)}; expected input_ids, (sequences, tokens).")
        mask = self._fed.get("attention_mask")
        self._mask = torch.ones(self._fed["input_ids"].shape, dtype=torch.bool) if mask is None else mask != 0
        self._left: list[Any] = []
        """What leaves each block, as its forward returns it."""
        self._own = self._run(self._watched_run)

    def told(self, rounds: Mapping[str, Round]) -> Told:
        with self._language.rounded(rounds):
            scores = self._run(lambda: self._from(self._first(rounds)))
        found = [_divergence(mine, theirs) for mine, theirs in zip(self._own, scores, strict=True)]
        kl = [float(kl[mask].double().sum()) for (kl, _), mask in zip(found, self._mask, strict=True)]
        same = [int(same[mask].sum()) for (_, same), mask in zip(found, self._mask, strict=True)]
        return Told(np.array(kl), np.array(same), self._mask.sum(1).numpy())

    def borders(self, rounds: Mapping[str, Round]) -> list[Border]:
        left: list[Any] = []
        with self._language.rounded(rounds), _recorded(self._language.blocks, left):
            self._run(lambda: self._language.scores(self._fed))
        return [_border(_hidden(mine), _hidden(theirs)) for mine, theirs in zip(self._left, left, strict=True)]

    def effects(self, formats: Mapping[str, Mapping[str, Round]]) -> dict[str, dict[str, float]]:
        """As if the errors of outputs were independent, which ranks better than their sum (benchmarks)."""
        found: dict[str, dict[str, float]] = {name: {} for name in formats}

        def see(name: str, x: Tensor, gradient: Tensor) -> None:
            weight = self._language.weight(name)
            for format_, rounds in formats.items():
                if name in rounds:
                    lost = torch.from_numpy(np.asarray(rounds[name](weight) - weight, np.float32))
                    found[format_][name] = 0.5 * float(((x @ lost.T) * gradient).square().sum(dtype=torch.float64))

        self.visit(see)
        return found

    def visit(self, see: See, seed: int = 0) -> None:
        """Backwards from how likely tokens are that are drawn from the model's own scores.

        The square of an error times this gradient has the mean of twice the divergence that the error causes.
        """
        language, batch = self._language, self._batch

        def hook(name: str, x: Tensor, made: Tensor) -> None:
            flat = x.detach().reshape(-1, x.shape[-1]).float()
            made.register_hook(lambda g: see(name, flat, g.reshape(-1, g.shape[-1]).float()))

        def work() -> None:
            with torch.enable_grad(), language.hooked(hook), _frozen(language.model), _from_embedding(language.model):
                logs = language.scores(self._fed).float().log_softmax(-1)
                with torch.random.fork_rng(devices=[]):
                    torch.manual_seed(seed)
                    drawn = torch.distributions.Categorical(logits=logs.detach()).sample()
                told = logs.gather(-1, drawn[..., None])[..., 0]
                told[self._mask].sum().backward()

        said("the model", language.model, batch, work)

    def _run(self, work: Callable[[], Tensor]) -> Tensor:
        with torch.no_grad():
            return said("the model", self._language.model, self._batch, work).float()

    def _watched_run(self) -> Tensor:
        with _recorded(self._language.blocks, self._left):
            return self._language.scores(self._fed)

    def _first(self, rounds: Mapping[str, Round]) -> int:
        """The first block that is changed, where blocks follow each other."""
        if len(self._left) != len(self._language.blocks):
            return 0
        return min((m.block for m in self._language.matrices if m.name in rounds), default=0)

    def _from(self, first: int) -> Tensor:
        with contextlib.ExitStack() as stack:
            for block, left in zip(self._language.blocks[:first], self._left, strict=False):
                stack.enter_context(_answering(block, left))
            return self._language.scores(self._fed)


def _linears(model: nn.Module) -> list[tuple[Matrix, nn.Linear]]:
    places = [(name, m) for name, m in model.named_modules() if type(m) is nn.Linear and type(m.weight) is nn.Parameter]
    found = [(name, re.match(r"(.*?\.)?(\d+)\.(.+)$", name), m) for name, m in places]
    lists = Counter(place[1] for _, place, _ in found if place is not None)
    if not lists:
        return []
    (stack, _), *_ = lists.most_common(1)
    own = [(name, int(place[2]), place[3], m) for name, place, m in found if place is not None and place[1] == stack]
    ends = {(rest.rpartition(".")[2], rest) for _, _, rest, _ in own}
    is_short = len({end for end, _ in ends}) == len(ends)
    return [
        (Matrix(name, block, rest.rpartition(".")[2] if is_short else rest, *m.weight.shape), m)
        for name, block, rest, m in own
    ]


def _blocks(model: nn.Module, name: str) -> list[nn.Module]:
    place = re.match(r"(.*?\.)?\d+\.", name)
    assert place is not None
    return list(model.get_submodule((place[1] or "").removesuffix(".")).children())


def _divergence(mine: Tensor, theirs: Tensor) -> tuple[Tensor, Tensor]:
    """For each place of a sequence; whether the first choice is the same.

    From the differences of scores, which keeps small divergences apart from rounding in float32.
    """
    kl, same = [], []
    at_once = max(1, _AT_ONCE // mine.shape[-1])
    for x, y in zip(mine.split(at_once), theirs.split(at_once), strict=True):
        p, d = x.softmax(-1), y - x
        d = d - (p * d).sum(-1, keepdim=True)
        exact = torch.log1p((p * d.expm1()).sum(-1))
        if not bool(torch.isfinite(exact).all()):  # far apart: e^d is too large a number
            exact = (p * (x.log_softmax(-1) - y.log_softmax(-1))).sum(-1)
        kl.append(exact.clamp_min(0))
        same.append(x.argmax(-1) == y.argmax(-1))
    return torch.cat(kl), torch.cat(same)


def _border(mine: Tensor, theirs: Tensor) -> Border:
    noise, signal = (float(x.double().square().sum()) for x in (theirs - mine, mine))
    sequence, place, channel = map(int, np.unravel_index(int(mine.abs().argmax()), mine.shape))
    return Border(noise, signal, mine.numel(), float(mine[sequence, place, channel]), channel, sequence, place)


def _hidden(left: Any) -> Tensor:
    return (left[0] if isinstance(left, tuple) else left).float()


@contextlib.contextmanager
def _recorded(blocks: list[nn.Module], left: list[Any]) -> Iterator[None]:
    handles = [block.register_forward_hook(lambda _, __, made: left.append(made)) for block in blocks]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextlib.contextmanager
def _answering(block: nn.Module, left: Any) -> Iterator[None]:
    """A block that gives what it has given, and computes nothing."""
    block.forward = lambda *_, **__: left
    try:
        yield
    finally:
        del block.forward


@contextlib.contextmanager
def _frozen(model: nn.Module) -> Iterator[None]:
    own = [p for p in model.parameters() if p.requires_grad]
    for parameter in own:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in own:
            parameter.requires_grad_(True)


@contextlib.contextmanager
def _from_embedding(model: nn.Module) -> Iterator[None]:
    """Gradients reach back to the first embedding, and no weights."""
    first = next((m for m in model.modules() if isinstance(m, nn.Embedding)), None)
    if first is None:
        raise MismatchError(f"{describe(model)} has no embedding of tokens; expected a language model.")
    handle = first.register_forward_hook(lambda _, __, made: made.requires_grad_())
    try:
        yield
    finally:
        handle.remove()
