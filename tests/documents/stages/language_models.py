from __future__ import annotations

from pathlib import Path

from gguf import GGMLQuantizationType

from tests import language_models
from tests.documents.stages import copy_code


def prepare() -> None:
    model = language_models.make_model()
    language_models.save_folder(model, Path("fp32_model"))
    language_models.save_gguf(model, Path("int4.gguf"), GGMLQuantizationType.Q4_0)
    Path("text.txt").write_text(language_models.TEXT * 6)
    copy_code("language_models")
