"""Checks for the book's exercises: they say in words what is wrong and never raise.

Each check takes the reader's function, tries it and returns a :class:`Result` whose
text names the likely cause. One module a chapter: ``from attention_lib.checks import
chapter02`` and then ``chapter02.look_up(my_function)``.
"""

from attention_lib.checks._report import Result

__all__ = ["Result"]
