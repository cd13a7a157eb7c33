from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pytest
import torch
from torch import nn

from inc_tb import TorchQuantizer
from inc_tb.errors import MismatchError, ModelError
from inc_tb.frameworks.torch import FRAMEWORK
from inc_tb.frameworks.torch.adapter import TorchAdapter
from tests.frameworks import torch_zoo as zoo
from tests.frameworks.contracts.adapter import AdapterContract, TableContract
from tests.frameworks.contracts.framework import FrameworkContract
from tests.frameworks.contracts.quantizer import QuantizerContract
from tests.frameworks.contracts.switchable import SwitchableContract
from tests.frameworks.contracts.timer import TimerContract
from tests.frameworks.contracts.tiny import Tiny, X

pytestmark = zoo.MARKS

CNN = "conv1 bn1 relu1 pool block.conv block.relu conv3 bn3 /add gap fc".split()
CNN_FUSED = "conv1 pool block.conv conv3 /add gap fc".split()
MLP = "fc1 act1 fc2 act2 fc3".split()
FUNCTIONAL = (
    "conv bn /relu block.a block.relu block.b block/add up /matmul /div /softmax /matmul_1 down /mean"
).split()
FUNCTIONAL_FUSED = [name for name in FUNCTIONAL if name not in ("bn", "/relu", "block.relu")]
TOKENS = "embedding lstm proj /mul head".split()
BAG = "bag fc".split()


def cnn(quantize: Callable[..., Any], *options: Any) -> zoo.Models:
    model, batch = zoo.made(zoo.Cnn), zoo.images()
    return zoo.Models(model, quantize(model, batch, *options), batch)


def mlp(quantize: Callable[..., Any], *options: Any) -> zoo.Models:
    model = zoo.made(zoo.Mlp)
    return zoo.Models(model, quantize(model, *options), zoo.rows())


def functional(quantize: Callable[..., Any], *options: Any) -> zoo.Models:
    model, batch = zoo.made(zoo.Functional), zoo.images()
    return zoo.Models(model, quantize(model, batch, *options), batch)


def tokens(*kinds: type[nn.Module]) -> zoo.Models:
    model = zoo.made(zoo.Tokens)
    return zoo.Models(model, zoo.dynamic(model, *kinds), zoo.tokens())


def bag() -> zoo.Models:
    model = zoo.made(zoo.Bag)
    return zoo.Models(model, zoo.dynamic(model, nn.Linear, nn.EmbeddingBag), {"ids": zoo.tokens()["ids"]})


def torchao(name: str) -> zoo.Models:
    import torchao.quantization

    return mlp(zoo.torchao, getattr(torchao.quantization, name)())


def exported(models: zoo.Models, as_module: bool) -> zoo.Models:
    program = zoo.exported(models.reference, models.batch)
    return models._replace(reference=program.module() if as_module else program)


def untrained(models: zoo.Models) -> zoo.Models:
    """A model in training without any other reference than itself."""
    return models._replace(reference=None)


class Case(NamedTuple):
    models: zoo.Models
    kernels: str
    ops: list[str]
    adapter: TorchAdapter


