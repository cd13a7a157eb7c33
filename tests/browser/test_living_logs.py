"""Logs as they are in life: being written, damaged, from a newer version, deleted, large, behind a path."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary

import inc_tb
from inc_tb import records
from inc_tb.store import summaries
from inc_tb.store.eventfile import EventFile
from tests.browser.chromium import sync_api
from tests.browser.tab import drawer, head, names, open_tab
from tests.example_run import OPS, batches, log_run, make_models, make_trial
from tests.made_runs import make_diagnosis as make_large
from tests.tensorboards import Server, serve
from tests.waiting import until

expect = sync_api.expect
pytestmark = pytest.mark.browser


def log_elements(folder: Path, tag: str, elements: list[bytes]) -> None:
    file = EventFile(folder)
    file.write(Event(wall_time=1.0, step=0, summary=Summary(value=[summaries.blobs(tag, elements)])))
    file.close()


def reload(page: sync_api.Page) -> None:
    page.locator("app-header-reload button").click()


@contextmanager
def served(page: sync_api.Page, logdir: Path | None, *flags: str) -> Iterator[Server]:
    """The page leaves before the server ends, which it would rightly complain about."""
    with serve(logdir, *flags) as server:
        yield server
        page.goto("about:blank")


def until_listed(server: Server, *expected: str) -> None:
    until(lambda: {run["name"] for run in server.runs()} == set(expected), server.runs)


def option(frame: sync_api.FrameLocator, run: str) -> sync_api.Locator:
    return frame.get_by_role("option").filter(has=frame.get_by_text(run, exact=True))


@pytest.mark.parametrize("loader", ["true", "false"])
def test_a_new_trial_shows_after_a_reload(
    loader: str, diagnosis: inc_tb.Diagnosis, page: sync_api.Page, tmp_path: Path
) -> None:
    log_run(tmp_path / "one", diagnosis)
    with served(page, tmp_path, f"--load_fast={loader}", "--reload_interval=1") as server:
        server.wait_for_trials(1)
        frame = open_tab(page, server, view="ops")
        expect(option(frame, "one")).to_be_visible()
        with inc_tb.SummaryWriter(tmp_path / "two") as writer:  # still open: a search that goes on
            writer.add_diagnosis(diagnosis)
            writer.add_trial(make_trial("two", 0.95))
            server.wait_for_trials(2)
            reload(page)
            expect(option(frame, "two")).to_contain_text("0.9500")
            option(frame, "two").click()
            expect(frame.get_by_role("rowheader", name="/conv2/Conv", exact=True)).to_be_visible()


def test_steps(diagnosis: inc_tb.Diagnosis, page: sync_api.Page, tmp_path: Path) -> None:
    """A training that logs a diagnosis now and then: the newest is shown, the others are behind the slider."""
    better = inc_tb.Diagnosis(**vars(diagnosis))
    better.ops = records.OpTable(diagnosis.ops.columns, [diagnosis.ops[c].copy() for c in diagnosis.ops])
    better.ops["added_sqnr_db"][2] = 33.0
    with inc_tb.SummaryWriter(tmp_path / "qat") as writer:
        for step, found in ((0, diagnosis), (100, diagnosis), (200, better)):
            writer.add_diagnosis(found, step)
    with served(page, tmp_path) as server:
        frame = open_tab(page, server, view="ops")
        row = frame.get_by_role("row").filter(has=frame.get_by_role("rowheader", name="/conv2/Conv", exact=True))
        slider = frame.get_by_role("slider", name="Step")
        expect(slider).to_have_attribute("aria-valuetext", "step 200")
        expect(row).to_contain_text("33.0")
        slider.press("ArrowLeft")
        expect(slider).to_have_attribute("aria-valuetext", "step 100")
        expect(row).to_contain_text(f"{diagnosis.ops['added_sqnr_db'][2]:.1f}")
        assert "step=100" in page.url
        expect(slider.locator("xpath=..")).to_have_text("step 100 of 200")


def test_a_probe_fills_the_table_while_it_runs(page: sync_api.Page, tmp_path: Path) -> None:
    """Each step adds numbers; what it does not write anew is still there, at every step."""
    fp32, int8 = make_models(tmp_path)
    found = inc_tb.diagnose(fp32, int8, batches())
    run = tmp_path / "logs" / "probed"
    with inc_tb.SummaryWriter(run) as writer:
        writer.add_diagnosis(found)
    with served(page, tmp_path / "logs", "--reload_interval=1") as server:
        until_listed(server, "probed")
        frame = open_tab(page, server, view="ops", op="/conv2/Conv")
        detail = drawer(frame, "/conv2/Conv")
        expect(detail.get_by_role("img", name="Activation histogram")).to_be_visible()
        expect(head(frame, "Ops", "sensitivity")).to_have_count(0)
        expect(detail.get_by_role("region", name="Effect at the output")).to_have_count(0)
        probed = inc_tb.probe(fp32, int8, batches(), logdir=run, diagnosis=found).diagnosis
        until(lambda: [run["kinds"]["ops"]["steps"] for run in server.runs()] == [[0, 1]], server.runs)
        reload(page)
        expect(head(frame, "Ops", "sensitivity")).to_be_visible()
        effect = detail.get_by_role("region", name="Effect at the output")
        expect(effect).to_contain_text("recovery")
        expect(frame.get_by_role("slider", name="Step")).to_have_count(0)  # the step is the same diagnosis, with more
        expect(detail.get_by_role("img", name="Activation histogram")).to_be_visible()
        frame.get_by_role("tab", name="Suggestions").click()
        first = frame.get_by_role("article").first
        expect(first).to_contain_text(probed.suggestions[0].because)
        expect(first).to_contain_text("less error at the output")
        expect(first).to_contain_text("error removed")
        frame = open_tab(page, server, view="ops", step="1")
        step = frame.get_by_role("slider", name="Step").locator("xpath=..")
        expect(step).to_have_text("step 1 of 1: with a probe")


def test_what_is_wrong_with_one_run_does_not_touch_the_others(
    diagnosis: inc_tb.Diagnosis, page: sync_api.Page, tmp_path: Path
) -> None:
    log_run(tmp_path / "good", diagnosis)
    log_run(tmp_path / "gone", diagnosis)
    stored = records.encode_table(diagnosis.ops, diagnosis.meta)
    log_elements(tmp_path / "damaged", "quantization/ops", [stored[0], *(blob[:-1] + b"x" for blob in stored[1:])])
    newer = stored[0].replace(f'"version":{records.VERSION}'.encode(), b'"version":99')
    log_elements(tmp_path / "newer", "quantization/ops", [newer, *stored[1:]])
    log_elements(tmp_path / "trial-only", "quantization/trial", records.encode_rows("trial", [make_trial("t")]))
    with served(page, tmp_path, "--reload_interval=1") as server:
        frame = open_tab(page, server, view="ops")
        option(frame, "damaged").click()
        expect(frame.get_by_role("alert")).to_contain_text("record is damaged")
        option(frame, "newer").click()
        expect(frame.get_by_role("alert")).to_contain_text("has version 99, this inc-tb reads up to 2. Update inc-tb.")
        option(frame, "trial-only").click()
        expect(frame.get_by_text("trial-only holds no diagnosis")).to_be_visible()
        option(frame, "gone").click()
        expect(frame.get_by_role("rowheader", name="/fc/Gemm", exact=True)).to_be_visible()
        shutil.rmtree(tmp_path / "gone")
        until_listed(server, "good", "damaged", "newer", "trial-only")
        reload(page)
        expect(frame.get_by_text("The run gone is not there (any more); damaged is shown instead.")).to_be_visible()
        option(frame, "good").click()
        expect(frame.get_by_role("rowheader", name="/fc/Gemm", exact=True)).to_be_visible()
        expect(frame.get_by_role("alert")).to_have_count(0)


def test_behind_a_path_and_with_named_logdirs(diagnosis: inc_tb.Diagnosis, page: sync_api.Page, tmp_path: Path) -> None:
    log_run(tmp_path / "a" / "run", diagnosis)
    log_run(tmp_path / "b" / "run", diagnosis)
    spec = f"--logdir_spec=one:{tmp_path / 'a'},two:{tmp_path / 'b'}"
    with served(page, None, spec, "--path_prefix=/deep/path") as server:
        until_listed(server, "one/run", "two/run")
        assert server.url.endswith("/deep/path/")
        frame = open_tab(page, server, view="ops")
        expect(option(frame, "one/run")).to_be_visible()
        option(frame, "two/run").click()
        frame.get_by_role("rowheader", name="/conv1/Conv", exact=True).click()
        expect(frame.get_by_role("img", name="Activation histogram")).to_be_visible()
        frame.get_by_role("tab", name="Graph").click()
        expect(frame.get_by_text("conv1").first).to_be_visible()


def test_dark_as_tensorboard_is_set(diagnosis: inc_tb.Diagnosis, page: sync_api.Page, tmp_path: Path) -> None:
    log_run(tmp_path / "run", diagnosis)
    with served(page, tmp_path) as server:
        frame = open_tab(page, server, view="ops", dark=True)
        body = frame.locator("body")
        expect(body).to_have_css("background-color", "rgb(48, 48, 48)")
        page.evaluate("document.body.classList.remove('dark-mode')")  # what TensorBoard's own button does
        expect(body).to_have_css("background-color", "rgb(255, 255, 255)")


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    logdir = tmp_path_factory.mktemp("large")
    with inc_tb.SummaryWriter(logdir / "run") as writer:
        writer.add_diagnosis(make_large(20_000, detail=64))
    return logdir


@pytest.mark.slow
def test_twenty_thousand_ops(large: Path, page: sync_api.Page) -> None:
    with served(page, large) as server:
        frame = open_tab(page, server, view="ops")
        expect(frame.get_by_text("20,000 ops")).to_be_visible()
        grid = frame.get_by_role("grid", name="Ops", exact=True)
        assert len(names(frame)) < 100  # only what is in sight is in the document
        assert grid.get_attribute("aria-rowcount") == "20001"
        grid.focus()
        page.keyboard.press("End")
        expect(grid.locator("[aria-rowindex='20001']")).to_be_visible()
        grid.evaluate("grid => grid.scrollTop = grid.scrollHeight / 2")
        expect(grid.locator("[aria-rowindex='10000']")).to_be_visible()
        frame.get_by_role("searchbox", name="Filter ops").fill("layer.1999/ Softmax")
        expect(grid.get_by_role("rowheader")).to_have_text(["/encoder/layer.1999/attention/Softmax"])


def test_nothing_logged_says_what_to_do(page: sync_api.Page, tmp_path: Path) -> None:
    file = EventFile(tmp_path / "run")
    file.write(Event(wall_time=1.0, step=0, summary=Summary(value=[summaries.scalar("loss", 0.5)])))
    file.close()
    with served(page, tmp_path) as server:
        page.route("**/favicon.ico", lambda route: route.fulfill(body=""))  # the frame by itself has none
        page.goto(f"{server.url}data/plugin_entry.html?name=quantization")
        expect(page.get_by_role("heading", name="No quantization runs here yet")).to_be_visible()
        expect(page.get_by_text("inc-tb diagnose fp32.onnx int8.onnx")).to_be_visible()


def test_no_op_is_lost_in_the_python_loader(diagnosis: inc_tb.Diagnosis, page: sync_api.Page, tmp_path: Path) -> None:
    log_run(tmp_path / "run", diagnosis)
    with served(page, tmp_path, "--load_fast=false") as server:
        server.wait_for_trials(1)
        frame = open_tab(page, server, view="ops")
        expect(frame.get_by_role("rowheader", name="/fc/Gemm", exact=True)).to_be_visible()
        assert sorted(names(frame)) == sorted(OPS)


def test_a_comparison_survives_a_visit_to_another_tab(
    diagnosis: inc_tb.Diagnosis, page: sync_api.Page, tmp_path: Path
) -> None:
    """TensorBoard rewrites the address when its tab changes, and keeps one value a key."""
    for run in ("a", "b", "c"):
        log_run(tmp_path / run, diagnosis)
    with served(page, tmp_path) as server:
        until_listed(server, "a", "b", "c")
        frame = open_tab(page, server, view="trials", compare="c|a")
        expect(frame.get_by_role("list", name="Compared runs").get_by_role("listitem")).to_have_count(2)
        page.get_by_role("tab", name="Time Series").click()
        expect(page.locator("metrics-dashboard")).to_be_visible()
        page.get_by_role("tab", name="Quantization").click()
        runs = frame.get_by_role("list", name="Compared runs").get_by_role("listitem")
        expect(runs).to_have_count(2)
        expect(runs.first).to_contain_text("c")


def test_a_page_whose_server_ends_says_so(
    diagnosis: inc_tb.Diagnosis, browser: sync_api.Browser, tmp_path: Path
) -> None:
    """What is known stays; a view whose code was not fetched before says what to do."""
    log_run(tmp_path / "run", diagnosis)
    page = browser.new_page()
    with serve(tmp_path) as server:
        frame = open_tab(page, server, view="ops")
        expect(frame.get_by_role("rowheader", name="/fc/Gemm", exact=True)).to_be_visible()
    frame.get_by_role("tab", name="Graph").click()
    expect(frame.get_by_role("alert")).to_contain_text("Its code could not be fetched")
    frame.get_by_role("button", name="Try again").click()
    expect(
        frame.get_by_text("TensorBoard does not answer. Is it still running? What is shown may be old.")
    ).to_be_visible()
    frame.get_by_role("tab", name="Ops").click()
    expect(frame.get_by_role("rowheader", name="/fc/Gemm", exact=True)).to_be_visible()
    page.close()


def test_a_run_without_a_graph(diagnosis: inc_tb.Diagnosis, page: sync_api.Page, tmp_path: Path) -> None:
    """As a record by itself may be; the detail of its ops works all the same."""
    log_elements(tmp_path / "run", "quantization/ops", records.encode_table(diagnosis.ops, diagnosis.meta))
    with served(page, tmp_path) as server:
        frame = open_tab(page, server, view="ops", op="/fc/Gemm")
        drawer = frame.get_by_role("region", name="/fc/Gemm", exact=True)
        expect(drawer.get_by_role("region", name="Edge")).to_contain_text("nothing of the kind was logged in this run")
        expect(drawer.get_by_role("region", name="Quantization")).to_contain_text("int8")
