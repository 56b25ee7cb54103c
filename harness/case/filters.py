"""Filters as users type them: exact names, wildcards (`*`, `?`) and regular expressions (`/…/`)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

from opgauge.harness.case.hint import did_you_mean
from opgauge.harness.errors import FilterError


def matches_text(pattern: str, text: str) -> bool:
    """Whether `pattern`, with the wildcards `*` and `?`, matches the whole of `text`."""
    return _wildcard(pattern).fullmatch(text) is not None


def is_expression(pattern: str) -> bool:
    """Whether a filter is a regular expression, `/…/`."""
    return len(pattern) > 1 and pattern[0] == pattern[-1] == "/"


def matches(pattern: str, name: str, *, anywhere: bool = False) -> bool:
    """Whether a filter selects `name`.

    anywhere: plain text and wildcards may match a part of the name. A regular expression always may. Raises
    FilterError for an invalid regular expression.
    """
    if is_expression(pattern):
        return _expression(pattern[1:-1]).search(name) is not None
    if pattern == name:
        return True
    return matches_text(f"*{pattern}*" if anywhere else pattern, name)


def matches_case(pattern: str, path: str, case_id: str, *, sweeps: bool = False) -> bool:
    """Whether a filter for cases selects the one with that path, `op/name`, and id.

    A filter is an op, `op/name`, or the 16 digits of an id; `*` matches any text and `?` one character. Brackets are
    literal, because names contain them. `/…/` is a regular expression for `op/name`.
    sweeps: a name without its brackets selects every case of its sweep; a waiver does not.
    """
    if pattern == case_id:
        return True
    if is_expression(pattern):
        return matches(pattern, path)
    if "/" not in pattern:
        return matches_text(f"{pattern}/*", path)
    is_swept = sweeps and path.endswith("]") and matches_text(pattern, path.partition("[")[0])
    return is_swept or matches_text(pattern, path)


def matches_any_case(patterns: Sequence[str] | None, path: str, case_id: str) -> bool:
    """Whether any filter for cases selects the one with that path and id; no filters select everything."""
    return not patterns or any(matches_case(pattern, path, case_id, sweeps=True) for pattern in patterns)


def matches_any(patterns: Sequence[str] | None, names: Iterable[str], *, anywhere: bool = False) -> bool:
    """Whether any pattern selects any name; no patterns select everything."""
    return not patterns or any(matches(pattern, name, anywhere=anywhere) for name in names for pattern in patterns)


def require_matches(
    filters: Mapping[str, Sequence[str] | None], known: Mapping[str, Iterable[str]], *, anywhere: Sequence[str] = ()
) -> None:
    """Raise FilterError for each filter value that selects nothing, with the nearest existing name.

    filters, known: values and existing names by option (`--op`). anywhere: options whose values may match a part.
    """
    mistakes: list[str] = []
    for option, patterns in filters.items():
        names = sorted(set(known[option]))
        mistakes += [
            f"{option} {pattern} matches nothing{did_you_mean(pattern, names)}"
            for pattern in patterns or ()
            if not any(matches(pattern, name, anywhere=option in anywhere) for name in names)
        ]
    if mistakes:
        raise FilterError("\n".join(mistakes))


def require_cases(patterns: Sequence[str] | None, cases: Iterable[tuple[str, str]]) -> None:
    """Raise FilterError for each filter for cases, `--case`, that selects none of these paths and ids."""
    listed = list(cases)
    paths = {path for path, _ in listed}
    names = sorted(paths | {path.partition("/")[0] for path in paths})

    def is_in_vain(pattern: str) -> bool:
        return not any(matches_case(pattern, *case, sweeps=True) for case in listed)

    mistakes = []
    for pattern in filter(is_in_vain, patterns or ()):
        of_any_op = f"*/{pattern}"
        near = did_you_mean(pattern, names) if is_in_vain(of_any_op) else f"; did you mean {of_any_op!r}?"
        mistakes.append(f"--case {pattern} matches nothing{near}")
    if mistakes:
        raise FilterError("\n".join(mistakes))


@lru_cache(maxsize=1024)
def _wildcard(pattern: str) -> re.Pattern[str]:
    wild = {"*": ".*", "?": "."}
    return re.compile("".join(wild.get(one) or re.escape(one) for one in pattern), re.DOTALL)


@lru_cache(maxsize=1024)
def _expression(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        msg = f"/{text}/ is no regular expression: {error}"
        raise FilterError(msg) from error
