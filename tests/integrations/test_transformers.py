"""The callback in a real Trainer: what is logged, where, and that training does not notice."""

from __future__ import annotations

import copy
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import tensorboardX
import torch
import transformers
from torch import nn
from torch.ao.quantization import quantize_dynamic
from torch.utils.data import IterableDataset
from torch.utils.tensorboard import SummaryWriter
from transformers import BertConfig, BertForSequenceClassification, TrainingArguments
from transformers.integrations import TensorBoardCallback

import inc_tb
from inc_tb.integrations.transformers import DiagnosisCallback
from inc_tb.store.eventfile import read_events
from tests.integrations.tiny import FILTERS, assert_same, assert_unchanged, fresh, noise, runs, state, steps
from tests.waiting import PATIENCE_S

pytestmark = [pytest.mark.filterwarnings(f) for f in FILTERS]
WORDS, LENGTH = 40, 10
DENSE = "bert.encoder.layer.0.intermediate.dense"
Model = BertForSequenceClassification


def model(*, qat: bool = True) -> Model:
    fresh()
    made = Model(
        BertConfig(
            vocab_size=WORDS, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32,
            max_position_embeddings=LENGTH,
        )
    )  # fmt: skip
    return in_qat(made) if qat else made


def in_qat(made: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torchao.quantization import quantize_
        from torchao.quantization.qat import IntxFakeQuantizeConfig, QATConfig

        activations = IntxFakeQuantizeConfig(torch.int8, "per_token", is_symmetric=False)
        weights = IntxFakeQuantizeConfig(torch.int4, group_size=8)
        quantize_(made, QATConfig(activation_config=activations, weight_config=weights, step="prepare"))
    return made


def rows(count: int, seed: int = 1) -> list[dict[str, Any]]:
    rng = torch.Generator().manual_seed(seed)
    found = []
    for _ in range(count):
        words = torch.randint(0, WORDS, (LENGTH,), generator=rng)
        found.append({"input_ids": words, "attention_mask": torch.ones_like(words), "labels": int(words[0]) % 2})
    return found


def batch(samples: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    return {name: torch.stack([row[name] for row in samples]) for name in ("input_ids", "attention_mask")}


def trainer(trained: Any, folder: Path, *callbacks: Any, **options: Any) -> transformers.Trainer:
    data = {"train_dataset": rows(48), "eval_dataset": rows(12, seed=2)}
    data.update({name: options.pop(name) for name in tuple(options) if name.endswith("dataset")})
    kind = options.pop("kind", transformers.Trainer)
    settings: dict[str, Any] = {
        "max_steps": 6, "per_device_train_batch_size": 8, "learning_rate": 0.01, "report_to": "none", "use_cpu": True,
        "save_strategy": "no", "disable_tqdm": True, "logging_steps": 2, "dataloader_pin_memory": False,
    }  # fmt: skip
    arguments = TrainingArguments(str(folder), **{**settings, **options})
    return kind(trained, arguments, callbacks=list(callbacks), **data)


class Direct(transformers.TrainerCallback):
    """What inc_tb.diagnose finds at every step."""

    def __init__(self, diagnose: Callable[[Any], inc_tb.Diagnosis]) -> None:
        self.diagnose = diagnose
        self.found: dict[int, inc_tb.Diagnosis] = {}

    def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        self.found[state.global_step] = self.diagnose(model)


def dynamic(given: Any) -> Any:
    return quantize_dynamic(given, {nn.Linear})


def int8_in_place(given: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torchao.quantization import Int8WeightOnlyConfig, quantize_

        quantize_(given, Int8WeightOnlyConfig())


def test_a_model_in_qat_is_compared_with_itself_at_steps_and_evaluations(tmp_path: Path) -> None:
    callback = DiagnosisCallback(every=2, samples=3)
    trainer(model(), tmp_path / "a", callback, eval_strategy="steps", eval_steps=3).train()
    direct = Direct(lambda given: inc_tb.diagnose(None, given, batch(rows(48)[:3])))
    trainer(model(), tmp_path / "b", direct, eval_strategy="steps", eval_steps=3).train()
    found = inc_tb.load(tmp_path / "a" / "runs" / "quantization").diagnoses
    assert sorted(found) == [2, 3, 4, 6]
    for step, diagnosis in found.items():
        assert_same(diagnosis, direct.found[step])
    assert 10 < noise(found[2])[DENSE] < 40
    assert noise(found[2])[DENSE] != noise(found[6])[DENSE]


def test_the_samples_are_those_of_the_evaluation_where_there_is_one(tmp_path: Path) -> None:
    trained = trainer(model(), tmp_path, DiagnosisCallback(samples=5), eval_strategy="steps", eval_steps=3)
    direct = Direct(lambda given: inc_tb.diagnose(None, given, batch(rows(12, seed=2)[:5])))
    trained.add_callback(direct)
    trained.train()
    found = inc_tb.load(tmp_path / "runs" / "quantization").diagnoses
    assert sorted(found) == [3, 6]
    assert_same(found[3], direct.found[3])


def test_a_few_samples_unless_told(tmp_path: Path) -> None:
    trainer(model(), tmp_path, DiagnosisCallback(every=6), per_device_train_batch_size=24, max_steps=6).train()
    assert inc_tb.load(tmp_path / "runs" / "quantization").diagnosis.samples == 3


@pytest.mark.parametrize("quantize", [dynamic, int8_in_place])
def test_quantization_is_tried_on_a_copy(tmp_path: Path, quantize: Callable[[Any], Any]) -> None:
    data = batch(rows(4, seed=3))
    trained = model(qat=False)
    trainer(trained, tmp_path, DiagnosisCallback(every=3, quantize=quantize, data=data, samples=4)).train()
    assert not any("quantized" in type(module).__module__ for module in trained.modules())
    assert type(trained.classifier.weight.data) is torch.Tensor
    found = inc_tb.load(tmp_path / "runs" / "quantization")
    assert sorted(found.diagnoses) == [3, 6]
    other = copy.deepcopy(trained).eval()
    assert_same(found.diagnosis, inc_tb.diagnose(trained, quantize(other) or other, data))
    assert noise(found.diagnosis)[DENSE] > 20


def test_a_reference_may_be_given(tmp_path: Path) -> None:
    reference, data = model(qat=False), batch(rows(4, seed=3))
    trained = model()
    trainer(trained, tmp_path, DiagnosisCallback(every=6, reference=reference, data=data, samples=4)).train()
    found = inc_tb.load(tmp_path / "runs" / "quantization").diagnosis
    assert_same(found, inc_tb.diagnose(reference, trained, data))


@pytest.mark.parametrize(
    ("options", "qat"),
    [({}, True), ({"quantize": dynamic}, False), ({"quantize": int8_in_place}, False), ({"reference": "fp32"}, True)],
)
def test_training_is_the_same_with_the_callback(tmp_path: Path, options: dict[str, Any], qat: bool) -> None:
    if options.get("reference"):
        options = {"reference": model(qat=False)}
    ends = []
    for callbacks in ([], [DiagnosisCallback(every=1, **options)]):
        trained = model(qat=qat)
        trainer(trained, tmp_path, *callbacks, eval_strategy="steps", eval_steps=2).train()
        ends.append(state(trained))
    assert steps(tmp_path / "runs" / "quantization") == [1, 2, 3, 4, 5, 6]
    assert_unchanged(ends[1], ends[0])


def test_each_training_has_a_run_of_its_own(tmp_path: Path) -> None:
    trained = trainer(model(), tmp_path, DiagnosisCallback(every=3))
    trained.train()
    trained.train()
    assert runs(tmp_path) == ["runs/quantization", "runs/quantization-2"]
    assert steps(tmp_path / "runs" / "quantization-2") == [3, 6]


def test_logs_of_the_trainer_are_found_through_it(tmp_path: Path) -> None:
    trained = trainer(model(), tmp_path, report_to="tensorboard")
    trained.add_callback(DiagnosisCallback(every=3, trainer=trained))
    trained.train()
    (run,) = runs(tmp_path)
    assert steps(tmp_path / run) == [3, 6]


def test_a_tensorboard_callback_may_be_the_writer(tmp_path: Path) -> None:
    theirs = TensorBoardCallback()
    trainer(model(), tmp_path, theirs, DiagnosisCallback(every=3, writer=theirs)).train()
    (run,) = runs(tmp_path)
    assert steps(tmp_path / run) == [3, 6]


def test_a_trainer_without_tensorboard_gets_a_run(tmp_path: Path) -> None:
    trained = trainer(model(), tmp_path)
    trained.add_callback(DiagnosisCallback(every=3, trainer=trained))
    trained.train()
    assert runs(tmp_path) == ["runs/quantization"]


def test_the_folder_of_the_logs_may_be_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path / "logs"))
    trainer(model(), tmp_path / "out", DiagnosisCallback(every=6)).train()
    assert runs(tmp_path) == ["logs/quantization"]


def test_a_writer_never_gets_a_step_twice(tmp_path: Path) -> None:
    with SummaryWriter(str(tmp_path / "mine")) as writer:
        callback = DiagnosisCallback(every=3, writer=writer)
        trainer(model(), tmp_path, callback, eval_strategy="steps", eval_steps=3).train()
        with pytest.warns(RuntimeWarning, match="step 3 comes after step 6 in .*mine; give every training a writer"):
            trainer(model(), tmp_path, callback).train()
    assert runs(tmp_path) == ["mine"]
    events = [e for f in (tmp_path / "mine").iterdir() for e in read_events(f)]
    logged = [e.step for e in events if any(v.tag == "quantization/ops" for v in e.summary.value)]
    assert logged == [3, 6]


@pytest.mark.parametrize("kind", [inc_tb.SummaryWriter, tensorboardX.SummaryWriter])
def test_other_writers(tmp_path: Path, kind: Any) -> None:
    writer = kind(str(tmp_path / "mine"))
    trainer(model(), tmp_path / "out", DiagnosisCallback(every=3, writer=writer)).train()
    writer.close()
    assert steps(tmp_path / "mine") == [3, 6]


def test_a_resumed_training_goes_on(tmp_path: Path) -> None:
    trainer(model(), tmp_path, max_steps=3, save_strategy="steps", save_steps=3).train()
    trained = trainer(model(), tmp_path, DiagnosisCallback(every=2), max_steps=6)
    trained.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    assert steps(tmp_path / "runs" / "quantization") == [4, 6]


def test_only_the_first_process_logs(tmp_path: Path) -> None:
    class Second(transformers.Trainer):
        def is_world_process_zero(self) -> bool:
            return False

    calls: list[int] = []
    callback = DiagnosisCallback(every=2, quantize=lambda given: calls.append(1))
    trainer(model(qat=False), tmp_path, callback, kind=Second, eval_strategy="steps", eval_steps=3).train()
    assert runs(tmp_path) == []
    assert len(calls) == 1  # the check at the beginning, which all processes make


def test_an_error_is_a_warning_and_training_goes_on(tmp_path: Path) -> None:
    wrong = {"input_ids": torch.full((2, LENGTH), WORDS)}
    trained = trainer(model(), tmp_path, DiagnosisCallback(every=1, data=wrong))
    with pytest.warns(
        RuntimeWarning, match="no quantization diagnosis, training goes on: .*index out of range"
    ) as told:
        assert trained.train().global_step == 6
    assert sum("no quantization diagnosis" in str(warning.message) for warning in told) == 1
    assert all(not module._forward_hooks for module in trained.model.modules())
    assert runs(tmp_path) == []


def test_an_error_of_the_users_function_is_a_warning(tmp_path: Path) -> None:
    calls: list[int] = []

    def quantize(given: Any) -> Any:
        calls.append(1)
        if len(calls) > 1:
            raise KeyError("lost")
        return dynamic(given)

    trained = trainer(model(qat=False), tmp_path, DiagnosisCallback(every=3, quantize=quantize))
    with pytest.warns(RuntimeWarning, match="quantize=.* failed: KeyError: 'lost'"):
        assert trained.train().global_step == 6
    assert len(calls) == 3


def test_what_cannot_work_is_said_when_training_begins(tmp_path: Path) -> None:
    def begin(callback: DiagnosisCallback, *, qat: bool = False) -> None:
        trainer(model(qat=qat), tmp_path, callback).train()

    def broken(given: Any) -> Any:
        raise ValueError("no such config")

    with pytest.raises(inc_tb.IncTbError, match="no fake quantizers"):
        begin(DiagnosisCallback(every=1))
    with pytest.raises(inc_tb.IncTbError, match=r"quantize=.* failed: ValueError: no such config; expected a function"):
        begin(DiagnosisCallback(every=1, quantize=broken))
    with pytest.raises(inc_tb.IncTbError, match="cannot read"):
        begin(DiagnosisCallback(every=1, reference=3), qat=True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"every": 0}, "every=0 was given; expected a whole number from 1 on"),
        ({"every": 1.5}, "every=1.5 was given"),
        ({"at_evaluation": False}, "nothing would be diagnosed"),
        ({"every": 1, "quantize": "int8"}, "quantize='int8' was given; expected a function"),
        ({"every": 1, "samples": 0}, "samples=0 was given"),
        ({"every": 1, "data": "samples.npz"}, "data='samples.npz' was given; expected a batch"),
        ({"every": 1, "writer": "runs"}, "writer='runs' was given; expected a SummaryWriter"),
        ({"every": 1, "trainer": 3}, "trainer=3 was given; expected the transformers.Trainer"),
    ],
)
def test_wrong_arguments(options: dict[str, Any], message: str) -> None:
    with pytest.raises(inc_tb.IncTbError, match=message) as told:
        DiagnosisCallback(**options)
    assert len(str(told.value).splitlines()) == 1


