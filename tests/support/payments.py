"""What a request pays for: statistics that share noisy sums pay once."""

from dpnoise.statistics import Request
from dpnoise.statistics.composition import Loss


def losses_paid(request: Request) -> list[Loss]:
    """Return the losses of all queries that draw noise."""
    payers = {id(getattr(query, "base", None) or query): query for _, query in request.prepare()}
    return [loss for query in payers.values() for loss in query.losses]
