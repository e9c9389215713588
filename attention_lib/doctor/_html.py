"""A report as HTML: a fragment for notebooks and a page of its own.

The fragment takes the colours of the page around it, light or dark. Its own colours are
those of lines beside the text, never of the text, and only repeat what words say.
"""

from __future__ import annotations

import html

from attention_lib.doctor import _map, _summary
from attention_lib.doctor._wrap import clean
from attention_lib.doctor.findings import Evidence, Examination, Finding, Remedy

STYLE = """
.attention-doctor { max-width: 46rem; line-height: 1.45; color: inherit; }
.attention-doctor :is(h1, h2, h3, h4) { margin: 0 0 .4em; color: inherit;
  font-size: 1.05em; font-weight: 650; line-height: 1.3; text-align: start; }
.attention-doctor :is(p, ul, dl, pre, table) { margin: 0 0 .7em; }
.attention-doctor .doctor-finding { margin: 1em 0; padding: .1em 0 .1em .9em;
  border-inline-start: 4px solid #0072b2; }
.attention-doctor .doctor-finding.fault { border-color: #d55e00; }
.attention-doctor .doctor-finding.healthy { border-color: #009e73; }
.attention-doctor .doctor-tag { margin-inline-end: .4em; padding: .05em .4em;
  border: 1px solid currentColor; border-radius: .25em; font-weight: 650; }
.attention-doctor dl { display: grid; gap: .25em 1em;
  grid-template-columns: max-content minmax(0, 1fr); }
.attention-doctor dt { margin: 0; font-weight: 600; }
.attention-doctor dd { margin: 0; overflow-wrap: anywhere; }
.attention-doctor :is(p, li, h1, h2, h3, h4) { overflow-wrap: anywhere; }
.attention-doctor :is(code, pre, table) { color: inherit; font-family: ui-monospace,
  Menlo, Consolas, monospace; font-size: .85em; }
.attention-doctor code { padding: 0; background: none; }
.attention-doctor pre { margin: 0; padding: .4em .6em; border: 0; overflow-x: auto;
  background: rgb(127 127 127 / 12%); white-space: pre-wrap; overflow-wrap: anywhere; }
.attention-doctor pre > span { display: block; padding-inline-start: 4ch;
  text-indent: -4ch; }
.attention-doctor .doctor-scroll { overflow-x: auto; }
.attention-doctor table { width: auto; border-collapse: collapse;
  font-variant-numeric: tabular-nums; }
.attention-doctor table :is(th, td) { padding: .15em .5em; border: 0;
  background: none; text-align: end; font-weight: 400; }
.attention-doctor table td.forbidden { font-weight: 700;
  box-shadow: inset 0 0 0 2px #d55e00; }
@media (max-width: 600px) {
  .attention-doctor dl { display: block; }
  .attention-doctor dd { margin-block-end: .5em; }
}
"""

PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{title}</title>
<style>
:root {{ color-scheme: light dark; }}
body {{ margin: 2rem auto; max-width: 46rem; padding: 0 1rem;
  font: 1rem/1.5 system-ui, -apple-system, "Segoe UI", sans-serif;
  color: #222832; background: #ffffff; }}
h1 {{ font-size: 1.5rem !important; }}
@media (prefers-color-scheme: dark) {{
  body {{ color: #dfe4ea; background: #14181d; }}
}}
</style>
</head>
<body>
<main>
{body}
</main>
</body>
</html>
"""


def page(examination: Examination) -> str:
    """A whole page that needs nothing else."""
    title = escape(f"{_summary.subject(examination)}: {_summary.tally(examination)}")
    return PAGE.format(title=title, body=fragment(examination, level=1))


def fragment(examination: Examination, *, level: int = 3) -> str:
    """The report with its style, for a notebook.

    Parameters
    ----------
    examination
        What to show.
    level
        Of the report's heading; its findings are one below.
    """
    label = f"Report of the doctor: {_summary.tally(examination)}"
    parts = [
        f'<section class="attention-doctor" aria-label="{escape(label)}">',
        f"<style>{STYLE}</style>",
        f"<h{level}>Attention doctor: {escape(_summary.tally(examination))}</h{level}>",
        f"<p>{_code(_summary.subject(examination))}<br>",
        f"{escape(_summary.setting(examination).replace('   ', ', '))}</p>",
        _verdict(examination),
    ]
    found = (*_summary.faults(examination), *_summary.notes(examination))
    parts += [_finding(finding, level + 1) for finding in found]
    parts += [_rest(examination, level + 1), "</section>"]
    return "\n".join(filter(None, parts))


def escape(text: str) -> str:
    """The text as HTML shows it, in an attribute as well."""
    return html.escape(text.encode("utf-8", "backslashreplace").decode("utf-8"))


def _code(text: str) -> str:
    return f"<code>{escape(text)}</code>"


def _verdict(examination: Examination) -> str:
    said = _summary.verdict(examination)
    if not said:
        return ""
    if not _summary.healthy(examination):
        return f'<p class="doctor-finding fault"><strong>{escape(said)}</strong></p>'
    probes = ", ".join(name.replace("_", " ") for name in examination.passed)
    return (
        f'<p class="doctor-finding healthy"><strong>{escape(said)}</strong><br>\n'
        f"Probes: {escape(clean(probes))}</p>"
    )


def _finding(finding: Finding, level: int) -> str:
    kind = "fault" if finding.severity == "fault" else "note"
    tag = f'<span class="doctor-tag">{kind} {escape(clean(finding.code))}</span>'
    message = escape(clean(finding.message))
    parts = [
        f'<div class="doctor-finding {kind}">',
        f"<h{level}>{tag} {message}</h{level}>",
        f"<p>{escape(clean(finding.evidence.text))}</p>"
        if finding.evidence.text
        else "",
        _dependencies(finding.evidence),
        "<dl>",
        *(f"<dt>{term}</dt><dd>{said}</dd>" for term, said in _fields(finding)),
        "</dl>",
        "</div>",
    ]
    return "\n".join(filter(None, parts))


def _fields(finding: Finding) -> list[tuple[str, str]]:
    """The terms and what they say, as HTML."""
    fields = []
    if finding.evidence.smallest:
        fields.append(("Smallest case", escape(clean(finding.evidence.smallest))))
    if finding.effect:
        fields.append(("You will see", escape(clean(finding.effect))))
    for rank, cause in enumerate(finding.causes, start=1):
        fields.append((f"Cause {rank}", escape(_summary.established(cause))))
    if finding.remedy:
        fields.append((finding.remedy.mark.capitalize(), _remedy(finding.remedy)))
    if finding.intended:
        fields.append(("Intended?", _code(clean(finding.intended))))
    for follower in _summary.everything(finding.follows):
        said = f"{clean(follower.code)}: {clean(follower.message)}"
        fields.append(("What follows", escape(said)))
    call, place = _summary.explained(finding.code), _summary.see(finding)
    fields.append(("Read on", f"{_code(call)}, or {escape(place)} in the book"))
    return fields


def _remedy(remedy: Remedy) -> str:
    lines = remedy.lines
    if any(line[:1] in ("-", "+") for line in lines):
        said = (f"<span>{escape(_diff_line(line))}</span>" for line in lines)
        return f"<pre>{''.join(said)}</pre>"
    return "<br>".join(escape(clean(line)) for line in lines)


def _diff_line(line: str) -> str:
    """One line of code, its indentation kept."""
    body = line[1:] if line[:1] in ("-", "+") else line
    indent = len(body) - len(body.lstrip(" "))
    return line[: len(line) - len(body)] + " " * indent + clean(body)


def _dependencies(evidence: Evidence) -> str:
    rows = _map.cells(evidence)
    if not rows:
        return ""
    marks = [" ".join(text.split()) for text in _map.legend(rows)]
    said = "How much each output y moves when an input x is replaced."
    kept = (f"{mark}.".replace(" ", "\N{NO-BREAK SPACE}") for mark in marks)
    caption = " ".join([said, *kept])
    count = max(len(row) for row in rows)
    head = "".join(f'<th scope="col">x{j}</th>' for j in range(count))
    body = "\n".join(
        f'<tr><th scope="row">y{i}</th>{"".join(map(_entry, row))}</tr>'
        for i, row in enumerate(rows)
    )
    return (
        f"<p>{escape(caption)}</p>\n"
        '<div class="doctor-scroll"><table aria-label="Dependency map">\n'
        f"<thead><tr><td></td>{head}</tr></thead>\n<tbody>\n{body}\n</tbody>\n"
        "</table></div>"
    )


def _entry(cell: _map.Cell) -> str:
    kind = ' class="forbidden"' if cell.mark == "forbidden" else ""
    return f"<td{kind}>{escape(cell.text)}</td>"


def _rest(examination: Examination, level: int) -> str:
    skipped = _summary.not_checked(examination)
    groups = {
        "Not checked": skipped["not checked"],
        "Cannot be told from outside": skipped["cannot be told"],
        "Allowed": [
            f"{clean(finding.code)} {clean(finding.message)}, because: {clean(reason)}"
            for finding, reason in examination.allowed
        ],
    }
    parts = []
    for name, lines in groups.items():
        if lines:
            items = "".join(f"<li>{escape(line)}</li>" for line in lines)
            parts.append(f"<h{level}>{name}</h{level}>\n<ul>{items}</ul>")
    if examination.repeat:
        parts.append(f"<p>Again: {_code(clean(examination.repeat))}</p>")
    return "\n".join(parts)
