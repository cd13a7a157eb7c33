"""The model's graph, in a real TensorBoard with real logs."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

import inc_tb
from tests import made_runs
from tests.browser.chromium import sync_api
from tests.browser.tab import drawer, open_tab
from tests.tensorboards import Server, serve
from tests.waiting import until

expect = sync_api.expect
pytestmark = pytest.mark.browser

TALL = made_runs.make_diagnosis(400, detail=8)
MANY = made_runs.make_diagnosis(5000, detail=32)
RUN = "layer.0 … layer.22"  # 500 layers are 22 runs of consecutive ones


@pytest.fixture(scope="module")
def server(diagnosis: inc_tb.Diagnosis, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    logdir = tmp_path_factory.mktemp("logdir")
    for name, logged in (("small", diagnosis), ("tall", TALL), ("large", MANY)):
        with inc_tb.SummaryWriter(logdir / name) as writer:
            writer.add_diagnosis(logged)
    with serve(logdir) as found:
        found.wait_for_records({"small": "graph", "tall": "graph", "large": "graph"})
        yield found


def open_graph(page: sync_api.Page, server: Server, run: str = "small", **link: str) -> sync_api.FrameLocator:
    frame = open_tab(page, server, view="graph", run=run, **link)
    expect(canvas(frame)).to_be_visible()
    return frame


def canvas(frame: sync_api.FrameLocator) -> sync_api.Locator:
    return frame.get_by_role("group", name="Model graph")


def nodes(frame: sync_api.FrameLocator) -> sync_api.Locator:
    """Ops and groups, without the buttons that open and close groups."""
    return canvas(frame).locator("button.graph-node")


def node(frame: sync_api.FrameLocator, name: str) -> sync_api.Locator:
    """An op by its name, or a group as "Group …"."""
    return nodes(frame).and_(canvas(frame).locator(f'[aria-label^="{name}, "]'))


def seen(frame: sync_api.FrameLocator) -> sync_api.Locator:
    return frame.get_by_role("status").filter(has_text="drawn")


def middle(found: sync_api.Locator) -> tuple[float, float]:
    box = found.bounding_box()
    assert box is not None
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2


def expect_centered(frame: sync_api.FrameLocator, name: str) -> None:
    """In the middle of what the drawer leaves of the picture."""
    expect(node(frame, name)).to_have_attribute("aria-current", "true")
    assert middle(node(frame, name)) == pytest.approx(middle(canvas(frame)), abs=3)


def decibels(diagnosis: inc_tb.Diagnosis, column: str, row: int) -> str:
    return f"{diagnosis.ops[column][row]:.1f} dB"


def test_ops_and_groups_with_their_values(server: Server, page: sync_api.Page, diagnosis: inc_tb.Diagnosis) -> None:
    frame = open_graph(page, server)
    expect(seen(frame)).to_have_text("7 of 7 ops drawn")
    conv1, conv2 = (decibels(diagnosis, "added_sqnr_db", row) for row in (0, 2))
    expect(nodes(frame)).to_have_count(9)
    for name, value in (
        ("Group conv1", f"2 ops, worst added here {conv1}, worst verdict bad"),
        ("/conv1/Conv", f"Conv, added here {conv1}, bad"),
        ("/conv1/Relu", "Relu, added here has no value, bad"),
        ("Group conv2", f"2 ops, worst added here {conv2}, worst verdict bad"),
        ("/conv2/Conv", f"Conv, added here {conv2}, bad"),
        ("/fc/Gemm", f"Gemm, added here {decibels(diagnosis, 'added_sqnr_db', 6)}, ok"),
    ):
        expect(node(frame, name)).to_have_accessible_name(f"{name}, {value}")
    expect(canvas(frame).locator("svg path[marker-end]")).to_have_count(sum(len(n.inputs) for n in diagnosis.graph))
    color = "found => getComputedStyle(found.parentElement).getPropertyValue('--graph-color')"
    assert "hsl" in node(frame, "/conv2/Conv").evaluate(color)
    assert node(frame, "/fc/Gemm").evaluate(color) == "transparent"


def test_groups_open_and_close(server: Server, page: sync_api.Page) -> None:
    frame = open_graph(page, server)
    frame.get_by_role("button", name="Collapse conv1").click()
    expect(node(frame, "/conv1/Conv")).to_have_count(0)
    expect(node(frame, "Group conv1")).to_have_attribute("aria-expanded", "false")
    expect(seen(frame)).to_have_text("5 of 7 ops drawn, the others in 1 closed group")
    node(frame, "Group conv1").dblclick()
    expect(node(frame, "/conv1/Conv")).to_be_visible()
    frame.get_by_role("button", name="Collapse all").click()
    expect(seen(frame)).to_have_text("3 of 7 ops drawn, the others in 2 closed groups")
    expect(nodes(frame)).to_have_count(5)
    frame.get_by_role("button", name="Expand all").click()
    expect(seen(frame)).to_have_text("7 of 7 ops drawn")


def test_what_is_worst_in_a_tall_graph_is_in_sight_at_first(server: Server, page: sync_api.Page) -> None:
    frame = open_graph(page, server, "tall")
    worst = str(TALL.ops["name"][TALL.worst(1)[0]])
    layer = worst.split("/")[2]
    expect(node(frame, f"Group {layer}")).to_be_in_viewport()
    expect(node(frame, "Group layer.0")).not_to_be_in_viewport()
    card = frame.get_by_role("img", name="Map of the graph")
    expect(card.locator(".graph-map-box")).to_have_count(40)
    box = card.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 2, steps=3)
    page.mouse.up()
    expect(node(frame, "Group layer.0")).to_be_in_viewport()
    frame.get_by_role("button", name=f"Worst: {layer}").click()
    expect(node(frame, worst)).to_be_in_viewport()
    assert middle(node(frame, worst)) == pytest.approx(middle(canvas(frame)), abs=3)


def test_color_by_another_column(server: Server, page: sync_api.Page, diagnosis: inc_tb.Diagnosis) -> None:
    frame = open_graph(page, server)
    by = frame.get_by_label("Color by")
    by.select_option("total_sqnr_db")
    total = decibels(diagnosis, "total_sqnr_db", 6)
    expect(node(frame, "/fc/Gemm")).to_have_accessible_name(f"/fc/Gemm, Gemm, total {total}, ok")
    gemm = canvas(frame).locator(".graph-item").filter(has_text="fc/Gemm")
    expect(gemm.locator(".graph-value")).to_have_text(f"Gemm · {total}")
    assert "hsl" in node(frame, "/fc/Gemm").evaluate(
        "found => getComputedStyle(found.parentElement).getPropertyValue('--graph-color')"
    )
    assert "metric=total_sqnr_db" in page.url
    by.select_option("params")
    ends = [f"{int(value):,}" for value in diagnosis.ops["params"][[0, 1]]]
    expect(node(frame, "Group conv1")).to_have_accessible_name(
        f"Group conv1, 2 ops, {by.locator('option:checked').inner_text().partition(' (')[0]} "
        f"{ends[1]} to {ends[0]}, worst verdict bad"
    )
    by.select_option("verdict")
    expect(gemm.locator(".graph-value")).to_have_text("Gemm · ok")


def test_color_by_kinds(server: Server, page: sync_api.Page) -> None:
    frame = open_graph(page, server)
    by = frame.get_by_label("Color by")
    assert {"name", "unit", "reason"}.isdisjoint(by.locator("option").evaluate_all("all => all.map(o => o.value)"))
    by.select_option("type")
    legend = frame.get_by_role("list", name="Colors").get_by_role("listitem")
    expect(legend).to_have_text(["Conv", "Flatten", "Gemm", "GlobalAveragePool", "Relu"])
    expect(node(frame, "Group conv1")).to_have_accessible_name("Group conv1, 2 ops, type 2 kinds, worst verdict bad")
    color = "found => getComputedStyle(found.parentElement).getPropertyValue('--graph-color')"
    first, other, same = (node(frame, op).evaluate(color) for op in ("/conv1/Conv", "/conv1/Relu", "/conv2/Conv"))
    assert first == same != other
    assert legend.first.locator("span").evaluate("found => found.style.background") != ""
    by.select_option("block")
    expect(node(frame, "Group conv1")).to_have_accessible_name("Group conv1, 2 ops, block /conv1, worst verdict bad")
    by.select_option("weight_granularity")
    expect(node(frame, "/fc/Gemm")).to_have_accessible_name("/fc/Gemm, Gemm, weight scales per tensor, ok")
    gemm = canvas(frame).locator(".graph-item").filter(has_text="fc/Gemm")
    expect(gemm.locator(".graph-value")).to_have_text("Gemm · per tensor")
    expect(node(frame, "Group conv1")).to_have_accessible_name(
        "Group conv1, 2 ops, weight scales per tensor in 1, worst verdict bad"
    )
    assert "paint=weight_granularity" in page.url
    page.reload()
    expect(node(frame, "/fc/Gemm")).to_have_accessible_name("/fc/Gemm, Gemm, weight scales per tensor, ok")
    expect(by).to_have_value("weight_granularity")
    by.select_option("total_sqnr_db")
    expect(node(frame, "/fc/Gemm")).to_have_accessible_name(re.compile("total .* dB"))
    assert "paint=" not in page.url


def test_why_a_node_has_no_value(server: Server, page: sync_api.Page, diagnosis: inc_tb.Diagnosis) -> None:
    frame = open_graph(page, server)
    node(frame, "/conv1/Relu").hover()
    why = diagnosis.ops.why_null("added_sqnr_db", 1)
    expect(frame.get_by_role("tooltip")).to_contain_text(f"added here: no value ({why})")


def test_selecting_opens_the_detail(server: Server, page: sync_api.Page) -> None:
    frame = open_graph(page, server)
    node(frame, "/conv2/Conv").click()
    expect(drawer(frame, "/conv2/Conv").get_by_role("img", name="Activation histogram")).to_be_visible()
    expect(node(frame, "/conv2/Conv")).to_have_accessible_name(re.compile(", selected$"))
    expect(node(frame, "/conv1/Relu")).to_have_accessible_name(re.compile(", producer of the selected op$"))
    expect(node(frame, "/conv2/Relu")).to_have_accessible_name(re.compile(", consumer of the selected op$"))
    drawer(frame, "/conv2/Conv").get_by_role("region", name="Edge").get_by_role("button", name="/conv1/Relu").click()
    expect(drawer(frame, "/conv1/Relu")).to_be_visible()
    expect_centered(frame, "/conv1/Relu")
    frame.get_by_role("button", name="Collapse conv1").click()
    expect(node(frame, "Group conv1")).to_have_accessible_name(re.compile(", contains the selected op$"))
    frame.get_by_role("button", name="Center selection").click()
    expect_centered(frame, "/conv1/Relu")


def test_find_an_op(server: Server, page: sync_api.Page) -> None:
    frame = open_graph(page, server)
    frame.get_by_role("button", name="Collapse all").click()
    box = frame.get_by_role("searchbox", name="Find op")
    box.fill("conv relu")
    found = frame.get_by_role("listbox", name="Found ops").get_by_role("option")
    expect(found).to_have_text(["/conv1/Relu Relu", "/conv2/Relu Relu"])
    page.keyboard.press("ArrowDown")
    expect(found.nth(1)).to_have_attribute("aria-selected", "true")
    page.keyboard.press("Enter")
    expect(drawer(frame, "/conv2/Relu")).to_be_visible()
    expect_centered(frame, "/conv2/Relu")
    box.fill("nothing is called so")
    expect(frame.get_by_text("no op has these words in its name")).to_be_visible()


def test_keyboard(server: Server, page: sync_api.Page) -> None:
    frame = open_graph(page, server)
    node(frame, "Group conv1").focus()
    for key, name in (
        ("ArrowDown", "/conv1/Conv"), ("ArrowDown", "/conv1/Relu"), ("ArrowDown", "/conv2/Conv"),
        ("ArrowUp", "/conv1/Relu"), ("ArrowRight", "Group conv2"), ("ArrowLeft", "/conv1/Relu"),
        ("End", "/fc/Gemm"), ("ArrowUp", "/Flatten"), ("Home", "Group conv1"),
    ):  # fmt: skip
        page.keyboard.press(key)
        expect(node(frame, name)).to_be_focused()
    page.keyboard.press("Enter")
    expect(node(frame, "Group conv1")).to_have_attribute("aria-expanded", "false")
    expect(node(frame, "Group conv1")).to_be_focused()
    page.keyboard.press("End")
    page.keyboard.press("Enter")
    expect(drawer(frame, "/fc/Gemm")).to_be_visible()
    page.keyboard.press("Escape")
    expect(drawer(frame, "/fc/Gemm")).to_have_count(0)
    world = canvas(frame).locator(".graph-world")
    scale = "found => new DOMMatrix(getComputedStyle(found).transform).a"
    before = world.evaluate(scale)
    page.keyboard.press("-")
    page.keyboard.press("-")
    until(lambda: world.evaluate(scale) == pytest.approx(before / 1.25**2))
    canvas(frame).focus()
    left = middle(node(frame, "/fc/Gemm"))[0]
    page.keyboard.press("ArrowRight")
    until(lambda: middle(node(frame, "/fc/Gemm"))[0] == pytest.approx(left - 60, abs=1))


def test_five_thousand_ops(server: Server, page: sync_api.Page) -> None:
    frame = open_graph(page, server, "large")
    expect(seen(frame)).to_have_text("0 of 5,000 ops drawn, the others in 22 closed groups")
    added = MANY.ops["added_sqnr_db"]
    expect(node(frame, f"Group {RUN}")).to_have_accessible_name(
        re.compile(f"^Group {RUN}, 230 ops, worst added here {added[:230].min():.1f} dB, worst verdict ")
    )
    frame.get_by_role("button", name=f"Expand {RUN}").click()
    expect(seen(frame)).to_have_text("0 of 5,000 ops drawn, the others in 44 closed groups")
    frame.get_by_role("button", name="Expand layer.0", exact=True).click()
    expect(seen(frame)).to_have_text("4 of 5,000 ops drawn, the others in 45 closed groups")
    expect(node(frame, "/encoder/layer.0/Add")).to_have_accessible_name(re.compile(f"added here {added[3]:.1f} dB"))
    frame.get_by_role("button", name=f"Collapse {RUN}").click()
    expect(seen(frame)).to_have_text("0 of 5,000 ops drawn, the others in 22 closed groups")
    frame.get_by_role("searchbox", name="Find op").fill("layer.321/mlp/up")
    page.keyboard.press("Enter")
    expect(drawer(frame, "/encoder/layer.321/mlp/up/MatMul")).to_be_visible()
    expect_centered(frame, "/encoder/layer.321/mlp/up/MatMul")


def test_a_picture_holds_so_many(server: Server, page: sync_api.Page) -> None:
    frame = open_graph(page, server, "large")
    frame.get_by_role("button", name="Expand all").click()
    expect(frame.get_by_role("alert")).to_contain_text("a picture holds at most 1,500 nodes")
    expect(seen(frame)).not_to_have_text("0 of 5,000 ops drawn, the others in 22 closed groups")
    found = re.fullmatch(r"([\d,]+) of 5,000 ops drawn, the others in (\d+) closed groups", seen(frame).inner_text())
    assert found is not None
    assert 500 < int(found[1].replace(",", "")) + int(found[2]) <= 1500
    frame.get_by_role("button", name="Collapse all").click()
    expect(node(frame, "Group encoder")).to_have_attribute("aria-expanded", "false")
    expect(frame.get_by_role("alert")).to_have_count(0)
