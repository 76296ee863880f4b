"""The workbook: every question of a first course on language models, answered by running it on texts of your own.

Each answer is computed once and kept, so that a killed workbook goes on where it stopped; the page is written from the
kept answers, and its sentences follow from their numbers.
"""

from fledge.workbook.book import write_workbook

__all__ = ["write_workbook"]
