"""BERT, GPT-2, ViT and Llama of transformers, small and untrained, after PyTorch's own ways of quantization.

What torch.export takes: BERT and ViT as they are; GPT-2 and Llama only without a cache (use_cache=False), since a cache
object in the outputs is no type that it knows. GPT-2's layers are transformers' Conv1D and not nn.Linear:
quantize_dynamic, torchao's quantize_ and X86InductorQuantizer all leave them in fp32, so that only its lm_head is
quantized.
"""

from __future__ import annotations

import copy
import re
import signal
from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import inc_tb
from inc_tb.frameworks.ops import Pair
from inc_tb.frameworks.torch.adapter import TorchAdapter
from inc_tb.measure.diagnosis import Diagnosis

pytest.importorskip("transformers")
pytest.importorskip("torchao")
pytestmark = [
    pytest.mark.usefixtures("one_thread", "exact_products"),
    pytest.mark.filterwarnings("ignore:torch.ao.quantization is deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*quantized tensor creation functions:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*reduce_range:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec.` is deprecated:FutureWarning"),
]
ATTENTION = ("sdpa", "eager")
LAYERS = 3
SIZE = 32


@pytest.fixture(autouse=True)
def deadline() -> Iterator[None]:
    """A hang becomes an error."""

    def expired(*_: object) -> None:
        raise TimeoutError("the models wait for each other")

    before = signal.signal(signal.SIGALRM, expired)
    signal.setitimer(signal.ITIMER_REAL, 60)
    torch.manual_seed(0)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


class Net(NamedTuple):
    model: Any
    batch: dict[str, Tensor]


def lively(model: Any) -> Any:
    """Initial weights are so small that every softmax is flat."""
    with torch.no_grad():
        for p in model.parameters():
            if p.ndim > 1:
                p.mul_(4)
    return model.eval()


def tokens() -> dict[str, Tensor]:
    mask = torch.ones(4, 10, dtype=torch.long)
    mask[0, 7:] = 0
    mask[2, 4:] = 0
    return {"input_ids": torch.randint(0, 100, (4, 10)), "attention_mask": mask}


def bert(attention: str) -> Net:
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(
        vocab_size=100, hidden_size=SIZE, num_hidden_layers=LAYERS, num_attention_heads=4, intermediate_size=64,
        max_position_embeddings=32, num_labels=3, attn_implementation=attention,
    )  # fmt: skip
    return Net(lively(BertForSequenceClassification(config)), tokens())


def gpt2(attention: str) -> Net:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=100, n_embd=SIZE, n_layer=LAYERS, n_head=4, n_positions=32, bos_token_id=0, eos_token_id=0,
        loss_type="ForCausalLMLoss", attn_implementation=attention,
    )  # fmt: skip
    return Net(lively(GPT2LMHeadModel(config)), tokens())


def llama(attention: str) -> Net:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=100, hidden_size=SIZE, num_hidden_layers=LAYERS, num_attention_heads=4, num_key_value_heads=2,
        intermediate_size=64, bos_token_id=0, eos_token_id=0, attn_implementation=attention,
    )  # fmt: skip
    return Net(lively(LlamaForCausalLM(config)), tokens())


def vit(attention: str) -> Net:
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        image_size=16, patch_size=4, hidden_size=SIZE, num_hidden_layers=LAYERS, num_attention_heads=4,
        intermediate_size=64, num_labels=3, attn_implementation=attention,
    )  # fmt: skip
    return Net(lively(ViTForImageClassification(config)), {"pixel_values": torch.randn(4, 3, 16, 16)})


NETS: dict[str, Callable[[str], Net]] = {"bert": bert, "gpt2": gpt2, "llama": llama, "vit": vit}


def dynamic(net: Net) -> nn.Module:
    return torch.ao.quantization.quantize_dynamic(copy.deepcopy(net.model), {nn.Linear}, dtype=torch.qint8)


def torchao(net: Net, *, weights_only: bool = False) -> nn.Module:
    from torchao import quantization

    made = copy.deepcopy(net.model)
    kind = quantization.Int8WeightOnlyConfig if weights_only else quantization.Int8DynamicActivationInt8WeightConfig
    quantization.quantize_(made, kind())
    return made