def test_sharded_models_are_refused(tmp_path: Path) -> None:
    trained = model()
    trained.classifier.weight.ds_id = 1  # as DeepSpeed marks what it has spread
    with pytest.raises(inc_tb.IncTbError, match="spread over several processes"):
        trainer(trained, tmp_path, DiagnosisCallback(every=1)).train()


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return iter(rows(48))


class Once(Stream):
    def __init__(self) -> None:
        self.rest = iter(rows(48))

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        return next(self.rest)


def test_streams(tmp_path: Path) -> None:
    trainer(model(), tmp_path, DiagnosisCallback(every=6, samples=3), train_dataset=Stream()).train()
    found = inc_tb.load(tmp_path / "runs" / "quantization").diagnosis
    assert found.samples == 3


def test_a_stream_that_can_be_read_once_is_left_to_the_training(tmp_path: Path) -> None:
    trained = trainer(model(), tmp_path, DiagnosisCallback(every=3), train_dataset=Once())
    with pytest.warns(RuntimeWarning, match="Once can be gone through only once, and training needs it"):
        assert trained.train().global_step == 6


def test_a_loader_may_be_the_data(tmp_path: Path) -> None:
    data = rows(20, seed=3)
    loader = torch.utils.data.DataLoader(data, batch_size=4, shuffle=True)
    trained = model()
    trainer(trained, tmp_path, DiagnosisCallback(every=6, data=loader, samples=6)).train()
    found = inc_tb.load(tmp_path / "runs" / "quantization").diagnosis
    assert_same(found, inc_tb.diagnose(None, trained, batch(data[:6])))


