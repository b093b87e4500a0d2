"""How many programs share a request's keys."""

import pytest

from kernels_triton.attention_parts import PARTIALS, SPAN, spans


@pytest.mark.parametrize("requests", [1, 5, 1024, 1025, 2048, 100_000])
@pytest.mark.parametrize("bound", [1, 16, SPAN, SPAN + 1, 131_072, 1 << 24])
@pytest.mark.parametrize("units", [1, 148, 10**6])
@pytest.mark.parametrize("single", [True, False])
def test_spans_cover_every_key_and_the_workspace_is_bounded(requests, bound, units, single):
    count, span = spans(requests, 8, bound, units, single)
    assert span % SPAN == 0 and count >= 1
    assert count == 1 or (single and count * span >= bound > (count - 1) * span)
    assert requests * count <= max(PARTIALS, requests)