def pt2e(net: Net) -> nn.Module:
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e
    from torchao.quantization.pt2e.quantizer import x86_inductor_quantizer as x86

    model = copy.deepcopy(net.model)
    quantizer = x86.X86InductorQuantizer().set_global(x86.get_default_x86_inductor_quantization_config())
    prepared = prepare_pt2e(torch.export.export(model, (), net.batch).module(), quantizer)
    prepared(**net.batch)
    return convert_pt2e(prepared)


WAYS: dict[str, Callable[[Net], nn.Module]] = {
    "dynamic": dynamic,
    "torchao": torchao,
    "torchao-weights": partial(torchao, weights_only=True),
    "pt2e": pt2e,
}


class Case(NamedTuple):
    way: str
    net: Net
    quantized: nn.Module
    diagnosis: Diagnosis
    pairs: dict[tuple[str, str], Pair]


@cache
def case_of(name: str, attention: str, way: str) -> Case:
    torch.manual_seed(0)
    net = NETS[name](attention)
    net.model.config.use_cache = way != "pt2e"
    quantized = WAYS[way](net)
    diagnosis = inc_tb.diagnose(net.model, quantized, net.batch)
    adapter = TorchAdapter(net.model, quantized)
    pairs = {(p.op, p.role): p for p in adapter.run({key: value.numpy() for key, value in net.batch.items()})}
    return Case(way, net, quantized, diagnosis, pairs)


@pytest.fixture(
    params=[f"{n}-{a}-{w}" for n in NETS for a in ATTENTION for w in WAYS if a == "sdpa" or w in ("dynamic", "pt2e")]
)
def case(request: pytest.FixtureRequest) -> Case:
    return case_of(*request.param.split("-", 2))


def rows_of(diagnosis: Diagnosis) -> dict[str, dict[str, Any]]:
    return {r["name"]: r for r in diagnosis.ops.rows()}


def captured(model: nn.Module, **inputs: Any) -> dict[str, tuple[tuple[Any, ...], Any]]:
    """What every module gets and returns, by plain hooks."""
    found: dict[str, tuple[tuple[Any, ...], Any]] = {}

    def keep(path: str, _: nn.Module, given: tuple[Any, ...], value: Any) -> None:
        found[path] = tuple(map(_kept, given)), _kept(value)

    handles = [module.register_forward_hook(partial(keep, path)) for path, module in model.named_modules()]
    with torch.no_grad():
        model(**inputs)
    for handle in handles:
        handle.remove()
    return found


def _kept(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, Tensor) else value


def linears(model: nn.Module) -> dict[str, nn.Linear]:
    return {path: module for path, module in model.named_modules() if type(module) is nn.Linear}


# --- names, rows, numbers ---


def test_ops_are_named_by_the_paths_of_modules(case: Case) -> None:
    paths = {path for path, _ in case.net.model.named_modules()}
    for name in case.diagnosis.ops["name"]:
        path, slash, function = name.partition("/")
        assert path in paths, name
        assert bool(function) == bool(slash), name


def test_every_linear_layer_has_numbers(case: Case) -> None:
    rows, layers = rows_of(case.diagnosis), linears(case.net.model)
    assert layers
    for name, layer in layers.items():
        row = rows[name]
        assert row["type"] == "Linear"
        assert row["weight_dtype"] == "int8"
        assert row["params"] == layer.weight.numel()
        assert row["w_max"] == pytest.approx(float(layer.weight.detach().max()), rel=1e-6)
        assert 25 < row["w_sqnr_db"] < 60, name
        assert 20 < row["added_sqnr_db"] < 60, name
        assert 5 < row["total_sqnr_db"] < 60, name
        assert row["a_max"] is not None


def test_every_op_has_a_row_with_numbers(case: Case) -> None:
    """All ops are there after quantization, too, with the same modules around them."""
    assert case.diagnosis.missing == {}


