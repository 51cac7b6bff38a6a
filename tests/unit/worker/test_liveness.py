"""Liveness: busy is not hung, and idle is not dead."""

from services.worker.core.liveness import Liveness


def test_health_tells_a_hung_engine_from_a_busy_one():
    liveness = Liveness(hang_s=30)
    liveness.started(100.0)
    assert not liveness.hung(129.0)
    assert liveness.hung(131.0)
    liveness.finished()
    assert not liveness.hung(131.0)


def test_an_idle_engine_is_alive_however_long_it_idles():
    liveness = Liveness(hang_s=30)
    liveness.started(0.0)
    liveness.finished()
    assert not liveness.hung(10_000.0)
