"""The sensitivity of every op at once, from one forward and one backward pass a batch.

A small error d in the result y of an op moves the output's distribution by a Kullback-Leibler divergence of about
half of d' F d, where F is the Fisher information of y. With a label drawn from the reference's own output, the square
of d' grad log p(label) has just that mean; so no labels are needed, and one backward pass serves all ops.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from inc_tb.frameworks.ops import Batch
from inc_tb.frameworks.torch.adapter import TorchAdapter
from inc_tb.frameworks.torch.values import outputs_of


def gradient_scores(adapter: TorchAdapter, batch: Batch, seed: int = 0) -> dict[str, npt.NDArray[np.float64]]:
    """For each op and sample, half of the squared effect of the op's own error on the output, in nats."""
    adapter.trace(batch)
    errors: dict[str, Tensor] = {}
    made: dict[str, Tensor] = {}
    compared = adapter.side_by_side(batch, with_grad=True)
    for match, mine, _, alone in compared:
        if mine.requires_grad:
            made[match.step.name] = mine
            errors[match.step.name] = alone.detach() - mine.detach().float()
    outputs = [t for t in outputs_of(compared.result) if t.requires_grad]
    if not outputs or not made:
        return {}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        objective = sum(_log_likelihood(output) for output in outputs)
    names = list(made)
    gradients = torch.autograd.grad(objective, [made[n] for n in names], allow_unused=True)
    rows = next((len(array) for array in batch.values() if np.ndim(array)), 1)
    found = {}
    for name, gradient in zip(names, gradients, strict=True):
        if gradient is not None:
            effect = (gradient.float() * errors[name]).double()
            per_sample = effect.reshape(rows, -1).sum(1) if len(effect) == rows else effect.sum().reshape(1)
            found[name] = 0.5 * per_sample.square().numpy()
    return found


def _log_likelihood(output: Tensor) -> Tensor:
    """Of labels drawn from it; with a random sign for each place, so that places do not add up."""
    axis = 1 if output.ndim > 3 else output.ndim - 1
    signs = torch.randint(0, 2, [n for i, n in enumerate(output.shape) if i != axis]).mul(2).sub(1)
    if output.ndim > 1 and output.shape[axis] > 1:
        scores = output.float().movedim(axis, -1)
        is_distribution = bool((scores >= 0).all()) and bool(torch.allclose(scores.sum(-1), torch.ones(()), atol=1e-3))
        logs = scores.clamp_min(1e-12).log() if is_distribution else scores.log_softmax(-1)
        labels = torch.distributions.Categorical(logits=logs.detach()).sample()
        return (logs.gather(-1, labels[..., None])[..., 0] * signs).sum()
    # A number, not classes: as the mean of a normal distribution with the variance of the outputs.
    scale = output.detach().float().std().clamp_min(1e-12) if output.numel() > 1 else output.detach().abs() + 1e-12
    return (output.float() / scale * torch.randn_like(output.float())).sum()