def test_healthy_models_get_no_suggestions(case: Case) -> None:
    assert [s.because for s in case.diagnosis.suggestions] == []
    assert "bad" not in case.diagnosis.ops["verdict"]


def test_attention_is_made_of_ops(case: Case) -> None:
    model = case.net.model
    rows = rows_of(case.diagnosis)
    attentions = [
        path
        for path, module in model.named_modules()
        if type(module).__name__ in ("BertSelfAttention", "GPT2Attention", "LlamaAttention", "ViTAttention")
    ]
    assert len(attentions) == LAYERS
    is_eager = model.config._attn_implementation == "eager"
    wanted = ["matmul", "softmax", "matmul_1"] if is_eager else ["scaled_dot_product_attention"]
    for path in attentions:
        for function in wanted:
            row = rows[f"{path}/{function}"]
            assert row["type"] == function.removesuffix("_1")
            assert row["a_max"] is not None, f"{path}/{function}"
            assert row["block"] == path
        if is_eager:
            assert 0 <= rows[f"{path}/softmax"]["a_min"] <= rows[f"{path}/softmax"]["a_max"] <= 1 + 1e-6


def test_graph_follows_the_data(case: Case) -> None:
    reads = {node.name: set(node.inputs) for node in case.diagnosis.graph}
    for path, _ in case.net.model.named_modules():
        if path.endswith(("intermediate.intermediate_act_fn", "mlp.activation_fn")):  # BERT, ViT
            before = path.replace("intermediate_act_fn", "dense").replace("activation_fn", "fc1")
            behind = path.replace("intermediate.intermediate_act_fn", "output.dense").replace("activation_fn", "fc2")
            assert reads[path] == {before}
            assert reads[behind] == {path}


def test_channels_are_features(case: Case) -> None:
    checked = 0
    for path, module in case.net.model.named_modules():
        features = {
            "Linear": lambda m: m.out_features, "LayerNorm": lambda m: m.normalized_shape[0],
            "LlamaRMSNorm": lambda m: len(m.weight), "Conv1D": lambda m: m.nf, "Embedding": lambda m: m.embedding_dim,
            "GELUActivation": lambda _: 64, "Conv2d": lambda m: m.out_channels,
        }.get(type(module).__name__)  # fmt: skip
        pair = case.pairs.get((path, "output"))
        if features is None or pair is None or pair.channel_axis is None:
            continue
        checked += 1
        axis = pair.channel_axis % pair.reference.ndim
        assert axis == (1 if isinstance(module, nn.Conv2d) else pair.reference.ndim - 1), path
        assert pair.reference.shape[axis] == features(module), path
        found = [c for c in case.diagnosis.channels if c.op == path and c.role == "output"]
        assert [len(c.max) for c in found] == [features(module)], path
    assert checked > 4 * LAYERS


# --- values ---


def test_reference_values_are_those_of_plain_hooks(case: Case) -> None:
    checked = 0
    for path, (_, value) in captured(case.net.model, **case.net.batch).items():
        if (path, "output") in case.pairs and isinstance(value, Tensor):
            found = case.pairs[path, "output"].reference
            np.testing.assert_allclose(found, value.numpy(), rtol=1e-5, atol=1e-5, err_msg=path)
            checked += 1
    assert checked > 6 * LAYERS


def test_quantized_values_are_those_of_plain_hooks(case: Case) -> None:
    """Of modules that still exist; an exported graph has only its results."""
    with torch.no_grad():
        logits = case.quantized(**case.net.batch).logits.numpy()
    head = "classifier" if ("classifier", "output") in case.pairs else "lm_head"
    np.testing.assert_allclose(case.pairs[head, "output"].quantized, logits, rtol=1e-5, atol=1e-5)
    if case.way == "pt2e":
        return
    mine, theirs = (captured(m, **case.net.batch) for m in (case.net.model, case.quantized))
    for path, (_, value) in theirs.items():
        if (path, "output") in case.pairs and isinstance(value, Tensor):
            pair = case.pairs[path, "output"]
            np.testing.assert_allclose(pair.quantized, value.numpy(), rtol=1e-5, atol=1e-5, err_msg=path)
    for path in linears(case.net.model):  # a layer alone: the quantized one with the reference's input
        with torch.no_grad():
            alone = case.quantized.get_submodule(path)(*mine[path][0]).numpy()
        np.testing.assert_allclose(case.pairs[path, "isolated"].quantized, alone, rtol=1e-4, atol=1e-5, err_msg=path)


