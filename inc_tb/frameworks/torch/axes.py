"""Where the channels of results and weights are."""

from __future__ import annotations

from inc_tb.frameworks.channels import channel_axes
from inc_tb.frameworks.ops import Quantization
from inc_tb.frameworks.torch.kinds import CHANNELS_FIRST, CHANNELS_LAST
from inc_tb.frameworks.torch.steps import Step, Trace


def axes_of(trace: Trace) -> dict[int, int]:
    """By the index of a step; what is not known keeps the place of its source."""
    steps = trace.steps
    alike = {
        step.index: [s for s in step.sources if len(steps[s].shape) == len(step.shape) > 1] for step in steps
    }  # fmt: skip

    def place(index: int, before: int) -> int:
        step = steps[index]
        kinds = {step.kind, *(base.__name__ for base in type(step.module).__mro__)}
        if kinds & CHANNELS_FIRST:
            return 1
        if kinds & CHANNELS_LAST or not alike[index]:
            return -1
        return _kept(step.shape, steps[alike[index][0]].shape, before)

    return channel_axes(alike, place)


def _kept(shape: tuple[int, ...], before: tuple[int, ...], axis: int) -> int:
    """Where the channels are after values were perhaps rearranged: where there are as many of them.

    Or where they were, if nothing but one length is another one, such as that of channels that were put together.
    """
    if sum(a != b for a, b in zip(shape, before, strict=True)) <= 1:
        return axis
    channels = before[axis]
    return next((a for a in (axis, -1, 1) if shape[a] == channels), -1)


def weight_axis(step: Step, quantization: Quantization | None) -> int:
    if "Embedding" in step.kind or step.kind == "Conv1D":  # GPT-2's, whose weights are inputs x outputs
        return 1  # a channel for each of its words would be too many to look at
    return quantization.axis if quantization is not None and quantization.axis is not None else 0
