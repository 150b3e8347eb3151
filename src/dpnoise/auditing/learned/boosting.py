"""Gradient boosted trees as one more view of an output; scikit-learn is an extra.

Trees see how parts of an output depend on each other, which sums of views do not. What they say is
a view like others: its likelihood ratio and its threshold are learned on other releases.
"""

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dpnoise.auditing.learned.views import Block, View
from dpnoise.core.errors import import_extra

Floats = NDArray[np.float64]

TREES: Final = "trees"
_SETTINGS: Final[dict[str, Any]] = {
    "max_iter": 60,
    "max_leaf_nodes": 16,
    "learning_rate": 0.15,
    "min_samples_leaf": 100,
    "early_stopping": False,
}


def boosted_trees(rows: Floats, often0: Floats, often1: Floats, seed: int) -> View:
    """Return what trees that were learned from these rows say.

    Each row was seen so often at one data set, and so often at the other.
    """
    ensemble = import_extra("sklearn.ensemble", "learning")
    model = ensemble.HistGradientBoostingClassifier(random_state=seed, **_SETTINGS)
    seen, often = np.append(often0, often1) > 0, np.append(often0, often1)
    side = np.repeat([1, 0], len(rows))
    model.fit(np.concatenate([rows, rows])[seen], side[seen], sample_weight=often[seen])

    def take(block: Block) -> Floats:
        return np.asarray(model.decision_function(block.rows))

    return View("the likelihood ratio that boosted trees give", TREES, take)