def test_numbers_follow_from_the_values(case: Case) -> None:
    rows = rows_of(case.diagnosis)
    for path in linears(case.net.model):
        pair, alone = case.pairs[path, "output"], case.pairs[path, "isolated"]
        error = (pair.reference.astype(float) - pair.quantized) ** 2
        assert rows[path]["a_mse"] == pytest.approx(error.mean(), rel=1e-5)
        noise = ((alone.reference.astype(float) - alone.quantized) ** 2).sum()
        added = 10 * np.log10((alone.reference.astype(float) ** 2).sum() / noise)
        assert rows[path]["added_sqnr_db"] == pytest.approx(added, abs=1e-4)


# --- exported graphs ---


class Positions(nn.Module):
    """Whole numbers are added before real ones, as OPT, BART and RoBERTa do with their positions."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(40, 8), nn.Embedding(40, 8)
        self.fc, self.norm, self.end = nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 3)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids + 2) + self.places(torch.arange(ids.shape[1]) + 2)
        x = x + self.fc(x)
        x = x * 3 + torch.relu(x)
        return self.end(self.norm(x))


def test_functions_of_whole_numbers_do_not_shift_the_others() -> None:
    model = Positions().eval()
    ids = torch.randint(0, 38, (6, 9))
    quantized = pt2e(Net(model, {"ids": ids}))
    adapter = TorchAdapter(model, quantized)
    adapter.trace({"ids": ids.numpy()})
    # With correct inputs every op of a healthy model does nearly the same.
    for pair in adapter.run({"ids": ids.numpy()}):
        error = np.abs(pair.reference - pair.quantized).max()
        assert error < 0.1 * np.abs(pair.reference).max(), (pair.op, pair.role)
    diagnosis = inc_tb.diagnose(model, quantized, {"ids": ids})
    assert [s.because for s in diagnosis.suggestions] == []
    assert diagnosis.missing == {}


class Pooled(nn.Module):
    """Only the first token goes on, and only its range was calibrated."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.end = nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.end(self.fc(x)[:, 0])


def test_rounding_of_one_token_is_not_that_of_all() -> None:
    """As behind the last layer of BERT and ViT, where only the class token is read."""
    model, x = Pooled().eval(), torch.randn(6, 5, 8)
    x[:, 0] *= 0.1
    quantized = pt2e(Net(model, {"x": x}))
    pairs = {(p.op, p.role): p for p in TorchAdapter(model, quantized).run({"x": x.numpy()})}
    pair = pairs["fc", "isolated"]
    assert np.abs(pair.reference - pair.quantized).max() < 0.05 * np.abs(pair.reference).max()
    assert [s.because for s in inc_tb.diagnose(model, quantized, x).suggestions] == []


@pytest.mark.parametrize("name", ["bert", "vit"])
def test_the_last_norm_is_not_clipped_to_the_range_of_the_class_token(name: str) -> None:
    case = case_of(name, "sdpa", "pt2e")
    last = f"bert.encoder.layer.{LAYERS - 1}.output.LayerNorm" if name == "bert" else "vit.layernorm"
    pair, scale = case.pairs[last, "isolated"], rows_of(case.diagnosis)[last]["act_scale"]
    error = np.abs(pair.reference - pair.quantized)
    assert error[:, 1:].max() <= (scale or 0) + 1e-5
    assert error[:, 0].max() <= (scale or 0) + 1e-5


# --- what goes in and comes out ---


