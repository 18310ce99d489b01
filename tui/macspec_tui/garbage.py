"""When Python looks for unreachable objects: after an answer, not while somebody types and text streams.

A search through everything takes 60 to 130 ms here, in which no key is seen, and Python starts one about every second
while an answer is drawn. The frequent searches through new objects take about 1 ms and go on as always.
"""

from __future__ import annotations

import gc

from textual._styles_cache import StylesCache

#: Searches of the middle generation until Python itself searches everything: about 15,000 tokens of one answer, so
#: that an answer without end is bounded too.
FULL_AFTER = 1000


def prepare() -> None:
    """Take what was made at the start out of every later search, and leave full ones to `collect`."""
    gc.freeze()
    young, middle, _ = gc.get_threshold()
    gc.set_threshold(young, middle, FULL_AFTER)


def collect() -> None:
    """Search everything now; does nothing in a process that was not prepared."""
    if gc.get_freeze_count():
        _release_removed_widgets()
        gc.collect()


def _release_removed_widgets() -> None:
    # Textual keeps two colours per widget in one cache of 1,024 entries, and with each the lines that the widget drew,
    # also of widgets that are gone: 0.6 MB a turn until it is full. A version without that cache needs nothing.
    cache = getattr(StylesCache, "get_inner_outer", None)
    clear = getattr(cache, "cache_clear", None)
    if clear is not None:
        clear()