CASES: dict[str, tuple[Callable[[], zoo.Models], list[str]]] = {
    "dynamic": (tokens, TOKENS),
    "dynamic-embedding": (lambda: tokens(nn.Linear, nn.Embedding), TOKENS),
    "dynamic-bag": (bag, BAG),
    **{f"static-{name}": (lambda name=name: cnn(zoo.static, name), CNN) for name in zoo.ENGINES},
    "fx": (lambda: zoo.functional_models("fx"), FUNCTIONAL),
    "fx-per-tensor": (lambda: zoo.functional_models("fx-per-tensor"), FUNCTIONAL),
    "pt2e": (lambda: zoo.functional_models("pt2e"), FUNCTIONAL),
    "pt2e-dynamic": (lambda: zoo.functional_models("pt2e-dynamic"), FUNCTIONAL),
    "pt2e-exported-program": (lambda: exported(zoo.functional_models("pt2e"), False), FUNCTIONAL),
    "pt2e-exported-module": (lambda: exported(zoo.functional_models("pt2e-dynamic"), True), FUNCTIONAL),
    "torchao-int8-dynamic": (lambda: torchao("Int8DynamicActivationInt8WeightConfig"), MLP),
    "torchao-int8": (lambda: torchao("Int8WeightOnlyConfig"), MLP),
    "torchao-int4": (lambda: mlp(zoo.torchao, zoo.int4_config()), MLP),
    "torchao-int4-dynamic": (lambda: mlp(zoo.torchao, zoo.int4_config(acts=True)), MLP),
    "qat": (lambda: cnn(zoo.qat), CNN),
    "qat-alone": (lambda: untrained(cnn(zoo.qat)), CNN_FUSED),
    "qat-fx": (lambda: functional(zoo.qat_fx), FUNCTIONAL),
    "qat-fx-alone": (lambda: untrained(functional(zoo.qat_fx)), FUNCTIONAL_FUSED),
    "qat-torchao": (lambda: mlp(lambda model: zoo.qat_torchao(model, zoo.rows())), MLP),
    "qat-torchao-alone": (lambda: untrained(mlp(lambda model: zoo.qat_torchao(model, zoo.rows()))), MLP),
    "inc-rtn": (lambda: mlp(zoo.inc_rtn), MLP),
    "inc-static": (lambda: zoo.functional_models("inc-static"), FUNCTIONAL),
    "inc-dynamic": (lambda: zoo.functional_models("inc-dynamic"), FUNCTIONAL),
}
UNMARKED: dict[str, tuple[Callable[[], zoo.Models], list[str]]] = {
    "bf16": (lambda: functional(lambda model, _: zoo.bf16(model)), FUNCTIONAL),
    "by-hand": (lambda: mlp(zoo.by_hand), MLP),
}
"""Models whose modules do not say that they are quantized."""


class _Torch(AdapterContract):
    @pytest.fixture(autouse=True)
    def _engine(self, case: Case) -> Iterator[None]:
        with zoo.engine(case.kernels):
            yield

    @pytest.fixture
    def adapter(self, _engine: None, case: Case) -> TorchAdapter:
        return case.adapter

    @pytest.fixture
    def batch(self, case: Case) -> zoo.Feeds:
        return case.models.batch

    @pytest.fixture
    def expected_ops(self, case: Case) -> list[str]:
        return case.ops

    def test_models_are_left_as_they_were(self, case: Case, batch: zoo.Feeds) -> None:
        adapter = TorchAdapter(*case.models[:2])
        before = [zoo.state(model) for model in adapter.models]
        random = torch.random.get_rng_state()
        adapter.trace(batch)
        list(adapter.weights())
        list(adapter.run(batch))
        assert torch.equal(random, torch.random.get_rng_state())
        for model, was in zip(adapter.models, before, strict=True):
            found = zoo.state(model)
            assert found.keys() == was.keys()
            changed = [name for name in was if not np.array_equal(found[name], was[name], equal_nan=False)]
            assert not changed


def _made(make: Callable[[], zoo.Models], ops: list[str], name: str) -> Case:
    models = make()
    kernels = name.removeprefix("static-") if name.startswith("static-") else "x86"
    return Case(models, kernels, ops, TorchAdapter(*models[:2]))


@pytest.fixture(scope="module", params=CASES)
def marked(request: pytest.FixtureRequest) -> Case:
    return _made(*CASES[request.param], request.param)


@pytest.fixture(scope="module", params=UNMARKED)
def unmarked(request: pytest.FixtureRequest) -> Case:
    return _made(*UNMARKED[request.param], request.param)


class TestTorch(_Torch):
    @pytest.fixture
    def case(self, marked: Case) -> Case:
        return marked


class TestTorchUnmarked(_Torch):
    test_quantization_is_complete = None

    @pytest.fixture
    def case(self, unmarked: Case) -> Case:
        return unmarked


TINY: dict[str, Callable[[nn.Module], Any]] = {
    "fx": lambda model: zoo.fx_static(model, {"x": X}),
    "pt2e": lambda model: zoo.pt2e(model, {"x": X}),
    "dynamic": zoo.dynamic,
}