def test_a_cache_among_the_outputs() -> None:
    net = gpt2("sdpa")
    quantized = dynamic(net)
    with torch.no_grad():
        assert net.model(**net.batch).past_key_values is not None
    first, second = (inc_tb.diagnose(net.model, quantized, net.batch) for _ in range(2))
    np.testing.assert_array_equal(first.ops["a_mse"], second.ops["a_mse"])
    net.model.config.use_cache = quantized.config.use_cache = False
    without = rows_of(inc_tb.diagnose(net.model, quantized, net.batch))
    assert without["lm_head"]["a_mse"] == pytest.approx(rows_of(first)["lm_head"]["a_mse"], rel=1e-6)


@pytest.mark.parametrize("name", NETS)
def test_all_that_a_model_can_return(name: str) -> None:
    net = NETS[name]("eager")
    quantized = dynamic(net)
    wanted = inc_tb.diagnose(net.model, quantized, net.batch)
    for model in (net.model, quantized):
        model.config.output_hidden_states = model.config.output_attentions = True
    with torch.no_grad():
        made = net.model(**net.batch)
    assert made.attentions
    assert made.hidden_states
    found = inc_tb.diagnose(net.model, quantized, net.batch)
    assert list(found.ops["name"]) == list(wanted.ops["name"])
    np.testing.assert_allclose(found.ops["a_mse"], wanted.ops["a_mse"], rtol=1e-6)


def test_tied_weights() -> None:
    net = gpt2("sdpa")
    assert net.model.lm_head.weight is net.model.transformer.wte.weight
    for quantized in (dynamic(net), torchao(net)):
        rows = rows_of(inc_tb.diagnose(net.model, quantized, net.batch))
        assert net.model.lm_head.weight is net.model.transformer.wte.weight
        assert rows["lm_head"]["weight_dtype"] == "int8"
        assert rows["lm_head"]["w_sqnr_db"] > 25
        assert rows["transformer.wte"]["weight_dtype"] == ""
        assert rows["transformer.wte"]["a_mse"] == 0
        assert rows["transformer.wte"]["params"] == rows["lm_head"]["params"] == 100 * SIZE


def test_layers_of_gpt2_stay_in_fp32() -> None:
    """A person may not know: transformers' Conv1D is none of the kinds that the tools quantize."""
    case = case_of("gpt2", "sdpa", "dynamic")
    rows = rows_of(case.diagnosis)
    layers = [r for r in rows.values() if r["type"] == "Conv1D"]
    assert len(layers) == 4 * LAYERS
    assert {r["weight_dtype"] for r in layers} == {""}
    assert {r["a_mse"] for r in layers} == {0.0}
    for r in layers:
        module = case.net.model.get_submodule(r["name"])
        assert r["params"] == module.weight.numel()
        channels = [c for c in case.diagnosis.channels if c.op == r["name"] and c.role == "weight"]
        assert [len(c.max) for c in channels] == [module.nf], "channels of weights are what the layer puts out"


@pytest.mark.parametrize("name", NETS)
def test_labels_in_the_batch(name: str) -> None:
    net = NETS[name]("sdpa")
    is_language = name in ("gpt2", "llama")
    labels = net.batch["input_ids"].clone() if is_language else torch.tensor([0, 2, 1, 0])
    quantized = dynamic(net)
    wanted = rows_of(inc_tb.diagnose(net.model, quantized, net.batch))
    diagnosis = inc_tb.diagnose(net.model, quantized, {**net.batch, "labels": labels})
    rows = rows_of(diagnosis)
    head = "lm_head" if is_language else "classifier"
    assert diagnosis.samples == 4
    assert rows[head]["a_mse"] == pytest.approx(wanted[head]["a_mse"], rel=1e-6)
    with torch.no_grad():
        loss = float(net.model(**net.batch, labels=labels).loss)
    last = diagnosis.ops["name"][-1]
    assert rows[last]["a_max"] == pytest.approx(loss, rel=1e-5)
    assert "cross_entropy" in last or "CrossEntropy" in rows[last]["type"]


@pytest.mark.parametrize("attention", ATTENTION)
@pytest.mark.parametrize("name", ["bert", "gpt2", "llama"])
def test_padding_changes_nothing_about_finite_values(name: str, attention: str) -> None:
    """Masks are the lowest number there is, or minus infinity."""
    case = case_of(name, attention, "dynamic")
    assert not any("NaN" in note for note in case.diagnosis.notes)
    for (op, role), pair in case.pairs.items():
        assert np.isfinite(pair.reference).all(), (op, role)
        assert np.isfinite(pair.quantized).all(), (op, role)


