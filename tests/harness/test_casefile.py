"""Cases that case files expand to."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from opgauge.harness.case.casejson import case_from_json, case_to_json
from opgauge.harness.case.file import load_cases
from tests.harness.casefiles import HEAD, mistakes_of, write_cases


def test_empty_documents_are_ignored(tmp_path: Path) -> None:
    """Editors and templates leave a line `---` at the end, or two between ops."""
    file = write_cases(tmp_path, f"---\n{HEAD}- {{name: a, shapes: {{x: [3]}}, dtype: float32}}\n---\n---\n")
    assert [case.name for case in load_cases([file])] == ["a"]


def test_the_design_example_expands_to_a_product(tmp_path: Path) -> None:
    """Lists of scalars multiply, and each case is named after the values that vary."""
    file = write_cases(
        tmp_path,
        """\
        op: p_norm_grad
        defaults: {tags: [full], dtype: float32}
        cases:
          - name: seed-1
            tags: [seed, gate]
            shapes: {x: [300, 250, 250]}
            dtype: [float32, float16]
            params: {porder: [2.0, 3.0, fro], axis: -1, keepdim: false}
            gate: {threshold: 0.03, min_speedup: 5, max_launches: 1, budget_s: 2}
          - name: tied
            zip: {shapes.x: [[16, 102400], [16, 204800]], dtype: [float32, float64]}
        """,
    )
    cases = load_cases([file])
    assert [case.name for case in cases] == [
        "seed-1[float32,porder=2]",
        "seed-1[float32,porder=3]",
        "seed-1[float32,porder=fro]",
        "seed-1[float16,porder=2]",
        "seed-1[float16,porder=3]",
        "seed-1[float16,porder=fro]",
        "tied[float32,x=16x102400]",
        "tied[float64,x=16x204800]",
    ]
    assert cases[0].tags == ("full", "seed", "gate")
    assert cases[0].gate.max_launches == 1
    assert (cases[0].file, cases[0].line) == (str(file), 4)
    assert len({case.id for case in cases}) == len(cases)


def test_an_axis_list_is_a_sweep_and_a_list_inside_it_is_a_pair(tmp_path: Path) -> None:
    """`axis: [0, 1]` is two cases; `axis: [[0, 1], 2]` has the pair as one value."""
    text = HEAD + "- {name: a, shapes: {x: [2, 3, 4]}, dtype: float32, params: {axis: %s}}\n"
    assert [c.params.axis for c in load_cases([write_cases(tmp_path, text % "[0, 1]")])] == [0, 1]
    assert [c.params.axis for c in load_cases([write_cases(tmp_path, text % "[[0, 1], 2]")])] == [(0, 1), 2]


def test_a_list_of_shapes_is_a_sweep_and_an_empty_list_a_scalar(tmp_path: Path) -> None:
    """`x: []` is a 0-d tensor; `x: [[], [2]]` is two shapes."""
    text = HEAD + "- {name: a, shapes: {x: %s}, dtype: float32, params: {axis: null}}\n"
    assert [dict(c.shapes) for c in load_cases([write_cases(tmp_path, text % "[]")])] == [{"x": ()}]
    both = load_cases([write_cases(tmp_path, text % "[[], [2]]")])
    assert [(c.name, c.shapes["x"]) for c in both] == [("a[x=scalar]", ()), ("a[x=2]", (2,))]


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        (".inf", math.inf),
        ("-.inf", -math.inf),
        ("inf", math.inf),
        ('"inf"', math.inf),
        ('"-inf"', -math.inf),
        ("2", 2.0),
        ("2.0", 2.0),
        ("5e-1", 0.5),
        ("fro", "fro"),
    ],
)
def test_numbers_as_yaml_writes_them(tmp_path: Path, written: str, meant: float | str) -> None:
    """Infinities may be YAML's or texts, and a whole number stands for a float."""
    text = HEAD + f"- {{name: a, shapes: {{x: [2]}}, dtype: float32, params: {{porder: {written}}}}}\n"
    assert load_cases([write_cases(tmp_path, text)])[0].params.porder == meant


@pytest.mark.parametrize(
    ("written", "meant"),
    [("7", 7.0), ("9007199254740993", 9007199254740993), ("-9007199254740993", -9007199254740993), (".nan", math.nan)],
)
def test_integers_beyond_float64_stay_exact(tmp_path: Path, written: str, meant: float) -> None:
    """An integer that float64 would round stays an integer, also through JSON; others are floats."""
    text = f"op: fill_any_like\ncases:\n- {{name: a, shapes: {{x: [2]}}, dtype: int64, params: {{value: {written}}}}}\n"
    if math.isnan(meant):
        text = text.replace("int64", "float32")
    case = load_cases([write_cases(tmp_path, text)])[0]
    again = case_from_json(json.loads(json.dumps(case_to_json(case))))
    assert {repr(one.params.value) for one in (case, again)} == {repr(meant)}
    assert case.id == again.id


