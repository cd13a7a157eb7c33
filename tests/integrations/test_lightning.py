"""The callback in a real lightning.Trainer: what is logged, where, and that training does not notice."""

from __future__ import annotations

import copy
import logging
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from torch import Tensor, nn
from torch.ao import quantization as ao
from torch.utils.data import DataLoader, IterableDataset
from torch.utils.tensorboard import SummaryWriter

import inc_tb
from inc_tb.errors import UsageError
from inc_tb.integrations.lightning import DiagnosisCallback
from inc_tb.store.eventfile import event_files, read_events
from tests.integrations.tiny import FILTERS, assert_same, assert_unchanged, fresh, noise, runs, state, steps
from tests.waiting import PATIENCE_S

pytestmark = [
    *(pytest.mark.filterwarnings(f) for f in FILTERS),
    pytest.mark.filterwarnings("ignore:.*does not have many workers:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*number of training batches:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*isinstance.treespec, LeafSpec.:DeprecationWarning"),
]
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.quant, self.dequant = ao.QuantStub(), ao.DeQuantStub()
        self.conv, self.norm, self.relu = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU()
        self.drop = nn.Dropout(0.2)
        self.fc = nn.Linear(4 * 36, 5)

    def forward(self, image: Tensor) -> Tensor:
        x = self.relu(self.norm(self.conv(self.quant(image))))
        return self.dequant(self.fc(self.drop(x.flatten(1))))


def net(*, qat: bool = True) -> nn.Module:
    fresh()
    made = Net().train()
    if qat:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            made.qconfig = ao.get_default_qat_qconfig("x86")
            made = ao.prepare_qat(ao.fuse_modules_qat(made, [["conv", "norm", "relu"]]))
    return made


class Module(pl.LightningModule):
    def __init__(self, inner: nn.Module, *, optimizers: int = 1) -> None:
        super().__init__()
        self.net = inner
        self.count = optimizers
        self.automatic_optimization = optimizers == 1

    def forward(self, image: Tensor) -> Tensor:
        return self.net(image)

    def training_step(self, batch: Any, index: int) -> Any:
        loss = nn.functional.cross_entropy(self(batch[0]), batch[1])
        if not self.automatic_optimization:
            for optimizer in self.optimizers():
                optimizer.zero_grad()
            self.manual_backward(loss)
            for optimizer in self.optimizers():
                optimizer.step()
        return loss

    def validation_step(self, batch: Any, index: int) -> None:
        self.log("val", nn.functional.cross_entropy(self(batch[0]), batch[1]))

    def configure_optimizers(self) -> Any:
        parts = [list(self.parameters())[i :: self.count] for i in range(self.count)]
        return [torch.optim.SGD(part, lr=0.05) for part in parts]


def images(count: int, seed: int) -> list[tuple[Tensor, int]]:
    rng = torch.Generator().manual_seed(seed)
    return [(torch.randn(1, 8, 8, generator=rng), i % 5) for i in range(count)]


def loader(count: int, seed: int, **options: Any) -> DataLoader[Any]:
    return DataLoader(images(count, seed), batch_size=options.pop("batch_size", 8), **options)


def first(count: int, seed: int) -> Tensor:
    return torch.stack([image for image, _ in images(count, seed)])


def fit(module: Any, folder: Path, *callbacks: Any, **options: Any) -> pl.Trainer:
    settings: dict[str, Any] = {
        "max_epochs": 2, "accelerator": "cpu", "default_root_dir": str(folder), "enable_progress_bar": False,
        "enable_model_summary": False, "enable_checkpointing": False, "logger": False, "log_every_n_steps": 1,
        "val_check_interval": 3, "num_sanity_val_steps": 1,
    }  # fmt: skip
    trainer = pl.Trainer(callbacks=list(callbacks), **{**settings, **options})
    trainer.fit(module, loader(24, seed=1, shuffle=True), loader(16, seed=2))
    return trainer


