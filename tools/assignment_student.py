"""What a student gets of a chapter: one zip with the notebook and a page on it."""

from __future__ import annotations

import io
import zipfile

from assignment_source import Chapter
from exercises import without_solutions
from notebook_files import layout

README = """\
# {title}: exercises

Open `{slug}.ipynb`, in Colab (colab.research.google.com, "File", "Upload notebook") or
in JupyterLab. Its first code cell installs what the chapter needs where it is missing. On
your own computer, PyTorch and Matplotlib come with

    pip install jupyterlab "attention-lib[plot] @ git+{repository}"

{exercises}

Read the chapter and run its cells on the way: the exercises are at its end. Lines that
begin with colons, words in braces and links to other chapters are for the pages of the
book; Jupyter shows them as they are. Each has
three cells: the text, a function to fill in (replace the `...`), and a check that says in
words what is wrong. Run the check as often as you like.

Keep the names of the functions and the cells of the exercises: your answers are found by
them. Before you hand in the notebook, restart the kernel and run all cells. A cell that is
not answered only says so.

Text and figures: CC BY 4.0. Code: BSD 3-Clause. From {repository}
"""


def student_zip(chapter: Chapter, repository: str) -> bytes:
    """The bytes of the zip, the same each time."""
    slug = chapter.slug
    readme = README.format(
        title=chapter.title,
        slug=slug,
        repository=repository,
        exercises=_table(chapter),
    )
    return _zipped(
        {
            f"{slug}/README.md": readme,
            f"{slug}/{slug}.ipynb": layout(without_solutions(chapter.nb)),
        }
    )


def _table(chapter: Chapter) -> str:
    rows = ["| exercise | points | minutes |", "|---|---|---|"]
    for one in chapter.exercises:
        minutes = str(one.minutes) if one.minutes else "open"
        rows.append(f"| {one.number} {one.title} | {one.stars} | {minutes} |")
    return "\n".join(rows)


def _zipped(files: dict[str, str]) -> bytes:
    """A zip that depends on no clock, no user and no build of zlib."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, text in files.items():
            member = zipfile.ZipInfo(name)  # of 1 January 1980
            member.create_system = 3  # Unix, also where it is made on Windows
            member.external_attr = 0o644 << 16
            archive.writestr(member, text)
    return file.getvalue()
