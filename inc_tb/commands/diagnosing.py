"""What `inc-tb diagnose` does, step by step."""

from __future__ import annotations

import contextlib
import shlex
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from rich.markup import escape

from inc_tb.advise.diagnose import diagnose_adapted, token_watch
from inc_tb.advise.given import Given
from inc_tb.advise.shares import Share, diagnose_on
from inc_tb.commands.elsewhere import refuse_with_on, started
from inc_tb.commands.runs import name_of, refuse_taken, run_folder
from inc_tb.commands.sharding import refuse_with_share, share_folder, write_share
from inc_tb.commands.terminal import check_folder, detail, invite, out, print_json, progress_bar
from inc_tb.data import Data, load_function, open_data, open_for, split_function
from inc_tb.engines.models import open_model
from inc_tb.errors import IncTbError, UsageError
from inc_tb.frameworks.models import open_pair
from inc_tb.frameworks.registry import framework_of
from inc_tb.measure.diagnosis import Diagnosis
from inc_tb.records import plural
from inc_tb.show.detail import Detail
from inc_tb.show.sorting import find_sorting
from inc_tb.store.remote import shown
from inc_tb.texts import open_text, open_tokenizer

if TYPE_CHECKING:
    from inc_tb.profiling.profile import Profile
    from inc_tb.search.probe import Probe
    from inc_tb.tuning.rewriting import Rewritten
    from inc_tb.tuning.verify import Verified

_QUICK_S = 15.0
"""What a comparison takes beside which quantizing the model twice is no matter."""


class Asked(NamedTuple):
    """The options of the command, as it declares them."""

    data: str | None
    text: Path | None
    length: int
    tokenizer: str | None
    logdir: Path
    run: str | None
    append: bool
    sort: str | None
    top: int
    samples: int | None
    batch_size: int | None
    memory: int | None
    csv: Path | None
    probe_s: float | None
    profile_runs: int | None
    shard: Share | None
    is_verified: bool
    evaluate: str | None
    on: str | None
    no_previews: bool
    as_json: bool


