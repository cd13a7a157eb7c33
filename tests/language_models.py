"""A tiny language model of transformers on disk, as a folder and as a GGUF file, and a text for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import GGMLQuantizationType, GGUFWriter, TokenType
from gguf.quants import quantize
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

WORDS = ["<unk>", *"the cat dog bird saw heard and then a small old red green house tree ran flew home".split()]
TEXT = "the cat saw a small bird and then the old dog heard the cat and ran home then a red bird flew to the tree "
HIDDEN, HEADS, LAYERS = 64, 2, 2
_GGUF_NAMES = {
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
}  # fmt: skip


def make_model(steps: int = 30) -> LlamaForCausalLM:
    """Trained until it expects the next word of the text."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(WORDS), hidden_size=HIDDEN, intermediate_size=96, num_hidden_layers=LAYERS,
        num_attention_heads=HEADS, num_key_value_heads=HEADS, max_position_embeddings=64, tie_word_embeddings=False,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    ids = torch.tensor(make_tokenizer()(TEXT)["input_ids"])[None]
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(steps):
        optimizer.zero_grad()
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
    return model.eval()


def make_tokenizer() -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>")


def save_folder(model: LlamaForCausalLM, folder: Path) -> Path:
    model.save_pretrained(str(folder))
    make_tokenizer().save_pretrained(str(folder))
    return folder


def save_gguf(model: LlamaForCausalLM, path: Path, type_: GGMLQuantizationType) -> Path:
    """As llama.cpp has it, the weights of layers in a type of its own."""
    writer = GGUFWriter(str(path), "llama")
    config = model.config
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_dimension_count(HIDDEN // HEADS)
    writer.add_vocab_size(len(WORDS))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(WORDS)
    writer.add_token_types([TokenType.NORMAL] * len(WORDS))
    writer.add_token_merges(["t h"])
    for name, value in _named(model):
        if value.ndim == 2 and name.startswith("blk"):
            writer.add_tensor(name, quantize(value, type_), raw_dtype=type_)
        else:
            writer.add_tensor(name, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _named(model: LlamaForCausalLM) -> Any:
    for name, parameter in model.state_dict().items():
        value = parameter.numpy().astype(np.float32)
        if name == "model.embed_tokens.weight":
            yield "token_embd.weight", value
        elif name == "model.norm.weight":
            yield "output_norm.weight", value
        elif name == "lm_head.weight":
            yield "output.weight", value
        else:
            _, _, layer, rest = name.split(".", 3)
            module = rest.removesuffix(".weight")
            if module in ("self_attn.q_proj", "self_attn.k_proj"):
                value = _interleaved(value)
            yield f"blk.{layer}.{_GGUF_NAMES[module]}.weight", value


def _interleaved(weight: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """llama.cpp turns neighbors around where transformers turns halves."""
    rows = len(weight) // HEADS
    return np.ascontiguousarray(weight.reshape(HEADS, 2, rows // 2, -1).swapaxes(1, 2).reshape(weight.shape))
