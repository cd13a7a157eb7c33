"""A tiny classifier of texts, and its training."""

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast, TrainingArguments

arguments = TrainingArguments(
    "checkpoints", max_steps=2, per_device_train_batch_size=8, use_cpu=True, report_to="none", save_strategy="no",
    eval_strategy="steps", eval_steps=2, disable_tqdm=True,
)  # fmt: skip
tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(WordLevel({"[UNK]": 0}, unk_token="[UNK]")))
texts = [{"input_ids": torch.randint(0, 40, (10,)), "labels": i % 2} for i in range(16)]


def text_model() -> BertForSequenceClassification:
    return BertForSequenceClassification(
        BertConfig(
            vocab_size=40, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32,
            max_position_embeddings=10,
        )
    )  # fmt: skip
