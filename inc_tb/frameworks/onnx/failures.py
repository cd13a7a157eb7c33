"""What ONNX Runtime raises, in our words. It has classes for its codes, but none for a lack of memory: only text."""

from __future__ import annotations

from inc_tb.errors import IncTbError, MismatchError, ModelError, OutOfMemoryError, first_line

_SHORTAGES = ("bad_alloc", "Failed to allocate memory", "std::bad_array_new_length")
"""Of the C++ library; of ONNX Runtime's arena (core/framework/bfc_arena.cc)."""


def cannot_run(name: str, error: Exception) -> IncTbError:
    if is_shortage(error):
        return OutOfMemoryError(_said(name, error))
    return MismatchError(
        f"{name}: ONNX Runtime cannot run this batch ({first_line(error)}). "
        "Check that the data is what the model was made for."
    )


def cannot_open(name: str, error: Exception) -> IncTbError:
    if is_shortage(error):
        return OutOfMemoryError(_said(name, error))
    return ModelError(f"{name}: ONNX Runtime cannot open it: {first_line(error)}")


def is_shortage(error: Exception) -> bool:
    return isinstance(error, MemoryError) or any(text in str(error) for text in _SHORTAGES)


def _said(name: str, error: Exception) -> str:
    return f"{name}: ONNX Runtime could not get the memory that it needs ({first_line(error)[-80:]})"
