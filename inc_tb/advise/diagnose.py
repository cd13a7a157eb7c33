"""Two models and data in, a diagnosis out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from os import PathLike
from typing import Any

from inc_tb.advise.given import Given, any_quantized
from inc_tb.advise.judge import judge
from inc_tb.data import is_one_batch, open_for
from inc_tb.engines.named import On, opened, refuse_together
from inc_tb.errors import UsageError
from inc_tb.frameworks.models import loaded, open_pair
from inc_tb.frameworks.ops import Array, Op
from inc_tb.frameworks.protocols import Adapter
from inc_tb.frameworks.registry import describe
from inc_tb.measure.collect import Progress, by_op, collect, collect_with_others
from inc_tb.measure.details import details_of
from inc_tb.measure.diagnosis import Diagnosis
from inc_tb.measure.op_table import op_table
from inc_tb.measure.origin import origin_of
from inc_tb.measure.previews import Previews
from inc_tb.measure.shards import Collected, Shard
from inc_tb.measure.tokens import Kind, Tokenizer, TokenWatch
from inc_tb.records import Origin, Tokens, plural


def diagnose(
    reference: Any,
    quantized: Any,
    batches: str | PathLike[str] | Mapping[str, Array] | Array | Iterable[Any],
    *,
    memory_budget: int | None = None,
    batch_size: int | None = None,
    distributed: bool = False,
    progress: Progress | None = None,
    tokenizer: Tokenizer | None = None,
    language: Kind | None = None,
    on: On | None = None,
    previews: bool = True,
) -> Diagnosis:
    """Compare a quantized model with its reference, op by op.

    Models are paths or objects; for a PyTorch model in quantization-aware training the reference may be None, which is
    the same model without its fake quantization. `batches` yields mappings from input name to array (or plain arrays
    for a model with one input); one batch by itself, or a path as for `--data`, works too. Only one batch is held.
    What a sample takes is measured; as many run at once, in as many passes, as fit `memory_budget` bytes beside the
    models: 1 GiB, or half of what is free where that is less. `batch_size` says how many samples run at once instead.
    With `distributed` every process of torch.distributed calls this with its own shard of the batches, and all get the
    diagnosis of the whole. With `on` the batches are shared among workers: those of "processes:4", "ray://…", "dask://…",
    or of an executor. `progress` is called with the number of samples done so far. Suggestions are those of the
    statistics: what they do to the output `inc_tb.probe` measures.
    Of a model that gets `input_ids` and gives a score for each token, `Diagnosis.tokens` says what the reader of its
    text notices, in the words of the `tokenizer`; `language` says how it was trained where the data do not tell.
    Small `previews` of the worst samples (images, sound, text) are part of it, and of its log, unless that is False.
    """
    names = _names(reference, quantized)
    if on is not None:
        from inc_tb.advise.shares import diagnose_on  # which does what is here in every worker

        refuse_together(on, distributed=distributed, tokenizer=tokenizer, language=language)
        with opened(on) as engine:
            return diagnose_on(
                engine, (reference, quantized), batches, names=names, batch_size=batch_size,
                memory_budget=memory_budget, progress=progress,
            )  # fmt: skip
    reference, quantized = loaded(reference), loaded(quantized)
    given = Given(reference, quantized, names)
    given.check_files()
    adapter = open_pair(reference, quantized, memory_budget=memory_budget, batch_size=batch_size)
    return diagnose_adapted(
        adapter, _opened(batches, adapter), (reference, quantized), names=names, given=given, distributed=distributed,
        progress=progress, watch=token_watch(tokenizer, language), previews=previews,
    )  # fmt: skip


def compare(reference: Any, quantized: Any, batches: Any) -> Diagnosis:
    """The same for those who have made the one of the other, and know that the two may be alike."""
    adapter = open_pair(reference, quantized)
    models = reference, quantized
    return diagnose_adapted(adapter, _opened(batches, adapter), models, names=_names(*models))


def diagnose_adapted(
    adapter: Adapter,
    batches: Iterable[Any],
    models: tuple[Any, Any] | None = None,
    *,
    names: tuple[str, str],
    given: Given | None = None,
    distributed: bool = False,
    progress: Progress | None = None,
    watch: TokenWatch | None = None,
    previews: bool = False,
) -> Diagnosis:
    """The same for `models` that are open already; `names` are what the log calls them.

    Where they were `given` by somebody they must be such as can be meant.
    """
    watch = watch or TokenWatch()
    shown = Previews(previews, watch.decode)
    measured = measure_adapted(
        adapter, batches, given, distributed=distributed, progress=progress, watch=watch, previews=shown
    )
    origin = None if models is None else origin_of(models, measured, measured_how(adapter, measured))
    return diagnosed(measured, adapter.ops(), adapter.framework, names, adapter.notes, origin, watch.found())


def measure_adapted(
    adapter: Adapter,
    batches: Iterable[Any],
    given: Given | None = None,
    *,
    distributed: bool = False,
    progress: Progress | None = None,
    watch: TokenWatch | None = None,
    previews: Previews | None = None,
) -> Shard:
    """All that is to be known of these samples."""
    check = given.check_ops if given is not None else None
    if distributed:
        measured = collect_with_others(adapter, batches, progress, check, previews)
    else:
        measured = collect(adapter, batches, progress, check, watch, previews)
    if given is not None:
        given.check_values(_differs(measured.stats))
    return measured


def measured_how(adapter: Adapter, measured: Shard) -> dict[str, Any]:
    """What else its numbers depend on: dynamic ranges are those of a batch."""
    return {"samples": measured.samples, "batch_size": adapter.samples_at_once}


def diagnosed(
    measured: Shard, ops: Sequence[Op], framework: str, names: tuple[str, str], notes: Sequence[str],
    origin: Origin | None, tokens: Tokens | None = None,
) -> Diagnosis:  # fmt: skip
    """What follows from what was measured."""
    measurements = by_op(ops, measured.stats)
    suggestions, verdicts = judge(measurements, framework)
    return Diagnosis(
        op_table(measurements, verdicts),
        suggestions,
        *details_of(ops, measured.stats),
        *names,
        framework,
        measured.samples,
        [*notes, *_notes(ops, measured.stats)],
        tokens,
        origin,
        measured.by_sample.stored(),
    )


def token_watch(tokenizer: Tokenizer | None, language: Kind | None = None) -> TokenWatch:
    if language not in (None, "causal", "masked"):
        raise UsageError(
            f"language={language!r} was given; expected 'causal' or 'masked', or none to tell it by the data."
        )
    if tokenizer is not None and not callable(getattr(tokenizer, "decode", None)):
        raise UsageError(
            f"{describe(tokenizer)} was given as tokenizer; expected an object whose decode() makes text of tokens."
        )
    return TokenWatch(language, None if tokenizer is None else tokenizer.decode)


def _names(reference: Any, quantized: Any) -> tuple[str, str]:
    return "the same without fake quantization" if reference is None else describe(reference), describe(quantized)


def _opened(batches: Any, adapter: Adapter) -> Iterable[Any]:
    if isinstance(batches, str | PathLike):
        return open_for(adapter, batches)
    return [batches] if is_one_batch(batches) else batches


def _notes(ops: Sequence[Op], collected: Collected) -> list[str]:
    """What the reader should know before believing the numbers."""
    notes = []
    if not any_quantized(ops):
        how = (
            "what differs has another cause: weights, types or kernels"
            if _differs(collected)
            else "nothing that is compared differs"
        )
        notes.append(f"nothing is quantized in the second model; {how}")
    elif not _differs(collected):
        notes.append(
            "nothing that is compared differs between the two models; expected the fp32 model, then the quantized one"
        )
    worst = max((s.total("nonfinite_x") for s in collected.values()), default=0.0)
    if worst:
        notes.append(
            f"the fp32 model has up to {plural(int(worst), 'NaN or infinite value')} in one tensor; they are left out"
        )
    return notes


def _differs(collected: Collected) -> bool:
    """Whether any value does, as far as that is known."""
    is_known = any(stats.total("count") for stats in collected.values())
    return not is_known or any(s.total("e2") or s.total("nonfinite_x") for s in collected.values())