class Direct(pl.Callback):
    """What inc_tb.diagnose finds after every step, and after validations, in which QAT goes on to observe."""

    def __init__(self, diagnose: Callable[[Any], inc_tb.Diagnosis]) -> None:
        self.diagnose = diagnose
        self.stepped: dict[int, inc_tb.Diagnosis] = {}
        self.validated: dict[int, inc_tb.Diagnosis] = {}

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *args: Any) -> None:
        self.stepped[trainer.global_step] = self.diagnose(pl_module)

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        with torch.inference_mode(False):
            self.validated[trainer.global_step] = self.diagnose(pl_module)


def dynamic(given: Any) -> Any:
    return ao.quantize_dynamic(given, {nn.Linear})


def test_a_model_in_qat_is_compared_with_itself_in_the_trainers_log(tmp_path: Path) -> None:
    logger = TensorBoardLogger(str(tmp_path), name="mine")
    direct = Direct(lambda module: inc_tb.diagnose(None, module, first(5, seed=2)))
    fit(Module(net()), tmp_path, DiagnosisCallback(every=2, samples=5), direct, logger=[CSVLogger(tmp_path), logger])
    found = inc_tb.load(logger.log_dir).diagnoses
    assert sorted(found) == [2, 3, 4, 6]
    for step in (2, 4, 6):
        assert_same(found[step], direct.stepped[step])
    assert_same(found[3], direct.validated[3])
    assert 10 < noise(found[2])["net.fc"] < 60
    assert runs(tmp_path) == ["mine/version_0"]


def test_validations_alone(tmp_path: Path) -> None:
    fit(Module(net()), tmp_path, DiagnosisCallback())
    assert steps(tmp_path / "quantization") == [3, 6]
    assert inc_tb.load(tmp_path / "quantization").diagnosis.samples == 1


def test_a_part_of_the_module(tmp_path: Path) -> None:
    direct = Direct(lambda module: inc_tb.diagnose(None, module.net, first(4, seed=2)))
    fit(Module(net()), tmp_path, DiagnosisCallback(every=6, model="net", samples=4), direct)
    assert_same(inc_tb.load(tmp_path / "quantization").diagnosis, direct.stepped[6])


def test_without_validation_the_samples_are_those_of_the_training(tmp_path: Path) -> None:
    module = Module(net())
    callback = DiagnosisCallback(every=6, samples=4)
    fit(module, tmp_path, callback, limit_val_batches=0, val_check_interval=1.0)
    assert_same(inc_tb.load(tmp_path / "quantization").diagnosis, inc_tb.diagnose(None, module, first(4, seed=1)))


def test_quantization_is_tried_on_a_copy(tmp_path: Path) -> None:
    module, data = Module(net(qat=False)), {"image": first(4, seed=3)}
    fit(module, tmp_path, DiagnosisCallback(every=3, quantize=dynamic, data=data, samples=4))
    found = inc_tb.load(tmp_path / "quantization")
    assert sorted(found.diagnoses) == [3, 6]
    assert_same(found.diagnosis, inc_tb.diagnose(module, dynamic(copy.deepcopy(module).eval()), data))
    assert type(module.net.fc) is nn.Linear


def test_a_reference_may_be_given(tmp_path: Path) -> None:
    reference, data = net(qat=False), [(first(2, seed=3),), (first(2, seed=4),)]
    direct = Direct(lambda module: inc_tb.diagnose(reference, module.net, [first(2, seed=3), first(1, seed=4)]))
    callback = DiagnosisCallback(every=6, model="net", reference=reference, data=data, samples=3)
    fit(Module(net()), tmp_path, callback, direct)
    assert_same(inc_tb.load(tmp_path / "quantization").diagnosis, direct.stepped[6])