def test_defaults_are_shared_field_by_field(tmp_path: Path) -> None:
    """A case overrides single fields of the defaults; tags add up; zip replaces what it names."""
    text = """\
        op: p_norm
        defaults:
          dtype: [float16, float32]
          tags: [smoke]
          note: shared
          shapes: {x: [2, 3]}
          params: {porder: 1, keepdim: true}
          inputs: {x: {kind: uniform, low: 0}}
          gate: {threshold: 0.1, min_speedup: 2}
        cases:
          - {name: a, tags: [extra, smoke], params: {porder: 3}, gate: {min_speedup: 4}}
          - {name: b, note: own, zip: {dtype: [float64]}, inputs: {x: {high: 2}}}
        """
    a, _, b = load_cases([write_cases(tmp_path, text)])
    assert (a.params.porder, a.params.keepdim, a.dtype) == (3.0, True, "float16")
    assert (a.tags, a.note, b.tags, b.note) == (("smoke", "extra"), "shared", ("smoke",), "own")
    assert (a.gate.threshold, a.gate.min_speedup) == (0.1, 4.0)
    assert (b.dtype, b.inputs["x"].low, b.inputs["x"].high) == ("float64", 0.0, 2.0)


def test_input_fields_sweep_and_zip(tmp_path: Path) -> None:
    """Distributions and layouts multiply like parameters."""
    text = HEAD + (
        "- {name: a, shapes: {x: [2]}, dtype: float32, inputs: {x: {layout: [contiguous, offset]}}}\n"
        "- {name: b, shapes: {x: [2]}, dtype: float32,\n"
        "   zip: {inputs.x.kind: [uniform, normal], params.porder: [1, 3]}}\n"
    )
    names = [case.name for case in load_cases([write_cases(tmp_path, text)])]
    expected = ["a[x.layout=contiguous]", "a[x.layout=offset]"]
    assert names == [*expected, "b[x.kind=uniform,porder=1]", "b[x.kind=normal,porder=3]"]


def test_a_derived_shape_may_be_given_if_it_is_right_and_changes_nothing(tmp_path: Path) -> None:
    """Giving y of p_norm_grad, which follows from x, as it is makes the same case."""
    head = "op: p_norm_grad\ncases:\n"
    text = head + "- {name: a, dtype: float32, shapes: {x: [2, 3]%s}}\n"
    plain = load_cases([write_cases(tmp_path, text % "")])
    given = load_cases([write_cases(tmp_path, text % ", y: [2]")])
    assert given[0].id == plain[0].id
    assert mistakes_of(write_cases(tmp_path, text % ", dy: [3]")) == [
        (3, 53, "dy follows from the other shapes: it is [2], not [3]")
    ]


def test_a_folder_stands_for_its_files_but_waivers_and_policy(tmp_path: Path) -> None:
    """Files are read in order of name, once each, and those that hold no cases are left out."""
    case = "- {name: %s, shapes: {x: [%d]}, dtype: float32}\n"
    write_cases(tmp_path, HEAD + case % ("b", 2), "b.yaml")
    first = write_cases(tmp_path, HEAD + case % ("a", 1), "a.yml")
    for name in ("waivers.yaml", "policy.yaml", "notes.txt"):
        write_cases(tmp_path, "nothing: here\n", name)
    assert [case.name for case in load_cases([tmp_path, first])] == ["a", "b"]


def test_tags_choose_cases(tmp_path: Path) -> None:
    """A case with any of the tags is kept."""
    text = """\
        op: p_norm
        defaults: {dtype: float32}
        cases:
          - {name: a, tags: [seed, gate], shapes: {x: [1]}}
          - {name: b, tags: [smoke], shapes: {x: [2]}}
          - {name: c, shapes: {x: [3]}}
        """
    file = write_cases(tmp_path, text)
    assert [case.name for case in load_cases([file], tags=["seed", "smoke"])] == ["a", "b"]
    assert load_cases([file], tags=["none"]) == []


def test_anchors_and_aliases_are_read(tmp_path: Path) -> None:
    """A value may be anchored and repeated."""
    text = HEAD + (
        "- {name: a, shapes: {x: &shape [2, 3]}, dtype: float32}\n- {name: b, shapes: {x: *shape}, dtype: float64}\n"
    )
    assert [case.shapes["x"] for case in load_cases([write_cases(tmp_path, text)])] == [(2, 3), (2, 3)]
