"""Suggestions and the configs that follow them, in a real TensorBoard with real logs."""

from __future__ import annotations

import ast
import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest

import inc_tb
from inc_tb import records
from inc_tb.advise.configs import fitted
from inc_tb.frameworks.formats import Settings
from inc_tb.frameworks.templates import write
from inc_tb.profiling.profile import Profile
from inc_tb.records import Effect, ProfileRow, Suggestion
from inc_tb.store import summaries
from tests.browser.chromium import sync_api
from tests.browser.tab import drawer, open_tab, press_copy
from tests.example_run import OPS, make_diagnosis, make_trial
from tests.sources.workspaces import unpack
from tests.tensorboards import Server, serve

expect = sync_api.expect
pytestmark = pytest.mark.browser

GOLDEN = Path(__file__).parents[1] / "golden" / "v1"
RECIPES = [f.recipe for f in fitted("onnx", Settings(per_channel=False, activation="int8", weight="int8"))]
TOOLS = {recipe.tool: recipe.label for recipe in RECIPES}
GONE = "/gone/Conv"
TIMES = [
    ProfileRow("/conv1/Conv", difference_us=-50.0, differs=True),
    ProfileRow("/conv2/Conv", ops=["/conv2/Relu"], difference_us=-1900.0, differs=True),
    ProfileRow("/Flatten", difference_us=7.0, differs=False),
    ProfileRow("/fc/Gemm", difference_us=30.0, differs=True),
]
EVIDENCE = [
    {"name": "op", "type": "op"},
    {"name": "heavy", "type": "weight_channels"},
    {"name": "place", "type": "text", "label": "layer", "help": "Where in the model."},
]
HEAVY = Suggestion(
    ["/conv1/Conv"], "heavy_weights", "the weights of channel 1 are heavy",
    {"op": "/conv1/Conv", "heavy": [1], "place": "the first", "never_described": 3}, rank=1,
)  # fmt: skip
OVERLAPPING = [["/fc/Gemm", "/conv2/Relu", "/fc/Gemm"], ["/conv2/Relu", "/conv1/Conv"], [GONE, "/Flatten"]]


@pytest.fixture(scope="module")
def suggestion(diagnosis: inc_tb.Diagnosis) -> Suggestion:
    (found,) = diagnosis.suggestions
    return found


@pytest.fixture(scope="module")
def tensors(diagnosis: inc_tb.Diagnosis) -> dict[str, str]:
    return {node.name: node.tensor for node in diagnosis.graph}