@pytest.mark.parametrize("options", [{}, {"quantize": dynamic}])
def test_training_is_the_same_with_the_callback(tmp_path: Path, options: dict[str, Any]) -> None:
    ends = []
    for callbacks in ([], [DiagnosisCallback(every=1, **options)]):
        module = Module(net(qat=not options))
        fit(module, tmp_path, *callbacks)
        ends.append(state(module))
    assert steps(tmp_path / "quantization") == [1, 2, 3, 4, 5, 6]
    assert_unchanged(ends[1], ends[0])


def test_a_run_of_its_own_keeps_the_last_diagnoses(tmp_path: Path) -> None:
    fit(Module(net()), tmp_path, DiagnosisCallback(every=1, at_evaluation=False, keep_last=2))
    assert steps(tmp_path / "quantization") == [5, 6]
    events = (event for path in event_files(tmp_path / "quantization") for event in read_events(path))
    assert {event.step for event in events if any("sqnr" in v.tag for v in event.summary.value)} == set(range(1, 7))
    with pytest.raises(UsageError, match="keep_last=0 was given"):
        DiagnosisCallback(every=1, keep_last=0)


def test_each_training_has_a_run_of_its_own(tmp_path: Path) -> None:
    for _ in range(2):
        fit(Module(net()), tmp_path, DiagnosisCallback(every=3))
    assert runs(tmp_path) == ["quantization", "quantization-2"]


def test_the_users_writer(tmp_path: Path) -> None:
    with SummaryWriter(str(tmp_path / "mine")) as writer:
        fit(Module(net()), tmp_path, DiagnosisCallback(every=3, writer=writer))
    assert runs(tmp_path) == ["mine"]
    assert steps(tmp_path / "mine") == [3, 6]


def test_steps_that_count_twice(tmp_path: Path) -> None:
    """With two optimizers a batch is two steps; a multiple of `every` that is skipped counts all the same."""
    fit(Module(net(), optimizers=2), tmp_path, DiagnosisCallback(every=3, at_evaluation=False))
    assert steps(tmp_path / "quantization") == [4, 6, 10, 12]


def test_batches_without_a_step(tmp_path: Path) -> None:
    callback = DiagnosisCallback(every=1, at_evaluation=False)
    fit(Module(net()), tmp_path, callback, accumulate_grad_batches=2)
    assert steps(tmp_path / "quantization") == [1, 2, 3, 4]


def test_only_the_first_process_logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pl.Trainer, "is_global_zero", property(lambda self: False))
    fit(Module(net()), tmp_path, DiagnosisCallback(every=1))
    assert runs(tmp_path) == []


def test_a_trial_run_leaves_nothing(tmp_path: Path) -> None:
    fit(Module(net()), tmp_path, DiagnosisCallback(every=1), fast_dev_run=True, val_check_interval=1.0)
    assert list(tmp_path.iterdir()) == []


def test_an_error_is_a_warning_and_training_goes_on(tmp_path: Path) -> None:
    wrong = {"image": torch.zeros(2, 3, 8, 8)}
    module = Module(net())
    before = state(module)["hooks"]
    with pytest.warns(RuntimeWarning, match="no quantization diagnosis, training goes on: .*expected input") as told:
        assert fit(module, tmp_path, DiagnosisCallback(every=1, data=wrong)).global_step == 6
    assert sum("no quantization diagnosis" in str(warning.message) for warning in told) == 1
    assert state(module)["hooks"] == before
    assert runs(tmp_path) == []


def test_what_cannot_work_is_said_when_training_begins(tmp_path: Path) -> None:
    with pytest.raises(inc_tb.IncTbError, match="no fake quantizers"):
        fit(Module(net(qat=False)), tmp_path, DiagnosisCallback(every=1))
    with pytest.raises(inc_tb.IncTbError, match=r"model='body' was given; the LightningModule has the parts \['net'\]"):
        fit(Module(net()), tmp_path, DiagnosisCallback(every=1, model="body"))
    with pytest.raises(inc_tb.IncTbError, match="writer='runs' was given; expected a SummaryWriter"):
        DiagnosisCallback(every=1, writer="runs")
    with pytest.raises(inc_tb.IncTbError, match="data=3 was given; expected a batch"):
        DiagnosisCallback(every=1, data=3)


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter(images(24, seed=1))


