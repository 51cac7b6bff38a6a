"""What a whole run beside peers holds can be drawn; half a run is not drawn for it."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from bench import plots
from bench.peers.workloads import WORKLOADS

SERVERS = ("tokenloom bfloat16", "vllm bfloat16")


def result(*workloads: str) -> dict[str, object]:
    rounds = [{"output_tok_s": 100.0, "ttft_p50_ms": 250.0}, {"output_tok_s": 300.0, "ttft_p50_ms": 750.0}]
    return {"figures": {server: dict.fromkeys(workloads, rounds) for server in SERVERS}}


@pytest.mark.parametrize(("draw", "shown"), [(plots.rates, "200"), (plots.first_tokens, "0.5")])
def test_a_bar_a_server_and_workload_shows_the_median_over_rounds(draw, shown):
    drawn = ElementTree.fromstring(draw(result(*(work.name for work in WORKLOADS))))
    texts = [element.text for element in drawn.iter("{http://www.w3.org/2000/svg}text")]
    assert texts.count(shown) == len(SERVERS) * len(WORKLOADS)
    assert f"{WORKLOADS[0].name}: {SERVERS[1]}" in texts


def test_a_server_that_never_came_up_has_no_bar():
    lost = result("128/128, 1")
    lost["figures"][SERVERS[1]] = {"128/128, 1": []}
    assert SERVERS[1] not in plots.rates(lost)


def test_only_a_run_of_all_workloads_is_drawn():
    assert plots.drawable("peers", result(*(work.name for work in WORKLOADS)))
    assert not plots.drawable("peers", result("128/128, 8"))
