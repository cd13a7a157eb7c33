"""A real TensorBoard in a real browser: the dashboards that everybody has show our runs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from urllib.parse import quote

import pytest

import inc_tb
from inc_tb.records import GraphNode, OpTable
from tests.browser.chromium import sync_api
from tests.example_run import log_run
from tests.tensorboards import Server, serve

ODD_RUN = "odd é#1 %20 &?+ <b>"  # no quotes: with those TensorBoard's fast loader fails to find its own graph
ODD_OPS = ["/é b//Conv/", 'say "hi"', "x:0", "^y", "a|b`c`*_<b>", "C:\\dir", "line\nbreak"]

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def server(diagnosis: inc_tb.Diagnosis, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    logdir = tmp_path_factory.mktemp("logdir")
    for name, accuracy in (("trial-001", 0.91), ("trial-002", 0.96)):
        log_run(logdir / name, diagnosis, accuracy)
    log_run(logdir / ODD_RUN, renamed(diagnosis), 0.5)
    with serve(logdir) as found:
        found.wait_for_trials(3)
        yield found


def renamed(diagnosis: inc_tb.Diagnosis) -> inc_tb.Diagnosis:
    """The same diagnosis, of a model whose ops have odd names."""
    names = dict(zip(diagnosis.ops["name"], ODD_OPS, strict=True))
    table = OpTable(diagnosis.ops.columns, [diagnosis.ops[c].copy() for c in diagnosis.ops])
    table["name"][:] = ODD_OPS
    graph = [GraphNode(names[node.name], node.type, [names[name] for name in node.inputs]) for node in diagnosis.graph]
    return inc_tb.Diagnosis(table, graph=graph, reference="é.onnx", quantized="ü.onnx", samples=16)


def test_time_series_shows_the_worst_ops(server: Server, page: sync_api.Page, diagnosis: inc_tb.Diagnosis) -> None:
    page.goto(f"{server.url}?tagFilter={quote('^added_sqnr_db/conv')}#timeseries")
    cards = page.locator("scalar-card")
    sync_api.expect(cards).to_have_count(2)
    worst = cards.filter(has_text="conv2")
    for run in ("trial-001", "trial-002"):
        sync_api.expect(worst).to_contain_text(run)
        shown = re.search(rf"{run}\s+([\d.]+)", worst.inner_text())
        assert shown is not None
        assert float(shown[1]) == pytest.approx(diagnosis.ops["added_sqnr_db"][2], abs=1e-4)


def test_histograms_stand_side_by_side(server: Server, page: sync_api.Page) -> None:
    page.goto(f"{server.url}#histograms&tagFilter={quote('^activations/conv1/Conv$')}")
    for run in ("fp32", "trial-001", "trial-002"):
        chart = page.locator("tf-histogram-loader").filter(has_text=re.compile(rf"{run}(?!-)")).first
        sync_api.expect(chart).to_contain_text("activations/conv1/Conv")
        sync_api.expect(chart.locator("g.histogram path").first).to_have_attribute("d", re.compile("^M.*L"))


def test_text_shows_the_summary(server: Server, page: sync_api.Page) -> None:
    page.goto(f"{server.url}#text")
    sync_api.expect(page.get_by_role("heading", name="1. outlier_channels").first).to_be_visible()
    sync_api.expect(page.locator("td code", has_text="/conv2/Conv").first).to_be_visible()
    sync_api.expect(page.get_by_text("nodes_to_exclude").first).to_be_visible()


def test_hparams_shows_the_trials(server: Server, page: sync_api.Page) -> None:
    page.goto(f"{server.url}#hparams")
    for shown in ("trial-001", "trial-002", ODD_RUN, "0.91000", "0.96000", "minmax", "accuracy_drop", "latency_ms"):
        sync_api.expect(page.get_by_text(shown, exact=True).first).to_be_visible()
    assert page.get_by_text("added_sqnr_db").count() == 0


def open_graph(server: Server, page: sync_api.Page, run: str) -> None:
    page.goto(f"{server.url}#graphs")
    choose(page, 0, run)
    sync_api.expect(page.locator("g.node").first).to_be_visible()


def choose(page: sync_api.Page, menu: int, item: str) -> None:
    """Menus close again when their items arrive."""
    wanted = page.locator("tf-graph-controls paper-item:visible", has_text=item)
    for _ in range(10):
        page.locator("tf-graph-controls paper-dropdown-menu").nth(menu).click()
        with suppress(sync_api.TimeoutError):
            wanted.click(timeout=5000)
            return
    raise AssertionError(f"no {item} in menu {menu}")


def nodes(page: sync_api.Page) -> list[str]:
    return page.locator("g.node").evaluate_all("found => found.map(node => node.getAttribute('data-name'))")


def test_graphs_shows_the_model_in_the_colors_of_its_noise(server: Server, page: sync_api.Page) -> None:
    open_graph(server, page, "trial-001")
    sync_api.expect(page.locator("g.node[data-name=conv2]")).to_be_visible()
    assert nodes(page) == ["conv1", "conv2", "pool", "Flatten", "fc"]
    choose(page, 1, "noise at step 0")
    page.get_by_text("Compute time").first.click()
    fill = {name: page.locator(f"g.node[data-name={name}] rect").first for name in ("conv2", "fc")}
    sync_api.expect(fill["conv2"]).to_have_css("fill", "rgb(251, 106, 74)")  # both ends of TensorBoard's scale
    sync_api.expect(fill["fc"]).to_have_css("fill", "rgb(255, 245, 240)")


def test_graphs_takes_odd_names(server: Server, page: sync_api.Page) -> None:
    open_graph(server, page, ODD_RUN)
    sync_api.expect(page.locator("g.node", has_text="_y")).to_be_visible()
    assert len(nodes(page)) == len(ODD_OPS)
    assert page.locator("g.edge").count() == len(ODD_OPS) - 1
