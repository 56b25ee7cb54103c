"""Mistakes in case files: each is reported with its place."""

from __future__ import annotations

from pathlib import Path

import pytest

from opgauge.harness.case import file as case_file
from opgauge.harness.case.document import MAX_BYTES
from opgauge.harness.case.file import load_cases
from opgauge.harness.errors import CaseFileError, HarnessError
from tests.harness.casefiles import HEAD, LERP, mistakes_of, write_cases

CASE = "- {name: a, shapes: {x: [2, 3]}, dtype: float32%s}\n"
MARKED = CASE.replace("{", "‸{", 1)
MISTAKES = {
    # keys
    "unknown key of a document": ("op: p_norm\n‸kases: []\ncases: []\n", "did you mean 'cases'?"),
    "unknown key of defaults": ("op: p_norm\ndefaults: {‸dtypes: float32}\ncases: [1]\n", "'dtype'?"),
    "unknown key of a case": (HEAD + CASE % ", ‸shape: {}", "did you mean 'shapes'?"),
    "unknown key of gate": (HEAD + CASE % ", gate: {‸treshold: 1}", "did you mean 'threshold'?"),
    "unknown key of an input": (HEAD + CASE % ", inputs: {x: {‸knd: normal}}", "did you mean 'kind'?"),
    "unknown field of zip": (HEAD + CASE % ", zip: {‸params.pordr: [1]}", "did you mean 'porder'?"),
    "zip without a section": (HEAD + CASE % ", zip: {‸porder: [1]}", "did you mean 'params.porder'?"),
    "merge key": (HEAD + CASE % ", ‸<<: {}", "use defaults"),
    "duplicate key": (HEAD + CASE % ", ‸dtype: float16", "duplicate key 'dtype'"),
    "key that is no text": (HEAD + CASE % ", ‸1: 2", "a key should be text, not 1"),
    # names
    "unknown op": ("op: ‸p_nrm\ncases: [{}]\n", "did you mean 'p_norm'?"),
    "op far from any": ("op: ‸zzz\ncases: [{}]\n", "known: "),
    "unknown parameter": (
        HEAD + CASE % ", params: {‸pordr: 2}",
        "no parameter 'pordr'; did you mean 'porder'",
    ),
    "unknown input": (HEAD + "- {name: a, shapes: {‸q: [2]}, dtype: float32}\n", "no input 'q'; known: x"),
    "unknown input of inputs": (HEAD + CASE % ", inputs: {‸q: {}}", "no input 'q'; known: x"),
    "unknown dtype": (HEAD + CASE.replace("float32", "‸flot32") % "", "did you mean 'float32'?"),
    "dtype the op lacks": (HEAD + CASE.replace("float32", "‸int32") % "", "not 'int32'"),
    "unknown distribution": (HEAD + CASE % ", inputs: {x: {kind: ‸unifrm}}", "did you mean 'uniform'?"),
    "unknown layout": (HEAD + CASE % ", inputs: {x: {layout: ‸ofset}}", "did you mean 'offset'?"),
    # types
    "porder banana": (HEAD + CASE % ", params: {porder: ‸banana}", "a number or 'fro', not 'banana'"),
    "porder true": (HEAD + CASE % ", params: {porder: ‸true}", "not true"),
    "porder inside a sweep": (HEAD + CASE % ", params: {porder: [2, ‸frob]}", "did you mean 'fro'?"),
    "porder a mapping": (HEAD + CASE % ", params: {porder: ‸{a: 1}}", "not a mapping"),
    "porder NaN": (HEAD + CASE % ", params: {porder: ‸.nan}", "porder is not a number"),
    "porder beyond a float": (HEAD + CASE % ", params: {porder: ‸1e999}", "write .inf"),
    "axis a fraction": (HEAD + CASE % ", params: {axis: ‸1.5}", "a whole number"),
    "axis text": (HEAD + CASE % ", params: {axis: ‸last}", "not 'last'"),
    "keepdim YAML 1.1": (HEAD + CASE % ", params: {keepdim: ‸yes}", "true or false, not 'yes'"),
    "an empty sweep": (HEAD + CASE % ", params: {porder: ‸[]}", "a list of them, not []"),
    "params a list": (HEAD + CASE % ", params: ‸[2]", "params should be a mapping"),
    "tags a text": (HEAD + CASE % ", tags: ‸smoke", "tags should be a list of texts, not 'smoke'"),
    "tag a number": (HEAD + CASE % ", tags: ‸[1]", "a list of texts"),
    "tag with a space": (HEAD + CASE % ", tags: [‸a b]", "a tag has letters"),
    "name a number": (HEAD + "- {name: ‸1, shapes: {x: [2]}, dtype: float32}\n", "name should be text"),
    "name of two lines": (
        HEAD + '- {name: ‸"a\\nb", shapes: {x: [2]}, dtype: float32}\n',
        "one line of text",
    ),
    "name missing": (HEAD + "- ‸{shapes: {x: [2]}, dtype: float32}\n", "no name"),
    "dtype missing": (HEAD + "- ‸{name: a, shapes: {x: [2]}}\n", "dtype is missing"),
    "note a list": (HEAD + CASE % ", note: ‸[a]", "note should be text"),
    "gate a text": (HEAD + CASE % ", gate: {threshold: ‸low}", "threshold should be a number"),
    "gate negative": (HEAD + CASE % ", gate: {threshold: ‸-1}", "a positive number"),
    "gate infinite": (HEAD + CASE % ", gate: {budget_s: ‸.inf}", "a positive number"),
    "gate share over 1": (HEAD + CASE % ", gate: {min_ceiling: ‸90}", "a share from 0 to 1"),
    "published of wrong type": (HEAD + CASE % ", published: {ms: ‸[1]}", "published.ms should be a number"),
    "published on a sweep": (
        HEAD + CASE % ", params: {porder: [1, 2]}, ‸published: {ms: 1}",
        "belong to one point; this case expands to 2",
    ),
    "op a number": ("op: ‸1\ncases: [{}]\n", "op should be text"),
    "op missing": ("‸cases: []\n", "op is missing"),
    "cases missing": ("‸op: p_norm\n", "cases is missing"),
    "cases empty": ("op: p_norm\ncases: ‸[]\n", "a list of cases, not []"),
    "cases a mapping": ("op: p_norm\ncases: ‸{a: 1}\n", "a list of cases, not a mapping"),
    "a case a number": ("op: p_norm\ncases: [‸1]\n", "a case should be a mapping, not 1"),
    # shapes
    "shape missing": (HEAD + "- ‸{name: a, dtype: float32}\n", "needs the shape of x"),
    "shape a number": (
        HEAD + "- {name: a, shapes: {x: ‸3}, dtype: float32}\n",
        "a list of whole numbers, not 3",
    ),
    "shape of fractions": (HEAD + "- {name: a, shapes: {x: ‸[2.0]}, dtype: float32}\n", "not [2.0]"),
    "shape negative": (HEAD + "- {name: a, shapes: {x: ‸[2, -1]}, dtype: float32}\n", "a negative length"),
    "shape huge": (HEAD + "- {name: a, shapes: {x: ‸[1099511627776, 2]}, dtype: float32}\n", "at most 2^40"),
    "rank huge": (HEAD + f"- {{name: a, shapes: {{x: ‸{[1] * 33}}}, dtype: float32}}\n", "rank 33"),
    "shapes that do not broadcast": (
        LERP + "- {name: a, shapes: {x: ‸[2, 3], y: [2, 4]}, params: {weight: 0.5}, dtype: float32}\n",
        "broadcast",
    ),
    "axis out of range": (HEAD + CASE % ", params: {axis: ‸2}", "axis 2 is out of range for rank 2"),
    "axis out of range in a sweep": (
        HEAD + CASE % ", params: {axis: [0, ‸[0, -3]]}",
        "axis -3 is out of range",
    ),
    "axis twice": (HEAD + CASE % ", params: {axis: [‸[1, -1]]}", "names an axis twice"),
    "a default axis out of range": (
        HEAD + "- ‸{name: a, shapes: {x: []}, dtype: float32, params: {porder: 2}}\n",
        "axis -1 is out of range",
    ),
    "axes the wrong way round": (
        HEAD.replace("p_norm", "flatten") + CASE % ", params: {start_axis: 1, stop_axis: ‸0}",
        "greater than or equal to start_axis",
    ),
    "a parameter that names no dtype": (
        "op: fill_any_like\ncases:\n- {name: a, shapes: {x: [2]}, dtype: float32, params: {dtype: ‸flot32}}\n",
        "unknown dtype 'flot32'",
    ),
    "a value beyond the dtype": (
        "op: fill_any_like\ncases:\n- {name: a, shapes: {x: [2]}, dtype: int8, params: {value: ‸300}}\n",
        "out of range for target type int8",
    ),
    # inputs
    "field of another kind": (HEAD + CASE % ", inputs: {x: {low: ‸1}}", "low is for kind uniform"),
    "low over high": (
        HEAD + CASE % ", inputs: {x: {kind: uniform, low: ‸1, high: 0}}",
        "low 1.0 is greater than high 0.0",
    ),
    "std negative": (HEAD + CASE % ", inputs: {x: {std: ‸-1}}", "std -1.0 is negative"),
    "mean infinite": (HEAD + CASE % ", inputs: {x: {mean: ‸.inf}}", "mean should be finite"),
    # zip
    "zip of different lengths": (
        HEAD + CASE % ", zip: ‸{params.porder: [1, 2], params.axis: [0]}",
        "params.porder has 2, params.axis has 1",
    ),
    "zip of a scalar": (HEAD + CASE % ", zip: {params.porder: ‸1}", "a list of values for params.porder"),
    "zip of what is given": (HEAD + CASE % ", zip: {‸dtype: [float32]}", "both in zip and in the case"),
    "zip of a wrong value": (HEAD + CASE % ", zip: {params.porder: [1, ‸x]}", "porder should be a number"),
    "zip a list": (HEAD + CASE % ", zip: ‸[1]", "zip should be a mapping"),
    # duplicates
    "the same case twice": (
        HEAD + CASE % "" + "- ‸{name: b, shapes: {x: [2, 3]}, dtype: float32, params: {porder: 2}}\n",
        "is the same case as 'a' at ",
    ),
    "2 and 2.0 in a sweep": (HEAD + CASE % ", params: {porder: [2, ‸2.0]}", "porder lists 2.0 twice"),
    "one axis list as a sweep": (
        HEAD + CASE % ", params: {axis: [1, ‸1]}",
        "axis lists 1 twice: a list is a sweep; for one list value write [[1, 1]]",
    ),
    "two cases of one name": (
        HEAD + CASE % "" + MARKED % ", params: {porder: 3}",
        "another case named 'a' at ",
    ),
    # size
    "a sweep too large": (
        HEAD + MARKED % f", params: {{porder: {list(range(101))}, axis: {list(range(100))}}}",
        "expands to 10,100 cases",
    ),
    "nested too deep": ("[" * 24 + "‸" + "[" * 100_000, "nested more than 24 levels"),
    "too many values": ("- a\n" * 99_999 + "- ‸a\n" + "- a\n" * 100_000, "more than 100,000 values"),
    # YAML
    "syntax": ("op: p_norm\ncases: [\n‸", "YAML syntax: "),
    "tab": ("op: p_norm\ncases:\n‸\t- a\n", "YAML syntax: "),
    "control character": ("op: p‸\x01\n", "YAML syntax: "),
    "alias without anchor": ("op: ‸*x\n", "the alias *x has no anchor"),
    "alias to itself": ("op: &x [‸*x]\n", "the alias *x has no anchor"),
    "YAML tag": ("op: ‸!!python/object:os.system ls\n", "the YAML tag "),
    "empty file": ("‸", "the file is empty"),
    "only a comment": ("‸# nothing\n", "the file is empty"),
    "a list for a document": ("‸- a\n", "a document has one op, not a list; write a line `---`"),
    "a parameter for a key": (HEAD + CASE % ", ‸porder: 2", "write params: {porder: …}"),
    "an input for a key": (HEAD + CASE % ", ‸x: [2]", "write shapes: {x: …}"),
    "a merge key": (HEAD + CASE % ", ‸<<: {}", "use defaults"),
    "an empty document": ("‸---\n---\n", "the file is empty"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_told_with_its_place(tmp_path: Path, mistake: str) -> None:
    """A message names line and column, and says what would be right."""
    marked, part = MISTAKES[mistake]
    before, _, after = marked.partition("‸")
    line, column = before.count("\n") + 1, len(before) - before.rfind("\n")
    found = mistakes_of(write_cases(tmp_path, before + after))
    assert part in " / ".join(text for *place, text in found if place == [line, column]), found


def test_the_message_is_file_line_column_and_text(tmp_path: Path) -> None:
    """A message reads like a compiler's, and the command line ends with 2."""
    file = write_cases(tmp_path, HEAD + CASE % ", params: {porder: banana}")
    with pytest.raises(HarnessError) as caught:
        load_cases([file])
    assert str(caught.value) == f"{file}:3:67: porder should be a number or 'fro', not 'banana'"
    assert caught.value.exit_code == 2


def test_all_mistakes_are_told_in_order(tmp_path: Path) -> None:
    """One bad case does not hide another, in the same file or the next."""
    first = write_cases(tmp_path, HEAD + CASE % ", params: {porder: a, axis: b}" + CASE % ", dtyp: 1", "a.yaml")
    second = write_cases(tmp_path, "op: p_nrm\ncases: [{}]\n---\nop: p_norm\ncases: [1]\n", "b.yaml")
    found = mistakes_of(first, second)
    assert [one[:2] for one in found] == [(3, 67), (3, 76), (4, 50), (1, 5), (5, 9)]


def test_the_message_stops_after_twenty_mistakes(tmp_path: Path) -> None:
    """A file full of mistakes does not fill the screen; the error still holds all."""
    file = write_cases(tmp_path, HEAD + "- 1\n" * 30)
    with pytest.raises(CaseFileError) as caught:
        load_cases([file])
    assert len(caught.value.mistakes) == 30
    assert str(caught.value).splitlines()[-1] == "… and 10 more mistakes"


def test_broken_defaults_are_told_once(tmp_path: Path) -> None:
    """A mistake in the defaults is not repeated for every case that would have used them."""
    text = "op: p_norm\ndefaults: {dtyp: float32}\ncases:\n- {name: a, shapes: {x: [1]}}\n- {name: b}\n"
    assert [one[:2] for one in mistakes_of(write_cases(tmp_path, text))] == [(2, 12)]


def test_a_case_in_two_files_names_both_places(tmp_path: Path) -> None:
    """The same content twice is a mistake across files too."""
    first = write_cases(tmp_path, HEAD + CASE % "", "a.yaml")
    second = write_cases(tmp_path, HEAD + CASE % "", "b.yaml")
    assert mistakes_of(first, second) == [(3, 3, f"p_norm 'a' is the same case as 'a' at {first}:3:3")]


def test_sweeps_of_one_file_add_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file may not have more cases than the limit, here 100, however they are split."""
    monkeypatch.setattr(case_file, "MAX_CASES", 100)
    sweep = "- {{name: {0}, shapes: {{x: [{1}]}}, dtype: float32, params: {{porder: {2}}}}}\n"
    orders = list(range(60))
    text = HEAD + sweep.format("a", 1, orders) + sweep.format("b", 2, orders)
    assert [one[0] for one in mistakes_of(write_cases(tmp_path, text))] == [4]
    parts = (HEAD + sweep.format("a", 1, orders), HEAD + sweep.format("b", 2, orders))
    assert [one[0] for one in mistakes_of(write_cases(tmp_path, "---\n".join(parts)))] == [7]


def test_an_alias_bomb_ends_at_once(tmp_path: Path) -> None:
    """A billion laughs are counted, not told."""
    lines = ["a: &a [x, x, x, x, x, x, x, x, x, x]"]
    for above, name in zip("abcdefghi", "bcdefghij", strict=True):
        lines.append(f"{name}: &{name} [{', '.join([f'*{above}'] * 10)}]")
    found = mistakes_of(write_cases(tmp_path, "\n".join(lines)))
    assert [one[2] for one in found] == ["more than 100,000 values, aliases written out"]


def test_a_large_file_is_refused_without_reading_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """100 MB are refused by their size alone."""
    file = tmp_path / "large.yaml"
    with file.open("wb") as stream:
        stream.truncate(100_000_000)
    monkeypatch.setattr("yaml.parse", lambda *_, **__: pytest.fail("the file was read"))
    assert mistakes_of(file) == [(0, 0, f"the file has 100,000,000 bytes; at most {MAX_BYTES:,} are allowed")]


def test_a_file_that_is_not_utf8_is_a_mistake(tmp_path: Path) -> None:
    """The first byte that is not UTF-8 is named."""
    file = tmp_path / "latin.yaml"
    file.write_bytes(b"op: p_norm\nnote: caf\xe9\n")
    assert mistakes_of(file) == [(2, 10, "not UTF-8; save the file as UTF-8")]


def test_a_byte_order_mark_is_no_mistake(tmp_path: Path) -> None:
    """Some editors on Windows begin a file with one."""
    file = tmp_path / "bom.yaml"
    file.write_bytes(b"\xef\xbb\xbf" + (HEAD + CASE % "").encode())
    assert len(load_cases([file])) == 1


def test_missing_files_and_empty_folders_are_mistakes(tmp_path: Path) -> None:
    """All of them are told, by path."""
    folder = tmp_path / "empty"
    folder.mkdir()
    with pytest.raises(CaseFileError) as caught:
        load_cases([tmp_path / "none.yaml", folder])
    assert sorted(str(caught.value).splitlines()) == [
        f"{folder}: the folder has no case files (*.yaml)",
        f"{tmp_path / 'none.yaml'}: no such file",
    ]


def test_a_tensor_and_a_number_for_one_input_is_a_mistake(tmp_path: Path) -> None:
    """The weight of lerp is a shape or a parameter, not both."""
    text = LERP + "- {name: a, shapes: {x: [2], y: [2], weight: [2]}, params: {weight: 0.25}, dtype: float32}\n"
    assert [one[2] for one in mistakes_of(write_cases(tmp_path, text))] == [
        "weight is given both as a tensor (shapes.weight) and as a parameter"
    ]