def test_models_that_translate_need_no_labels(tmp_path: Path) -> None:
    fresh()
    config = transformers.T5Config(
        vocab_size=WORDS, d_model=16, d_kv=8, d_ff=32, num_layers=1, num_heads=2, decoder_start_token_id=0
    )
    trained = transformers.T5ForConditionalGeneration(config)
    data = [{**row, "labels": row["input_ids"]} for row in rows(16)]
    callback = DiagnosisCallback(every=2, quantize=dynamic)
    trainer(trained, tmp_path, callback, train_dataset=data, max_steps=2).train()
    found = inc_tb.load(tmp_path / "runs" / "quantization").diagnosis
    assert noise(found)["decoder.block.0.layer.2.DenseReluDense.wo"] > 20


def test_mixed_precision(tmp_path: Path) -> None:
    trainer(model(), tmp_path, DiagnosisCallback(every=6), bf16=True).train()
    assert noise(inc_tb.load(tmp_path / "runs" / "quantization").diagnosis)[DENSE] > 10


def test_trials_of_a_search_have_folders_of_their_own(tmp_path: Path) -> None:
    class Named(transformers.TrainerCallback):
        def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            state.is_hyper_param_search, state.trial_name = True, "run-7"

    trainer(model(), tmp_path, Named(), DiagnosisCallback(every=6)).train()
    assert runs(tmp_path) == ["runs/run-7/quantization"]


PROCESSES = """
import os, sys, torch
sys.path.insert(0, {root!r})
from tests.integrations.test_transformers import *
torch.set_num_threads(1)
trained = trainer(model(), Path({folder!r}), DiagnosisCallback(every=2), eval_strategy="steps", eval_steps=3)
trained.train()
torch.distributed.barrier()
print("rank", torch.distributed.get_rank(), float(sum(p.sum() for p in trained.model.parameters())))
torch.distributed.destroy_process_group()
sys.stdout.flush()
os._exit(0)  # threads of torch and TensorFlow sometimes abort when Python ends
"""


@pytest.mark.slow
def test_two_processes(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(PROCESSES.format(root=str(Path(__file__).parents[2]), folder=str(tmp_path / "out")))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", str(script)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr
    ends = {line.split()[2] for line in done.stdout.splitlines() if line.startswith("rank")}
    assert len(ends) == 1
    assert runs(tmp_path / "out") == ["runs/quantization"]
    assert steps(tmp_path / "out" / "runs" / "quantization") == [2, 3, 4, 6]
