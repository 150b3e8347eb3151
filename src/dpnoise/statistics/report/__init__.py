"""What was published, as one HTML page, for the people who decide and the people who read.

It knows only the plain data of a record, so that a page says nothing that the record does not.
"""

from dpnoise.statistics.report.page import record_text, render

__all__ = ["record_text", "render"]