@pytest.fixture(scope="module")
def server(
    diagnosis: inc_tb.Diagnosis, tensors: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """trial-002 tried what trial-001 is told to; `several` has suggestions that overlap and one with a wrong name;
    `described` has a rule of somebody else.
    """
    logdir = tmp_path_factory.mktemp("logdir")
    several = [overlapping(rank, ops, tensors) for rank, ops in enumerate(OVERLAPPING, start=1)]
    for name, accuracy, logged, fallback in (
        ("trial-001", 0.91, diagnosis, ["/fc/Gemm"]),
        ("trial-002", 0.965, diagnosis, diagnosis.suggestions[0].ops),
        ("described", 0.91, diagnosis, []),
        ("several", 0.9, replace(diagnosis, suggestions=several), []),
        ("vain", 0.9, replace(diagnosis, suggestions=[several[0], in_vain(several[1])]), []),
        ("cured", 0.9, replace(diagnosis, suggestions=[cured_by_setting(tensors), several[1]]), []),
        ("healthy", 0.97, make_diagnosis(tmp_path_factory.mktemp("healthy"), outlier=1.0), []),
    ):
        with inc_tb.SummaryWriter(logdir / name) as writer:
            writer.add_diagnosis(logged)
            writer.add_trial(msgspec.structs.replace(make_trial(name, accuracy), fallback=fallback))
            if name == "several":
                writer.add_profile(Profile(TIMES, ProfileRow("")))
            if name == "described":
                meta = {"recipes": RECIPES, "evidence": EVIDENCE}
                rows = records.encode_rows("suggestions", [HEAVY], meta)
                writer._write([summaries.blobs("quantization/suggestions", rows)], 1)
    inc_tb.import_workspace(
        unpack(tmp_path_factory.mktemp("imported"), ["v26_tf_hard_mse_tune", "v26_tf_hard_diag"]), logdir
    )
    shutil.copytree(GOLDEN, logdir / "v1")
    with serve(logdir) as found:
        runs = ["trial-001", "trial-002", "described", "several", "vain", "cured", "healthy", "v1"]
        found.wait_for_records(dict.fromkeys(runs, "trial"))
        yield found


def recipes(ops: list[str], tensors: dict[str, str]) -> dict[str, str]:
    return {recipe.tool: write(recipe, ops, tensors) for recipe in RECIPES}


def overlapping(rank: int, ops: list[str], tensors: dict[str, str]) -> Suggestion:
    effects = [
        Effect("recovers", "less added noise", 0.25 / rank, "share", "estimated", "a guess"),
        Effect("costs", "larger weights", 1000.0 * rank, "bytes", "counted", "4 bytes a weight"),
        Effect("recovers", "less time", 700.0 * rank, "µs", "measured", "fp32 minus int8"),
    ]
    reason = f"reason number {rank}"
    return Suggestion(ops, f"rule_{rank}", reason, {"kurtosis": 40.0}, recipes(ops, tensors), "", rank, effects)


def in_vain(suggestion: Suggestion) -> Suggestion:
    measured = Effect("recovers", "less error at the output", 0.001, "share", "measured", "with these in fp32", "error")
    return msgspec.structs.replace(suggestion, effects=[measured])


def cured_by_setting(tensors: dict[str, str]) -> Suggestion:
    ops = ["/conv1/Conv", "/fc/Gemm"]
    texts = recipes(ops, tensors)
    first = "onnxruntime-per-channel"
    return Suggestion(ops, "weights_per_tensor", "one setting cures it", {}, {first: texts[first], **texts}, "", 1)


def article(frame: sync_api.FrameLocator, rank: int) -> sync_api.Locator:
    """With what it shows on demand."""
    found = frame.get_by_role("article").nth(rank - 1)
    head = found.locator("header").get_by_role("button").first
    if head.get_attribute("aria-expanded") == "false":
        head.click()
    return found


def config(within: sync_api.Locator) -> sync_api.Locator:
    return within.get_by_role("group", name="Config")


def choose_tool(frame: sync_api.FrameLocator, tool: str) -> None:
    frame.get_by_role("combobox", name="Framework").select_option(label=TOOLS[tool])


def fact(within: sync_api.Locator, label: str) -> sync_api.Locator:
    found = within.locator("dl[aria-label=Evidence] > div").filter(has=within.page.locator(f"dt:text-is('{label}')"))
    return found.locator("dd").first


def test_reason_and_evidence(
    server: Server, page: sync_api.Page, diagnosis: inc_tb.Diagnosis, suggestion: Suggestion
) -> None:
    frame = open_tab(page, server, view="suggestions", run="trial-001")
    expect(frame.get_by_role("article")).to_have_count(1)
    found = article(frame, 1)
    expect(found.locator(".sg-because")).to_have_text(suggestion.because)
    evidence = suggestion.evidence
    expect(fact(found, "added SQNR")).to_have_text(f"{evidence['added_sqnr_db']:.1f} dB")
    expect(fact(found, "channel ratio")).to_have_text(f"{evidence['channel_ratio']:.4g} × ⚠")
    expect(fact(found, "lost channels")).to_have_text("75 % ⚠")
    expect(fact(found, "median channel SQNR")).to_have_text(f"{evidence['median_channel_sqnr_db']:.1f} dB ⚠")
    row = next(row for row in diagnosis.channels if (row.op, row.role) == ("/conv1/Conv", "output"))
    reach = np.maximum(np.abs(np.array(row.min, float)), np.abs(np.array(row.max, float)))
    expect(found.get_by_role("img")).to_have_accessible_name(
        f"Channels of the output of /conv1/Conv: the largest reaches {reach.max():.4g}, "
        f"the median of 4 channels {np.median(reach):.4g}, 1 outlier marked"
    )
    expect(found.locator("svg .sg-bar rect")).to_have_count(3)
    expect(found.locator("svg .sg-outlier title")).to_contain_text("channel 1:")
    found.get_by_text("lost channels", exact=True).hover()
    expect(frame.get_by_role("tooltip")).to_contain_text("normal: none")


def test_evidence_of_a_rule_that_the_page_has_never_heard_of(server: Server, page: sync_api.Page) -> None:
    frame = open_tab(page, server, view="suggestions", run="described")
    found = article(frame, 1)
    expect(fact(found, "layer")).to_have_text("the first")
    expect(fact(found, "never described")).to_have_text("3")
    expect(found.locator("dl[aria-label=Evidence] > div")).to_have_count(2)
    found.get_by_text("layer", exact=True).hover()
    expect(frame.get_by_role("tooltip")).to_contain_text("Where in the model.")
    expect(found.get_by_role("img")).to_have_accessible_name(re.compile(r"^Weight channels of /conv1/Conv:.*1 outlier"))


def test_ops_are_links_to_their_detail(server: Server, page: sync_api.Page, suggestion: Suggestion) -> None:
    frame = open_tab(page, server, view="suggestions", run="trial-001")
    ops = article(frame, 1).locator(".sg-ops")
    expect(ops.get_by_role("button")).to_have_text(suggestion.ops)
    ops.get_by_role("button", name="/conv2/Conv", exact=True).click()
    expect(drawer(frame, "/conv2/Conv").get_by_role("img", name="Activation histogram")).to_be_visible()
    expect(article(frame, 1)).to_be_visible()


def test_measured_counted_and_estimated_are_told_apart(server: Server, page: sync_api.Page) -> None:
    frame = open_tab(page, server, view="suggestions", run="trial-001")
    found = article(frame, 1)
    expect(found.locator(".cure-tried")).to_have_text(
        "measured in trial-002: accuracy 0.9650 (+0.0550 against this run), fp32 has 0.9700"
    )
    effects = found.locator(".cure-effects").get_by_role("listitem")
    expect(effects).to_have_count(3)
    expect(effects.nth(0)).to_contain_text(re.compile(r"^Recovers.*99\.99 % estimated"))
    expect(effects.nth(1)).to_contain_text(re.compile(r"^Costs.*648 B counted"))
    expect(effects.nth(2)).to_contain_text(re.compile(r"^Costs.*ops that stay in fp32: 4 counted"))
    expect(found.locator("header .cure-price")).to_have_count(0)  # it is told once
    found.locator("header").get_by_role("button").first.click()
    expect(found.locator("header")).to_contain_text("accuracy 0.9650 (+0.0550) in trial-002")
    expect(found.locator("header")).to_contain_text("removes 99.9 % of the added noise estimated")
    found.locator("header").get_by_role("link", name="trial-002").click()
    expect(frame.get_by_role("option", name=re.compile("^trial-002"))).to_have_attribute("aria-selected", "true")
    expect(found.locator(".cure-tried")).to_have_count(0)


def test_a_config_for_every_tool(
    server: Server, page: sync_api.Page, suggestion: Suggestion, tensors: dict[str, str]
) -> None:
    frame = open_tab(page, server, view="suggestions", run="trial-001")
    found = article(frame, 1)
    copied = {}
    for tool in TOOLS:
        choose_tool(frame, tool)
        expect(config(found)).to_have_text(suggestion.recipes[tool], use_inner_text=True)
        copied[tool] = press_copy(page, found.get_by_role("button", name="Copy config"))
    assert copied == suggestion.recipes
    tools = (
        "onnxruntime onnxruntime-int16 onnxruntime-per-channel inc inc-onnx inc-torch nncf torch torch-pt2e "
        "onnxruntime-products onnxruntime-percentile inc-products nncf-products tflite json"
    )
    assert list(copied) == tools.split()
    excluded = ast.parse(copied["onnxruntime"]).body[1]
    assert isinstance(excluded, ast.Assign)
    assert ast.literal_eval(excluded.value) == suggestion.ops
    overridden = re.findall(r'^    "(.+)": \[', copied["onnxruntime-int16"], re.MULTILINE)
    assert overridden == list(dict.fromkeys(tensors[op] for op in suggestion.ops)) == ["r1", "r2"]
    patterns = re.findall(r'^    "([^"]+)",$', copied["inc"], re.MULTILINE)
    assert [op for op in OPS if any(re.fullmatch(p, op) for p in patterns)] == suggestion.ops
    assert re.findall(r'set_module_name\("(.+)", None\)', copied["torch"]) == ["conv1", "conv2"]
    for tool in ("nncf", "tflite"):
        assert re.findall(r'"(/.+)"', copied[tool]) == suggestion.ops
    assert json.loads(copied["json"]) == {"fp32": suggestion.ops}
    for tool in ("onnxruntime", "onnxruntime-int16", "inc", "nncf", "torch", "tflite"):
        ast.parse(copied[tool])


def test_the_cure_that_the_text_names_comes_first_until_a_tool_is_chosen(server: Server, page: sync_api.Page) -> None:
    frame = open_tab(page, server, view="suggestions", run="cured")
    setting, kept = article(frame, 1), article(frame, 2)
    expect(setting.get_by_role("heading")).to_have_text("1. Use a scale per channel")
    expect(config(setting)).to_contain_text("per_channel=True")
    expect(config(setting)).not_to_contain_text("/conv1/Conv")
    expect(setting.locator(".cure-check")).to_have_count(0)  # it names no op
    expect(config(kept)).to_contain_text("nodes_to_exclude")
    frame.get_by_role("checkbox", name="Combine 1.").check()
    joint = frame.get_by_role("region", name="Joint config")
    expect(config(joint)).to_contain_text('    "/conv1/Conv",\n    "/fc/Gemm"')
    choose_tool(frame, "inc")
    for one in (setting, kept, joint):
        expect(config(one)).to_contain_text("op_name_dict")


def test_several_are_a_list_with_one_picker(server: Server, page: sync_api.Page) -> None:
    frame = open_tab(page, server, view="suggestions", run="several")
    articles = frame.get_by_role("article")
    expect(articles).to_have_count(3)
    expect(articles.locator("header button[aria-expanded=false]")).to_have_count(3)
    for place in range(3):
        found = articles.nth(place).bounding_box()
        assert found is not None
        assert found["height"] < 90
    article(frame, 1)
    expect(config(article(frame, 2))).to_be_visible()
    expect(frame.get_by_role("combobox", name="Framework")).to_have_count(1)


def test_what_cures_nothing_alone_is_folded(server: Server, page: sync_api.Page) -> None:
    frame = open_tab(page, server, view="suggestions", run="vain")
    articles = frame.get_by_role("article")
    expect(articles.first).to_be_visible()
    expect(articles).to_have_count(1)  # what is folded is not there for a reader
    frame.get_by_text("1 suggestion that alone leaves the error as it is, as measured").click()
    expect(articles.nth(1)).to_contain_text("removes 0.1 % of the error measured")
    expect(articles.nth(1).get_by_role("button", name="Copy config")).to_be_visible()


def test_names_are_checked_against_the_model(server: Server, page: sync_api.Page) -> None:
    frame = open_tab(page, server, view="suggestions", run="several")
    right, wrong = article(frame, 1), article(frame, 3)
    expect(right.locator(".cure-check")).to_have_text("✓ 2 of 2 names are in the model")
    wrong.scroll_into_view_if_needed()  # far articles wait with their checks, which look at every op of the model
    expect(wrong.locator(".cure-check")).to_have_text(f"⚠ 1 of 2 names are in the model; not {GONE}")
    choose_tool(frame, "inc")
    expect(right.locator(".cure-check").nth(1)).to_have_text(
        "✓ 2 of 2 patterns are exact: they match these ops and no others"
    )
    choose_tool(frame, "torch")
    expect(right.locator(".cure-check.wrong")).to_contain_text("inside are also 1 op that was not chosen: /conv2/Conv")
    choose_tool(frame, "onnxruntime-int16")
    wrong.scroll_into_view_if_needed()
    expect(wrong.locator(".cure-check").nth(1)).to_have_text(f"⚠ 1 of 2 tensors are known from the graph; not {GONE}")


def test_ticked_suggestions_make_one_config(server: Server, page: sync_api.Page, tensors: dict[str, str]) -> None:
    frame = open_tab(page, server, view="suggestions", run="several")
    expect(frame.get_by_role("article").get_by_role("heading")).to_have_text(
        ["1. Keep fc/Gemm in fp32", "2. Keep conv1/Conv in fp32", f"3. Keep {GONE[1:]} and Flatten in fp32"]
    )
    joint = frame.get_by_role("region", name="Joint config")
    frame.get_by_role("checkbox", name="Combine 2.").check()
    expect(joint.get_by_role("status").first).to_have_text("1 suggestion, 2 ops")
    frame.get_by_role("checkbox", name="Combine 1.").check()
    expect(joint.get_by_role("status").first).to_have_text("2 suggestions, 3 ops")
    union = ["/conv1/Conv", "/conv2/Relu", "/fc/Gemm"]
    expect(joint.locator(".sg-ops").get_by_role("button")).to_have_text(union)
    wanted = recipes(union, tensors)
    for tool in TOOLS:
        choose_tool(frame, tool)
        expect(config(joint)).to_have_text(wanted[tool], use_inner_text=True)
        assert press_copy(page, joint.get_by_role("button", name="Copy config")) == wanted[tool]
    joint.get_by_role("button", name="Combine all").click()
    expect(joint.get_by_role("status").first).to_have_text("3 suggestions, 5 ops")
    joint.get_by_role("button", name="Clear").click()
    expect(config(joint)).to_have_count(0)


def test_effects_in_time(server: Server, page: sync_api.Page) -> None:
    """Together every op counts once, a fused one with all that runs as one with it, and noise not at all."""
    frame = open_tab(page, server, view="suggestions", run="several")
    for rank, told in ((1, "700 µs"), (2, "1.4 ms")):
        effect = article(frame, rank).locator(".cure-effects").get_by_role("listitem").nth(2)
        expect(effect).to_contain_text(re.compile(rf"^Recovers.*less time: {re.escape(told)} measured"))
    joint = frame.get_by_role("region", name="Joint config").locator(".cure-effects").get_by_role("listitem").nth(1)
    for rank, told in ((3, "more time: 0 µs measured inside the noise"), (1, "more time: 1.87 ms"), (2, "1.92 ms")):
        frame.get_by_role("checkbox", name=f"Combine {rank}.").check()
        expect(joint).to_contain_text(told)
        expect(joint).to_contain_text("Costs")


def test_a_joint_config_may_keep_what_is_in_fp32(server: Server, page: sync_api.Page, suggestion: Suggestion) -> None:
    frame = open_tab(page, server, view="suggestions", run="trial-001")
    joint = frame.get_by_role("region", name="Joint config")
    joint.get_by_role("button", name="Combine all").click()
    expect(joint.locator(".cure-tried")).to_contain_text("measured in trial-002: accuracy 0.9650")
    expect(joint.locator(".sg-ops").get_by_role("button")).to_have_text(suggestion.ops)
    joint.get_by_label("also 1 op that this run keeps in fp32 already").check()
    expect(joint.locator(".sg-ops").get_by_role("button")).to_have_text([*suggestion.ops, "/fc/Gemm"])
    expect(config(joint)).to_contain_text('    "/fc/Gemm",\n]')


def test_a_healthy_model(server: Server, page: sync_api.Page) -> None:
    frame = open_tab(page, server, view="suggestions", run="healthy")
    expect(frame.get_by_role("heading", name="No suggestions: no op adds enough error")).to_be_visible()
    frame.get_by_role("button", name="Ops by total error").click()
    expect(frame.get_by_role("tab", name="Ops")).to_have_attribute("aria-selected", "true")
    assert "sort=total_sqnr_db" in page.url


def test_a_run_that_only_says_how_its_ops_were_configured(server: Server, page: sync_api.Page) -> None:
    frame = open_tab(page, server, view="suggestions", run="v26_tf_hard_mse_tune/trial-001")
    expect(frame.get_by_role("heading", name="No suggestions: no op of this run was measured")).to_be_visible()


def test_the_tool_that_was_imported_from_comes_first(server: Server, page: sync_api.Page) -> None:
    frame = open_tab(page, server, view="suggestions", run="v26_tf_hard_diag/trial-001")
    found = article(frame, 1)
    expect(frame.get_by_role("combobox", name="Framework").get_by_role("option").nth(1)).to_have_text(
        "Neural Compressor 2.x: op_name_dict"
    )
    expect(config(found)).to_contain_text("PostTrainingQuantConfig(op_name_dict=op_name_dict)")


def test_a_log_of_version_1(server: Server, page: sync_api.Page) -> None:
    frame = open_tab(page, server, view="suggestions", run="v1")
    (diagnosis,) = inc_tb.load(GOLDEN).diagnoses.values()
    (suggestion,) = diagnosis.suggestions
    found = article(frame, 1)
    expect(found.locator(".sg-because")).to_have_text(suggestion.because)
    expect(fact(found, "lost channels")).to_have_text("0.75")
    expect(found.get_by_role("img")).to_have_accessible_name(re.compile("^Channels of the output of /conv1/Conv:"))
    picker = frame.get_by_role("combobox", name="Framework")
    expect(picker.get_by_role("option")).to_have_text(["what each suggestion names first", *suggestion.recipes])
    for tool, text in suggestion.recipes.items():
        picker.select_option(tool)
        assert press_copy(page, found.get_by_role("button", name="Copy config")) == text
    frame.get_by_role("checkbox", name="Combine 1.").check()
    expect(frame.get_by_role("region", name="Joint config")).to_contain_text("logged by an older inc-tb")
