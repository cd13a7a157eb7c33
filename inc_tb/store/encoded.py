"""Our own records as values of TensorBoard's summaries."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Collection, Sequence
from typing import Any

from tensorboard.compat.proto.summary_pb2 import Summary

from inc_tb import records
from inc_tb.advise import effects, judge
from inc_tb.advise.configs import recipes_for
from inc_tb.measure.diagnosis import Diagnosis
from inc_tb.profiling import join
from inc_tb.profiling.profile import Profile
from inc_tb.records import Column, Kind, Recipe, RowKind, Suggestion, Trial
from inc_tb.store.summaries import blobs

OF_DIAGNOSIS: tuple[Kind, ...] = (
    "ops", "histograms", "channels", "suggestions", "graph", "tokens", "samples", "previews",
)  # fmt: skip
"""The records that a diagnosis is stored as."""
_EVIDENCE = {column.name: column for column in (*judge.EVIDENCE, *effects.EVIDENCE, *join.EVIDENCE)}


def tag_of(kind: Kind) -> str:
    return f"quantization/{kind}"


def diagnosis_records(diagnosis: Diagnosis, kinds: Collection[Kind] = OF_DIAGNOSIS) -> list[Summary.Value]:
    """These of its records."""
    found = []
    for kind in OF_DIAGNOSIS:
        if kind == "ops" and kind in kinds:
            found.append(blobs(tag_of(kind), records.encode_table(diagnosis.ops, diagnosis.meta)))
        elif kind == "tokens":
            found += [_rows(kind, [diagnosis.tokens])] if diagnosis.tokens is not None and kind in kinds else []
        elif kind == "samples" and kind in kinds:
            held = diagnosis.by_sample
            found += [_rows(kind, held.rows, {"ids": b64encode(held.ids).decode()})] if held else []
        elif kind == "previews":
            shown = diagnosis.by_sample.previews
            found += [_rows(kind, shown)] if shown and kind in kinds else []
        elif kind != "ops" and kind in kinds:
            meta = _about(diagnosis) if kind == "suggestions" else None
            found.append(_rows(kind, getattr(diagnosis, kind), meta))
    return found


def trial_record(trial: Trial) -> Summary.Value:
    return _rows("trial", [trial])


def profile_record(profile: Profile) -> Summary.Value:
    return _rows("profile", profile.rows, profile.meta)


def _rows(kind: RowKind, rows: Sequence[Any], meta: dict[str, Any] | None = None) -> Summary.Value:
    return blobs(tag_of(kind), records.encode_rows(kind, rows, meta))


def _about(diagnosis: Diagnosis) -> dict[str, Any]:
    """What the page needs to know beside the suggestions: how to write their configs, what their evidence means."""
    evidence = described(diagnosis.suggestions)
    return {"recipes": _templates(diagnosis), **({"evidence": evidence} if evidence else {})}


def _templates(diagnosis: Diagnosis) -> list[Recipe]:
    """In the order of the page's list: first the tool which all suggestions have first that keep ops in fp32."""
    found = [fitted.recipe for fitted in recipes_for(diagnosis.framework, diagnosis.ops)]
    firsts = {next(iter(suggestion.recipes), "") for suggestion in diagnosis.suggestions}
    firsts -= {recipe.tool for recipe in found if not recipe.item}
    return sorted(found, key=lambda recipe: firsts != {recipe.tool})


def described(suggestions: Sequence[Suggestion]) -> list[Column]:
    """What the evidence of these suggestions means."""
    used = dict.fromkeys(name for suggestion in suggestions for name in suggestion.evidence)
    return [_EVIDENCE[name] for name in used if name in _EVIDENCE]
