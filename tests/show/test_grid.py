from __future__ import annotations

import io
from collections.abc import Sequence

import pytest
from rich.console import Console
from rich.text import Text

from inc_tb.records import Trial
from inc_tb.show.grid import Column, Lists, Name, room_for_names, show_grid
from inc_tb.show.recipes import show_recipe
from inc_tb.show.trials import show_trials

LONG = "/model/layers.11/attention/self/query/MatMul"


def column(label: str, *cells: str, unit: str = "", needed: bool = True) -> Column:
    return Column(label, unit, [Text(cell) for cell in cells], needed)


def printed(
    width: int | None, names: Sequence[Name], columns: Sequence[Column], last: Lists | None = None
) -> list[str]:
    out = io.StringIO()
    show_grid(Console(file=out, width=width), "op", names, columns, last)
    return out.getvalue().splitlines()


def test_numbers_are_whole_and_names_give_way() -> None:
    columns = [column("output MSE", "-1.234e-05", unit="value²"), column("time", "65,432.1")]
    # 40 columns less 11 for the first and 9 for the second leave 20 for the name.
    assert room_for_names(Console(width=40), columns) == 20
    assert printed(40, [Name(LONG, more=" +3")], columns) == [
        "                     output MSE",
        "op                       value²     time",
        "/mode…uery/MatMul +3 -1.234e-05 65,432.1",
        "",
    ]


@pytest.mark.parametrize("width", [20, 40, 80, 200])
def test_no_number_is_ever_cut(width: int) -> None:
    columns = [column(f"c{i}", f"-1.23{i}e-05") for i in range(4)]
    lines = printed(width, [Name(LONG)], columns)
    assert all(f"-1.23{i}e-05" in lines[1] for i in range(4))


def test_columns_that_are_not_needed_come_where_there_is_room() -> None:
    columns = [column("a", "1"), column("long one", "2", needed=False), column("b", "3", needed=False)]
    assert printed(80, [Name(LONG)], columns)[-2] == f"{LONG} 1    2 3"
    # 24 for the name, 2 for a: a further 2 for b, but not 5 for the other one.
    assert printed(28, [Name(LONG)], columns)[0].split() == ["op", "a", "b"]
    assert printed(27, [Name(LONG)], columns)[0].split() == ["op", "a"]


def test_where_no_width_is_known_names_are_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    names = [Name(LONG * 3, more=" +2", aside=" (a.module)")]
    assert printed(None, names, [column("a", "1")])[1] == f"{LONG * 3} +2 (a.module) 1"
    assert printed(80, names, [column("a", "1")])[1].endswith("/query/MatMul +2 1")
    kept = Lists("kept", [["a" * 30, "b" * 30, "c"]])
    assert printed(None, [Name("t")], [], kept)[1] == f"t  {'a' * 30}, {'b' * 30}, c"
    assert printed(40, [Name("t")], [], kept)[1] == "t  aaaaaaaa…aaaaaaaaaaaaaaaaa and 2 more"


def test_lists_say_how_many_more_there_are() -> None:
    trials = [Trial("trial-001", 0.5, 0.9, [], {}, {"python_memory_mb": 12345.678, "latency_ms": 65.4321})]
    trials.append(Trial("trial-002", 0.91, 0.9, [LONG, "/a", "/b"], {}, {"latency_ms": 1.0}))
    out = io.StringIO()
    show_trials(Console(file=out, width=80), trials)
    title, *_, first, second = out.getvalue().rstrip().splitlines()
    assert title == "Trials"
    assert first.split() == ["trial-001", "0.5000", "+0.4000", "12.3", "GB", "65.4", "ms"]
    assert second.endswith("MatMul and 2 more")
    assert max(map(len, (first, second))) <= 80


def test_code_is_not_broken_into_lines_in_a_file() -> None:
    recipe = f'names = ["{LONG * 4}"]\nrun(names)\n'
    out = io.StringIO()
    show_recipe(Console(file=out, width=80), recipe)
    assert out.getvalue() == f'   names = ["{LONG * 4}"]\n   run(names)\n'
