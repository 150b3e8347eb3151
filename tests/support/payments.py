"""What a request pays for: statistics that share noisy sums pay once."""

from dpnoise.statistics import Request
from dpnoise.statistics.composition import Loss
from dpnoise.statistics.group_discovery import FROM_DISCOVERY
from dpnoise.statistics.shared_sums import payer_of


def losses_paid(request: Request) -> list[Loss]:
    """Return the losses of all queries that draw noise after groups are discovered."""
    queries = (query for _, query in request.prepare())
    payers = dict.fromkeys(
        payer_of(query) for query in queries if not isinstance(query, FROM_DISCOVERY)
    )
    return [loss for query in payers for loss in query.losses]