def test_padding_in_another_sample_than_the_first() -> None:
    """Where nothing is padded, transformers adds no mask: ops are those of the batch, not of its first sample."""
    net = bert("eager")
    net.batch["attention_mask"][0] = 1
    model, quantized = net.model, dynamic(net)
    diagnosis = inc_tb.diagnose(model, quantized, net.batch)
    wanted = captured(model, **net.batch)
    assert rows_of(diagnosis)["classifier"]["a_max"] == pytest.approx(float(wanted["classifier"][1].max()), rel=1e-5)
    assert "bert.encoder.layer.0.attention.self/add" in diagnosis.ops["name"]


def test_batches_with_and_without_padding_and_of_many_lengths() -> None:
    net = bert("eager")
    model, quantized = net.model, dynamic(net)
    batches = [net.batch]
    for size, length in ((2, 6), (1, 1), (3, 10)):
        ids = torch.randint(0, 100, (size, length))
        batches.append({"input_ids": ids, "attention_mask": torch.ones_like(ids)})
    diagnosis = inc_tb.diagnose(model, quantized, batches)
    assert diagnosis.samples == 10
    seen = [captured(model, **batch) for batch in batches]
    rows = rows_of(diagnosis)
    for path in linears(model):
        assert rows[path]["a_max"] == pytest.approx(max(float(s[path][1].max()) for s in seen), rel=1e-5), path
    assert rows["bert.encoder.layer.2.output/add"]["total_sqnr_db"] > 15


def test_what_a_tokenizer_or_a_collator_returns() -> None:
    from transformers import BatchEncoding, default_data_collator

    net = bert("sdpa")
    quantized = dynamic(net)
    wanted = inc_tb.diagnose(net.model, quantized, net.batch)
    samples = [{key: value[i].tolist() for key, value in net.batch.items()} for i in range(4)]
    loader = torch.utils.data.DataLoader(samples, batch_size=4, collate_fn=default_data_collator)
    for given in (BatchEncoding(net.batch), [BatchEncoding(net.batch)], loader):
        found = inc_tb.diagnose(net.model, quantized, given)
        np.testing.assert_array_equal(found.ops["a_mse"], wanted.ops["a_mse"])


@pytest.mark.parametrize("name", NETS)
def test_models_in_training_stay_there(name: str) -> None:
    case = case_of(name, "sdpa", "dynamic")
    model = copy.deepcopy(case.net.model).train()
    getattr(model, "activation_checkpointing_enable", model.gradient_checkpointing_enable)()  # its new name
    with torch.no_grad():
        model(**case.net.batch)  # transformers puts hooks of its own there when a model runs for the first time
    hooks = [(list(m._forward_hooks), list(m._forward_pre_hooks)) for m in model.modules()]
    before = torch.get_rng_state()
    found = inc_tb.diagnose(model, case.quantized, case.net.batch)
    assert torch.equal(torch.get_rng_state(), before)
    assert all(module.training for module in model.modules())
    assert [(list(m._forward_hooks), list(m._forward_pre_hooks)) for m in model.modules()] == hooks
    assert list(found.ops["name"]) == list(case.diagnosis.ops["name"])
    np.testing.assert_array_equal(found.ops["a_mse"], case.diagnosis.ops["a_mse"])


@pytest.mark.parametrize("name", NETS)
def test_half_precision_as_the_quantized_model(name: str) -> None:
    net = NETS[name]("sdpa")
    rows = rows_of(inc_tb.diagnose(net.model, copy.deepcopy(net.model).to(torch.bfloat16), net.batch))
    for path in linears(net.model):
        assert 25 < rows[path]["added_sqnr_db"] < 80, path


# --- the same defect in several layers ---


