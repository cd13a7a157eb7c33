from __future__ import annotations

import numpy as np

from tests.mxnet import zoo


def prepare() -> None:
    """A small network; its own answers are the truth."""
    network = zoo.with_outliers(zoo.made("residual"))
    images = zoo.images(128)
    np.savez("samples.npz", data=images[:32])
    np.savez("held_out.npz", data=images[32:], label=zoo.results(network, images[32:]).argmax(1))
    for name, model in (("net", network), ("int8", zoo.quantized(network))):
        zoo.results(model, images[:1])  # before that, export() writes no weights
        model.export(name)
