"""Keras models with the TensorFlow backend cannot be read yet; tests/integrations/test_keras.py runs this."""

from __future__ import annotations

from pathlib import Path

import keras
import numpy as np
import pytest

import inc_tb
from inc_tb.integrations.keras import DiagnosisCallback


def test_it_is_said_when_training_begins(tmp_path: Path) -> None:
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
    model.compile(optimizer="sgd", loss="mse")
    x = np.zeros((8, 4), np.float32)
    callback = DiagnosisCallback(every=1, quantize=lambda m: m.quantize("int8"), data=x, log_dir=tmp_path)
    with pytest.raises(inc_tb.IncTbError, match=r"cannot compare a keras.src.models.sequential.Sequential") as told:
        model.fit(x, np.zeros((8, 3)), verbose=0, callbacks=[callback])
    assert len(str(told.value).splitlines()) == 1
    assert list(tmp_path.iterdir()) == []