def stretched_norms(net: Net, norms: str, readers: tuple[str, ...], layers: tuple[int, ...], factor: float) -> Net:
    """One channel of a norm is made larger, and what reads it smaller: fp32 gives the same as before."""
    model = copy.deepcopy(net.model)
    with torch.no_grad():
        before = model(**net.batch).logits
        for layer in layers:
            norm = model.get_submodule(norms.format(layer))
            norm.weight[5] *= factor
            if getattr(norm, "bias", None) is not None:
                norm.bias[5] *= factor
            for reader in readers:
                module = model.get_submodule(reader.format(layer))
                (module.weight[:, 5] if isinstance(module, nn.Linear) else module.weight[5]).div_(factor)
        torch.testing.assert_close(model(**net.batch).logits, before, rtol=1e-4, atol=1e-4)
    return Net(model, net.batch)


VIT = "vit.layers.{}.layernorm_after", ("vit.layers.{}.mlp.fc1",)
LLAMA = (
    "model.layers.{}.post_attention_layernorm",
    ("model.layers.{}.mlp.gate_proj", "model.layers.{}.mlp.up_proj"),
)


@pytest.mark.parametrize("layers", [(0, 1, 2), (0, 2)])
@pytest.mark.parametrize(
    ("name", "places", "way"),
    [
        ("vit", VIT, "pt2e"), ("vit", VIT, "torchao"), ("vit", VIT, "dynamic"),
        ("llama", LLAMA, "pt2e"), ("llama", LLAMA, "torchao"), ("llama", LLAMA, "dynamic"),
    ],
)  # fmt: skip
def test_an_outlier_in_the_same_place_of_several_layers_is_one_suggestion(
    name: str, places: tuple[str, tuple[str, ...]], way: str, layers: tuple[int, ...]
) -> None:
    norms, readers = places
    net = NETS[name]("sdpa")
    net.model.config.use_cache = False
    net = stretched_norms(net, norms, readers, layers, 100)
    diagnosis = inc_tb.diagnose(net.model, WAYS[way](net), net.batch)
    first = diagnosis.suggestions[0]
    wanted = {reader.format(layer) for reader in readers for layer in layers}
    if way == "pt2e":  # otherwise the norm itself is not quantized
        wanted |= {norms.format(layer) for layer in layers}
    named = {op for s in diagnosis.suggestions for op in s.ops}
    assert wanted <= named
    assert set(first.ops) <= {p.format(layer) for p in (norms, *readers) for layer in layers}
    assert first.rule == "outlier_channels"
    assert "100 times" in first.because or re.search(r"[5-9]\d times|1\d\d times|2\d\d times", first.because)
    matched = {name for name in diagnosis.ops["name"].tolist() if re.fullmatch(first.pattern, name)}
    assert matched == (set(first.ops) if len(layers) == LAYERS else set())  # names are as short for two of three
    untouched = {reader.format(layer) for reader in readers for layer in range(LAYERS) if layer not in layers}
    verdicts = {r["name"]: r["verdict"] for r in diagnosis.ops.rows()}
    assert all(verdicts[op] == "bad" for op in first.ops)
    assert all(verdicts[op] != "bad" for op in untouched)


def test_an_outlier_in_what_attention_adds_up() -> None:
    """BERT's norms feed the residual sums, too; values are read by one layer only, through the attention."""
    net = bert("sdpa")
    with torch.no_grad():
        before = net.model(**net.batch).logits
        for layer in net.model.bert.encoder.layer:
            value, dense = layer.attention.self.value, layer.attention.output.dense
            value.weight[5] *= 1000
            value.bias[5] *= 1000
            dense.weight[:, 5] /= 1000
        torch.testing.assert_close(net.model(**net.batch).logits, before, rtol=1e-4, atol=1e-4)
    diagnosis = inc_tb.diagnose(net.model, pt2e(net), net.batch)
    first = diagnosis.suggestions[0]
    assert first.rule == "outlier_channels"
    for layer in range(LAYERS):
        path = f"bert.encoder.layer.{layer}.attention"
        assert {f"{path}.self/scaled_dot_product_attention", f"{path}.output.dense"} <= set(first.ops)
    assert first.pattern
    assert all(re.fullmatch(first.pattern, op) for op in first.ops)
