"""What is said at the top of the page: a card per comparison, in one sentence and one bar."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from lapgrad.report import findings, quantities
from lapgrad.report.findings import EVEN_TEXT, Comparison, Tally
from lapgrad.report.markup import Content, Markup, joined, tag
from lapgrad.report.rows import Timed

_EQUAL_MEMORY = 2e5
"""Bytes."""

_LISTED = 6
"""Cases that are named at once; the others can be unfolded."""


def card(title: str, *content: Content, style: str = "") -> Markup:
    """A box with a heading."""
    return tag("section", tag("h3", title), *content, class_=f"card {style}".strip())


def tally_card(title: str, peer: str, tally: Tally, detail: str = "") -> Markup:
    """Counts and medians of a comparison, the share of each verdict as a bar, and where lapgrad is behind.

    Args:
        title: what was compared, and where.
        peer: the name of the other library, with its version.
        tally: the comparison.
        detail: medians of parts of the cases.
    """
    total = len(tally.comparisons)
    least, most = tally.range
    faster, even, slower = (tally.count(verdict) for verdict in ("faster", "even", "slower"))
    lead = tag(
        "p",
        "lapgrad is ",
        tag("strong", f"faster than {peer} in {faster:,} of {quantities.counted(total, 'case')}"),
        ", median ",
        tag("strong", quantities.ratio(tally.median)),
        f" ({quantities.ratio(least)} to {quantities.ratio(most)}); ",
        f"within {EVEN_TEXT} in {even:,}; " if even else None,
        tag("strong", f"slower in {slower:,}") if slower else "slower in none",
        ":" if slower else ".",
        class_="lead",
    )
    doubtful = tally.doubtful
    note = (
        f"In {doubtful:,} of these cases the quartiles of both overlap: noise may decide."
        if doubtful
        else None
    )
    return card(
        title,
        lead,
        _slower(tally),
        _bar(faster, even, slower),
        (tag("p", text, class_="soft") for text in (detail, note) if text),
    )


def _slower(tally: Tally) -> Markup | None:
    """Cases one by one where they are few; else by operator, with all of them to unfold."""
    slower = tally.of("slower")
    if len(slower) <= _LISTED + 2:
        return named([case_text(c) for c in slower])
    items = []
    for name, total in Counter(c.case.subject for c in tally.comparisons).items():
        own = [c for c in slower if c.case.subject == name]
        if own:
            text = f"{name} in {len(own):,} of {total:,}, at worst "
            items.append((-len(own) / total, joined(text, tag("b", quantities.ratio(own[0].ratio)))))
    by_operator = [item for _, item in sorted(items, key=lambda pair: pair[0])]
    every = tag("ul", (tag("li", case_text(c)) for c in slower), class_="cases")
    return joined(named(by_operator), tag("details", tag("summary", f"all {len(slower):,} cases"), every))


def named(items: Sequence[Content]) -> Markup | None:
    """A list; what goes beyond a few lines can be unfolded."""
    if not items:
        return None
    shown = [tag("li", item) for item in items]
    if len(shown) <= _LISTED + 2:
        return tag("ul", shown, class_="cases")
    rest = tag(
        "details",
        tag("summary", f"and {len(shown) - _LISTED:,} more"),
        tag("ul", shown[_LISTED:], class_="cases"),
    )
    return joined(tag("ul", shown[:_LISTED], class_="cases"), rest)


def case_text(comparison: Comparison) -> Markup:
    """A case and its speed-up.

    Example:
        >>> from lapgrad.report.rows import Case, Timing
        >>> case = Case("potrf", (("", 64.0), ("", 64.0)), "float64", "cpu", 2, "forward")
        >>> slow, fast = (Timing(t, t, t, 5) for t in (2.0, 1.0))
        >>> case_text(Comparison(case, "torch", slow, fast))
        'potrf 64 float64 forward <b>0.50×</b>'
    """
    return joined(str(comparison.case), " ", tag("b", quantities.ratio(comparison.ratio)))


def memory_sentence(rows: Sequence[Timed]) -> Markup | None:
    """Where lapgrad takes less memory than others, and where more; None where nobody's was measured."""
    found = findings.footprints(rows)
    if not found:
        return None
    # The peak is known to some 100 kB: differences below that say nothing.
    less = [f for f in found if f.theirs - f.ours > _EQUAL_MEMORY]
    more = sorted((f for f in found if f.ours - f.theirs > _EQUAL_MEMORY), key=lambda f: f.theirs / f.ours)
    lead = tag(
        "p",
        "Peak of extra memory: ",
        tag("strong", f"less than others in {len(less):,} of {quantities.counted(len(found), 'comparison')}"),
        f", equal in {len(found) - len(less) - len(more):,}, ",
        tag("strong", f"more in {len(more):,}") if more else "more in none",
        ":" if more else ".",
        class_="lead",
    )
    items = [f"{f.case}: {quantities.memory(f.ours)}, {f.peer} {quantities.memory(f.theirs)}" for f in more]
    return joined(lead, named(items))


def failures_sentence(rows: Sequence[Timed]) -> Markup | None:
    """Which libraries have no time on which cases, and why; None where all have."""
    failed = [row for row in rows if row.timing is None]
    if not failed:
        return None
    items = [f"{row.library}, {row.case}: {row.failure or 'no time'}" for row in failed]
    return joined(
        tag("p", tag("strong", f"No result in {quantities.counted(len(failed), 'case')}"), ":"), named(items)
    )


def _bar(faster: int, even: int, slower: int) -> Markup:
    total = faster + even + slower
    parts, start = [], 0.0
    for count, style in ((faster, "good"), (even, "even"), (slower, "bad")):
        width = 100 * count / total
        if count:
            parts.append(
                tag("rect", x=f"{start:.2f}%", width=f"{width:.2f}%", y=0, height=14, class_=f"share {style}")
            )
        start += width
    words = f"faster {faster:,}, about equal {even:,}, slower {slower:,}"
    bar = tag("svg", parts, width="100%", height=14, role="img", aria_label=words)
    return tag("div", bar, tag("p", words, class_="soft"), class_="shares")
