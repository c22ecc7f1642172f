"""What surrounds a request of one stream: the server's counters, before it and after."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Literal

from draftmeter.measure.probe import scrape, scrape_settled
from draftmeter.record.types import CounterRecord

if TYPE_CHECKING:
    import aiohttp

    from draftmeter.measure.probe import LiveTarget
    from draftmeter.record.folder import RunFolder


async def count(
    http: aiohttp.ClientSession,
    folder: RunFolder,
    live: LiveTarget,
    number: int,
    moment: Literal["before", "after"],
) -> None:
    """Scrape the counters around request ``number``, if this server has any that can be read."""
    if live.metrics_problem is not None:
        return
    settled = True
    if moment == "before":
        seen = await scrape(http, live)
    else:
        seen, settled = await scrape_settled(http, live)
    folder.add_counters(
        CounterRecord(
            target=live.name,
            request=number,
            moment=moment,
            at=time.time(),
            snapshot=None if isinstance(seen, str) else seen,
            settled=settled,
            problem=seen if isinstance(seen, str) else None,
        )
    )
