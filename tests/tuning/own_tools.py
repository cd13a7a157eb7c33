"""A user's file: a quantizer that quantizes nothing, which is quick; strategies; and some of both that are wrong."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import onnx
from onnx import helper

import inc_tb

CONVOLUTIONS = ("/conv1/Conv", "/conv2/Conv")


class Copies(inc_tb.Quantizer):
    """Writes into a copy what it was told to keep; which other settings there are, it leaves to inc_tb.Quantizer."""

    def __init__(self):
        self.settings = {"way": "copy"}

    def prepare(self, model, folder):
        return Path(shutil.copy(model, folder / "prepared.onnx"))

    def quantize(self, model, target, calibration, settings, keep):
        proto = onnx.load(model)
        helper.set_model_props(proto, {"kept": json.dumps(list(keep))})
        onnx.save(proto, target)

    def recipe(self, settings, keep):
        return f"copies(keep={list(keep)!r})"


def make_copies():
    return Copies()


def accuracy(path):
    """Of fp32 1; of a copy with both convolutions kept as well."""
    kept = {entry.key: entry.value for entry in onnx.load(path).metadata_props}.get("kept")
    return 1.0 if kept is None else 0.5 + 0.25 * len(json.loads(kept))


def one_by_one(bench):
    """The convolutions, one after the other, as long as it loses anything."""
    kept = ()
    trial = yield inc_tb.Attempt(bench.quantizer.settings)
    for op in CONVOLUTIONS:
        if bench.loss(trial) > 0:
            kept += (op,)
            trial = yield inc_tb.Attempt(bench.quantizer.settings, kept, note=f"and {op}")


class OneByOne:
    """The same as an object."""

    def __call__(self, bench):
        return one_by_one(bench)


def backwards(bench, order=CONVOLUTIONS):
    for op in reversed(order):
        yield inc_tb.Attempt(bench.quantizer.settings, (op,))


# What is wrong with others


def no_generator(bench):
    return [inc_tb.Attempt(bench.quantizer.settings)]


def yields_text(bench):
    yield "/conv1/Conv"


def raises(bench):
    raise ValueError("at once\nin two lines")


def raises_later(bench):
    yield inc_tb.Attempt(bench.quantizer.settings)
    raise ValueError("later")


def no_quantizer():
    return 3


def no_quantizer_either():
    raise ValueError("no tool")