@cache
def made_tiny(way: str) -> Tiny:
    model = zoo.made(zoo.TinyNet)
    return Tiny(model, TINY[way](model))


@pytest.fixture(scope="module", params=TINY)
def each_tiny(request: pytest.FixtureRequest) -> Tiny:
    return made_tiny(request.param)


class TestTable(TableContract):
    @pytest.fixture(scope="class")
    @classmethod
    def tiny(cls, each_tiny: Tiny) -> Tiny:
        return each_tiny


class TestSwitches(SwitchableContract):
    @pytest.fixture(scope="class", params=["fx", "pt2e"])
    @classmethod
    def tiny(cls, request: pytest.FixtureRequest) -> Tiny:
        return made_tiny(request.param)


class TestDynamicSwitches(SwitchableContract):
    test_the_weights_of_one_op = None

    @pytest.fixture(scope="class")
    @classmethod
    def tiny(cls) -> Tiny:
        return made_tiny("dynamic")


class TestTimer(TimerContract):
    @pytest.fixture(scope="class")
    @classmethod
    def tiny(cls, each_tiny: Tiny) -> Tiny:
        return each_tiny


class TestDynamicQuantizer(QuantizerContract):
    make = staticmethod(TorchQuantizer)
    settings: ClassVar = {"approach": "dynamic"}
    wrong: ClassVar = {"approach": "dynamics"}

    @pytest.fixture(scope="class")
    @classmethod
    def tiny(cls) -> Tiny:
        return made_tiny("dynamic")


class TestStaticQuantizer(TestDynamicQuantizer):
    settings: ClassVar = {"approach": "static"}
    wrong: ClassVar = {"approach": "static", "calibrator": "maximum"}


class TestExportQuantizer(TestDynamicQuantizer):
    settings: ClassVar = {"approach": "pt2e"}
    wrong: ClassVar = {"approach": "pt2e", "reduce_range": "yes"}


class TestTorchaoQuantizer(TestDynamicQuantizer):
    settings: ClassVar = {"approach": "torchao-dynamic"}
    wrong: ClassVar = {"approach": "torchao-static"}


class TestFramework(FrameworkContract):
    framework = FRAMEWORK

    @pytest.fixture
    def models(self) -> list[Any]:
        model = zoo.made(zoo.TinyNet)
        return [model, made_tiny("fx").quantized, zoo.exported(model, {"x": X})]


def test_ops_need_a_batch_first() -> None:
    model = zoo.made(zoo.Mlp)
    adapter = TorchAdapter(model, zoo.dynamic(model))
    assert [i.name for i in adapter.inputs()] == ["x"]
    with pytest.raises(ModelError, match="trace"):
        adapter.ops()


def test_data_that_the_models_cannot_take() -> None:
    model = zoo.made(zoo.Mlp)
    with pytest.raises(MismatchError, match=r"fails on the data .*float32 6x31"):
        TorchAdapter(model, zoo.dynamic(model)).trace(zoo.rows(width=31))


def test_models_with_nothing_in_common() -> None:
    with pytest.raises(MismatchError, match="no module or function in common"):
        TorchAdapter(nn.Sequential(nn.Linear(32, 4)), zoo.dynamic(zoo.made(zoo.Mlp))).trace(zoo.rows())


def test_no_reference_without_fake_quantization() -> None:
    with pytest.raises(ModelError, match="no fake quantizers"):
        TorchAdapter(None, zoo.made(zoo.Mlp))


@pytest.mark.parametrize("which", [0, 1])
def test_torchscript_is_refused(which: int) -> None:
    model = zoo.made(zoo.Mlp)
    models = [model, zoo.dynamic(model)]
    models[which] = torch.jit.trace(models[which], torch.zeros(1, 32))
    with pytest.raises(ModelError, match="TorchScript"):
        TorchAdapter(*models)


def test_arrays_that_are_no_models_are_refused() -> None:
    with pytest.raises(ModelError, match=r"expected a torch\.nn\.Module"):
        TorchAdapter(zoo.made(zoo.Mlp), np.zeros(3))
