"""Grading of notebooks: read, run in a process of its own, mark, report.

The folder and grade_all.py go into a grading kit as they are, so they import nothing of
the book.
"""
