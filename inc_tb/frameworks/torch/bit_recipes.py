"""Formats for each matrix, as the tools that quantize language models are told them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

from inc_tb.errors import UsageError

_LEFT = ("bf16", "fp16", "fp32")
"""What no tool is to touch."""


class Integer(NamedTuple):
    bits: int
    group: int
    """-1 for a whole row."""
    is_symmetric: bool


def write_recipe(tool: str, formats: Mapping[str, str]) -> str:
    """`formats` is matrix -> format."""
    if tool not in TOOLS:
        raise UsageError(f"{tool!r} is no tool that recipes are written for; expected one of {', '.join(TOOLS)}.")
    return TOOLS[tool](formats)


def _integer(tool: str, name: str, least: tuple[int, ...] = (2, 3, 4, 5, 6, 7, 8)) -> Integer:
    found = re.fullmatch(r"int(\d)(?:-g(\d+))?(-asym)?", name)
    if found is None or int(found[1]) not in least:
        bits = ", ".join(f"int{n}" for n in least)
        raise UsageError(
            f"the recipe for {tool} cannot say {name}; expected {bits} with groups or without, and bf16. Choose other "
            "formats, or another tool."
        )
    return Integer(int(found[1]), int(found[2] or -1), found[3] is None)


def _by_format(formats: Mapping[str, str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for matrix, name in formats.items():
        if name not in _LEFT:
            found.setdefault(name, []).append(matrix)
    return found


def _left(formats: Mapping[str, str]) -> list[str]:
    return [matrix for matrix, name in formats.items() if name in _LEFT]


def _shown(value: object) -> str:
    """As Python, a line for each entry."""
    told = json.dumps(value, indent=4)
    return re.sub(
        r"\b(true|false|null)\b(?=,?\n)", lambda m: {"true": "True", "false": "False"}.get(m[1], "None"), told
    )


def _torchao(formats: Mapping[str, str]) -> str:
    lines = []
    for name in _by_format(formats):
        bits, group, is_symmetric = _integer("torchao", name)
        size = "PerAxis(0)" if group < 0 else f"PerGroup({group})"
        more = "" if is_symmetric else ", mapping_type=MappingType.ASYMMETRIC"
        lines.append(f'    "{name}": IntxWeightOnlyConfig(torch.int{bits}, {size}{more}),')
    configs = "\n".join(lines)
    return f"""from collections import OrderedDict

import torch
from torchao.quantization import FqnToConfig, IntxWeightOnlyConfig, MappingType, PerAxis, PerGroup, quantize_

FORMATS = {{
{configs}
}}
MATRICES = {_shown(_by_format(formats))}
told = OrderedDict((name, FORMATS[format]) for format, names in MATRICES.items() for name in names)
quantize_(model, FqnToConfig(told), filter_fn=None)
"""


def _neural_compressor(formats: Mapping[str, str]) -> str:
    lines = []
    for name in _by_format(formats):
        bits, group, is_symmetric = _integer("neural-compressor", name)
        lines.append(f'    "{name}": RTNConfig(bits={bits}, group_size={group}, use_sym={is_symmetric}),')
    configs = "\n".join(lines)
    left = ', *[(name, RTNConfig(dtype="fp32")) for name in LEFT]' if _left(formats) else ""
    return f"""from neural_compressor.torch.quantization import RTNConfig, convert, prepare

FORMATS = {{
{configs}
}}
MATRICES = {_shown(_by_format(formats))}
LEFT = {_shown(_left(formats))}
config = RTNConfig(dtype="fp32")
for name, own in [*[(name, FORMATS[format]) for format, names in MATRICES.items() for name in names]{left}]:
    config.set_local(name, own)
model = convert(prepare(model, config))
"""


def _llm_compressor(formats: Mapping[str, str]) -> str:
    groups = {}
    for i, (name, matrices) in enumerate(_by_format(formats).items()):
        bits, group, is_symmetric = _integer("llm-compressor", name, (4, 8))
        weights = {"num_bits": bits, "type": "int", "symmetric": is_symmetric}
        weights |= {"strategy": "channel"} if group < 0 else {"strategy": "group", "group_size": group}
        groups[f"group_{i}"] = {"targets": [f"re:^{re.escape(matrix)}$" for matrix in matrices], "weights": weights}
    return f"""from llmcompressor import oneshot