def test_streams_and_several_loaders(tmp_path: Path) -> None:
    trainer = pl.Trainer(
        max_steps=2, accelerator="cpu", default_root_dir=str(tmp_path), enable_progress_bar=False, logger=False,
        enable_model_summary=False, enable_checkpointing=False, callbacks=[DiagnosisCallback(every=2, samples=3)],
    )  # fmt: skip
    module = Module(net())
    module.validation_step = lambda batch, index, dataloader_idx: None  # type: ignore[method-assign]
    trainer.fit(module, DataLoader(Stream(), batch_size=8), [DataLoader(Stream(), batch_size=8), loader(16, seed=2)])
    assert_same(inc_tb.load(tmp_path / "quantization").diagnosis, inc_tb.diagnose(None, module, first(3, seed=1)))


OTHER_PACKAGE = """
import sys, warnings
warnings.simplefilter("ignore")
sys.path.insert(0, {root!r})
{before}
from inc_tb.integrations.lightning import DiagnosisCallback
import inc_tb, pytorch_lightning, torch
from pytorch_lightning.loggers import TensorBoardLogger
torch.set_num_threads(1)

class Module(pytorch_lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(4, 2)
    def forward(self, x):
        return self.fc(x)
    def training_step(self, batch, index):
        return self(batch).sum()
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

trainer = pytorch_lightning.Trainer(
    max_epochs=2, accelerator="cpu", enable_progress_bar=False, enable_model_summary=False, enable_checkpointing=False,
    logger=TensorBoardLogger({folder!r}, name="mine"), log_every_n_steps=1,
    callbacks=[DiagnosisCallback(every=2, quantize=lambda m: torch.ao.quantization.quantize_dynamic(m))],
)
trainer.fit(Module(), torch.utils.data.DataLoader(torch.randn(8, 4), batch_size=4))
print(DiagnosisCallback.__mro__[1].__module__, sorted(inc_tb.load(trainer.logger.log_dir).diagnoses))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("before", "base"),
    [
        ("import pytorch_lightning", "pytorch_lightning"),
        ("sys.modules['lightning'] = None", "pytorch_lightning"),
    ],
)
def test_the_other_package(tmp_path: Path, before: str, base: str) -> None:
    text = OTHER_PACKAGE.format(root=str(Path(__file__).parents[2]), folder=str(tmp_path), before=before)
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=False, timeout=PATIENCE_S)
    assert done.stdout.strip() == f"{base}.callbacks.callback [2, 4]", done.stderr


PROCESSES = """
import sys
sys.path.insert(0, {root!r})
from tests.integrations.test_lightning import *
warnings.simplefilter("ignore")
torch.set_num_threads(1)
logger = TensorBoardLogger({folder!r}, name="mine")
module = Module(net())
options = dict(strategy="ddp", devices=2, logger=logger, val_check_interval=1.0)
trainer = fit(module, Path({folder!r}), DiagnosisCallback(every=2), **options)
print("rank", trainer.global_rank, float(sum(p.sum() for p in module.parameters())), flush=True)
"""


@pytest.mark.slow
def test_two_processes(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(PROCESSES.format(root=str(Path(__file__).parents[2]), folder=str(tmp_path / "out")))
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, check=False, timeout=PATIENCE_S
    )
    assert done.returncode == 0, done.stderr
    ends = {line.split()[2] for line in done.stdout.splitlines() if line.startswith("rank")}
    assert len(ends) == 1
    assert runs(tmp_path / "out") == ["mine/version_0"]
    assert steps(tmp_path / "out" / "mine" / "version_0") == [2, 4]
