"""The search of the paper's section 6 on a device finds what the processor's finds."""

import pytest
import torch

from dpnoise.auditing.attacks import searches
from reproduction import device_search, preimages


@pytest.mark.parametrize("pair", [(0.75, 0.125), (819 / 4096, 1500 / 4096), (1 / 4096, 3 / 4096)])
def test_the_pair_is_found_and_all_others_that_the_processor_finds(
    pair: tuple[float, float], device: torch.device
) -> None:
    release = 1.0 + 4.0 * searches.gaussian_of_uniforms(*pair)
    on_device = device_search.gaussian_preimages(release, 12, device, value=1.0, scale=4.0)
    on_processor = preimages.gaussian_preimages(release, 12, value=1.0, scale=4.0)
    assert pair in on_device.preimages
    assert on_device == on_processor


def test_few_are_listed_where_the_first_uniform_would_have_to_be_one(device: torch.device) -> None:
    """For one angle in 20 V is far below 2^-p; that a solution is near by luck is 2^-28 each."""
    listed, _ = device_search.checks(
        searches.gaussian_of_uniforms(0.3125, 0.125), 16, device, 0, 2**14 + 1
    )
    assert 1 <= listed < 20


@pytest.mark.cuda
def test_a_whole_search_of_24_bits_recovers_the_pair(device: torch.device) -> None:
    pair = (5_592_407 * 2.0**-24, 2_796_203 * 2.0**-24)
    search = device_search.gaussian_preimages(searches.gaussian_of_uniforms(*pair), 24, device)
    assert pair in search.preimages
    assert search.checks == 2**22 + 1