from llmcompressor.modifiers.quantization import QuantizationModifier

groups = {_shown(groups)}
oneshot(model=model, recipe=QuantizationModifier(config_groups=groups, ignore=["lm_head"]))
"""


def _auto_round(formats: Mapping[str, str]) -> str:
    told = {}
    for matrix, name in formats.items():
        if name in _LEFT:
            told[matrix] = {"bits": 16}
        else:
            bits, group, is_symmetric = _integer("auto-round", name, (2, 3, 4, 8))
            told[matrix] = {"bits": bits, "group_size": group, "sym": is_symmetric}
    return f"""from auto_round import AutoRound

layers = {_shown(told)}
AutoRound(model, tokenizer, layer_config=layers).quantize_and_save("quantized", format="auto_round")
"""


def _gptqmodel(formats: Mapping[str, str]) -> str:
    """What most matrices have is the rule, the others are exceptions."""
    by_format = _by_format(formats)
    if not by_format:
        raise UsageError("all matrices stay in 16 bits; expected some that GPTQModel is to quantize.")
    usual = max(by_format, key=lambda name: len(by_format[name]))
    first = _integer("gptqmodel", usual, (2, 3, 4, 8))
    told: dict[str, object] = {f"-:^{re.escape(matrix)}$": {} for matrix in _left(formats)}
    for name, matrices in by_format.items():
        bits, group, is_symmetric = _integer("gptqmodel", name, (2, 3, 4, 8))
        if name != usual:
            own = {"bits": bits, "group_size": group, "sym": is_symmetric}
            told |= {f"+:^{re.escape(matrix)}$": own for matrix in matrices}
    return f"""from gptqmodel import QuantizeConfig

exceptions = {_shown(told)}
config = QuantizeConfig(bits={first.bits}, group_size={first.group}, sym={first.is_symmetric}, dynamic=exceptions)
"""


_LLAMA = {
    "q_proj": "attn_q", "k_proj": "attn_k", "v_proj": "attn_v", "o_proj": "attn_output", "gate_proj": "ffn_gate",
    "up_proj": "ffn_up", "down_proj": "ffn_down",
}  # fmt: skip


def _llama_cpp(formats: Mapping[str, str]) -> str:
    """The type that most have stands last; the options are regular expressions."""
    counts: dict[str, int] = {}
    for name in formats.values():
        if not re.fullmatch(r"q\d_\d|bf16|fp16", name):
            raise UsageError(
                f"the recipe for llama.cpp cannot say {name}; expected q4_0, q4_1, q5_0, q5_1, q8_0, bf16 and fp16."
            )
        counts[name] = counts.get(name, 0) + 1
    usual = max(counts, key=lambda name: counts[name])
    options = []
    for matrix, name in formats.items():
        found = re.search(r"layers\.(\d+)\.\w+\.(\w+)$", matrix)
        if found is None or found[2] not in _LLAMA:
            raise UsageError(f"the recipe for llama.cpp cannot name {matrix}; expected the layers of a Llama.")
        if name != usual:
            type_ = name.replace("fp16", "f16")
            options.append(f"  --tensor-type '^blk\\.{found[1]}\\.{_LLAMA[found[2]]}\\.weight$={type_}' \\")
    last = usual.replace("fp16", "f16").upper()
    return "\n".join(["llama-quantize --pure \\", *options, f"  model-f32.gguf model-quantized.gguf {last}", ""])


TOOLS: dict[str, Callable[[Mapping[str, str]], str]] = {
    "torchao": _torchao, "llm-compressor": _llm_compressor, "auto-round": _auto_round, "gptqmodel": _gptqmodel,
    "neural-compressor": _neural_compressor, "llama.cpp": _llama_cpp,
}  # fmt: skip