class Diagnosing:
    def __init__(self, reference: str, quantized: str, asked: Asked) -> None:
        self._names, self._asked = (reference, quantized), asked
        self._check()
        self._scored = load_function(*split_function(asked.evaluate)) if asked.evaluate is not None else None
        self._folder = run_folder(asked.logdir, asked.run, name_of(quantized))
        check_folder(asked.logdir)
        check_folder(asked.csv)
        if asked.run is not None and not asked.append:
            refuse_taken(self._folder, asked.run, self._names, goes_on=bool(asked.probe_s))
        self._models = open_model(reference), open_model(quantized)
        self._given = Given(*self._models, self._names)
        self._given.check_files()
        self._budget = None if asked.memory is None else asked.memory << 20
        self._adapter = open_pair(*self._models, memory_budget=self._budget, batch_size=asked.batch_size)
        for ability, wanted in (("open_switches", asked.probe_s), ("open_timer", asked.profile_runs)):
            if wanted:
                framework_of(self._models[1]).require(ability)
        is_read = asked.text is not None or asked.tokenizer is not None
        self._words = open_tokenizer(asked.tokenizer or reference) if is_read else None
        self._batches = self._opened(asked.batch_size)

    def run(self) -> None:
        if self._asked.shard is not None:
            self._write_share(self._asked.shard)
            return
        self._began = time.monotonic()
        self._engine = started(self._asked.on)
        found = self._probed(self._compared())
        self._comparison, self._complete = found.comparison, found.complete
        self._times, self._found = self._timed(found.diagnosis)
        self._instead = self._without_fp32()
        self._write_files()
        verified, failed = self._verified()
        if self._asked.as_json:
            self._print_json(verified)
        else:
            self._show(verified)
        if failed is not None:  # told once the diagnosis is
            raise failed

    def _check(self) -> None:
        """Before anything takes time."""
        from inc_tb.measure.op_table import COLUMNS

        asked = self._asked
        if asked.sort is not None:
            find_sorting(COLUMNS, asked.sort)
        if (asked.data is None) == (asked.text is None):
            both = "neither was given" if asked.data is None else "both were given"
            raise UsageError(f"expected --data, or --text for a language model; {both}.")
        if asked.shard is not None:
            refuse_with_share(
                append=asked.append, csv=asked.csv, probe=asked.probe_s, profile=asked.profile_runs,
                verify=asked.is_verified,
            )  # fmt: skip
        refuse_with_on(asked.on, shard=asked.shard, text=asked.text, tokenizer=asked.tokenizer)
        if asked.evaluate is not None and not asked.is_verified:
            raise UsageError("--eval was given without --verify; expected both.")

    def _opened(self, batch_size: int | None) -> Data:
        """The data in batches of another size."""
        asked, inputs = self._asked, self._adapter.inputs()
        if asked.text is not None:
            return open_text(asked.text, self._words, inputs, asked.length, batch_size).first(asked.samples)
        if batch_size is None or batch_size == asked.batch_size:
            return open_for(self._adapter, asked.data or "").first(asked.samples)
        return open_data(asked.data or "", inputs, batch_size).first(asked.samples)

    def _write_share(self, share: Share) -> None:
        asked = self._asked
        length = None if asked.text is None else asked.length
        told = {"batch-size": asked.batch_size, "samples": asked.samples, "length": length}
        place = share_folder(asked.logdir, asked.run, self._names[1])
        write_share(
            share, self._adapter, self._batches, self._models, self._names, self._given, place, told,
            as_json=asked.as_json,
        )  # fmt: skip

    def _compared(self) -> Diagnosis:
        asked = self._asked
        with progress_bar("comparing samples", self._batches.samples) as progress:
            if self._engine is not None:
                return diagnose_on(
                    self._engine, self._names, asked.data, names=self._names, samples=asked.samples,
                    batch_size=asked.batch_size, memory_budget=self._budget, progress=progress,
                )  # fmt: skip
            return diagnose_adapted(
                self._adapter, self._batches, self._models, names=self._names, given=self._given, progress=progress,
                watch=token_watch(self._words), previews=not asked.no_previews,
            )  # fmt: skip

    def _probed(self, found: Diagnosis) -> Probe:
        """Logged as soon as it is known, and again by a probe that was asked for."""
        from inc_tb.search.brief import budget_after, probe_briefly
        from inc_tb.search.probe import Probe, probe
        from inc_tb.store.writer import SummaryWriter

        probed, asked = Probe(found), self._asked
        with progress_bar("probing the output") as progress:
            if asked.probe_s is None:
                budget_s = budget_after(time.monotonic() - self._began)
                probed = probe_briefly(self._models, self._batches, found, budget_s, progress)
            with SummaryWriter(self._folder, whole=True) as writer:
                writer.add_diagnosis(probed.diagnosis)
            if asked.probe_s:
                first, second = self._models if self._engine is None else self._names  # which workers open
                probed = probe(
                    first, second, self._batches, budget_s=asked.probe_s, logdir=self._folder, diagnosis=found,
                    progress=progress, on=self._engine,
                )  # fmt: skip
        return probed

    def _timed(self, found: Diagnosis) -> tuple[Profile | None, Diagnosis]:
        from inc_tb.profiling.run import profile
        from inc_tb.store.writer import SummaryWriter

        runs = self._asked.profile_runs
        if runs is None:
            return None, found
        with progress_bar("timing runs", runs) as progress:
            times = profile(self._models[0], self._opened(1), quantized=self._models[1], runs=runs, progress=progress)
        found = times.join(found)
        with SummaryWriter(self._folder, whole=True) as writer:
            writer.add_profile(times)
            writer.update_diagnosis(found)
        return times, found

    def _without_fp32(self) -> tuple[Rewritten, Path] | None:
        """A rewrite that cures as well, and its record; where looking for it takes little beside the rest."""
        from inc_tb.tuning.rewriting import rewritten_instead

        asked = self._asked
        is_seen = (asked.as_json or detail() is not Detail.QUIET) and asked.probe_s != 0
        if not (asked.is_verified or (is_seen and time.monotonic() - self._began < _QUICK_S)):
            return None
        with contextlib.redirect_stdout(sys.stderr):
            found = rewritten_instead(*self._models, self._batches, self._found)
        return None if found is None else (found, found.write(self._folder))

    def _write_files(self) -> None:
        from inc_tb.show.diagnoses import write_lists
        from inc_tb.store.workspace import put_tables_above

        put_tables_above(self._folder, self._asked.logdir, self._found)
        write_lists(self._folder, self._found)
        if self._asked.csv is not None:
            self._found.to_csv(self._asked.csv)

    def _verified(self) -> tuple[Verified | None, IncTbError | None]:
        """Or why not."""
        from inc_tb.tuning.verify import verify

        if not self._asked.is_verified:
            return None, None
        try:
            with contextlib.redirect_stdout(sys.stderr):  # what the user's own function prints is no part of the answer
                return verify(*self._models, self._batches, self._found, self._scored), None
        except IncTbError as error:
            return None, error

    def _print_json(self, verified: Verified | None) -> None:
        told: dict[str, Any] = self._found.to_json()
        if self._comparison:
            told |= {"comparison": self._comparison, "complete": self._complete}
        if verified is not None:
            told["verified"] = verified
        if self._instead is not None:
            found, record = self._instead
            told["without_fp32"] = {"cure": str(record), "found": found}
        if self._times is not None:
            told["profile"] = self._times.to_json()
        print_json(told)

    def _show(self, verified: Verified | None) -> None:
        from inc_tb.show.diagnoses import show_diagnosis
        from inc_tb.show.profiles import show_profile
        from inc_tb.show.trials import show_comparison
        from inc_tb.show.verified import show_verified

        found, top, is_quiet = self._found, self._asked.top, detail() is Detail.QUIET
        show_diagnosis(
            out, found, sort=self._asked.sort, top=top, detail=detail(), comparison=self._comparison,
            next_step=f"inc-tb suggest {shlex.quote(shown(self._folder))}" if found.suggestions else "",
        )  # fmt: skip
        if not is_quiet:
            if self._times is not None:
                show_profile(out, self._times, top)
            show_comparison(out, self._comparison)
        if verified is not None:
            show_verified(out, verified)
        if not is_quiet:
            self._show_instead()
        logged = f"{plural(found.ops.count, 'op')} and {plural(found.samples, 'sample')}"
        out.print(f"Logged {logged} to [bold]{escape(shown(self._folder))}[/]. ", end="")
        invite(self._asked.logdir)

    def _show_instead(self) -> None:
        from inc_tb.show.verified import show_rewritten

        if self._instead is None:
            return
        found, record = self._instead
        cure = f"--cure {shlex.quote(shown(record))} -o rewritten{found.suffix}"
        show_rewritten(out, found, f"inc-tb apply {shlex.quote(self._names[0])} {cure}")
