"""How often a scheduler that has just started is asked again."""

from services.gateway.core.again import LONGEST_S, Again


def asked(request_id, until=5.0):
    again, times, now = Again(), [], 0.0
    again.allow(request_id, until)
    while (now := again.after(request_id, "NO_CAPACITY", now)) is not None:
        times.append(now)
    return times


def test_a_request_is_asked_for_again_a_few_times_within_its_time():
    for request_id in range(1, 10_000, 97):
        times = asked(request_id)
        assert 6 <= len(times) <= 14
        assert times[0] <= 0.1
        assert times[-1] < 5.0 + LONGEST_S


def test_requests_that_were_refused_together_do_not_return_together():
    seconds = [round(asked(request_id)[3], 2) for request_id in range(1, 998)]
    assert max(map(seconds.count, seconds)) < 100


def test_another_refusal_or_one_that_nobody_allowed_counts():
    again = Again()
    assert again.after(1, "NO_CAPACITY", 0.0) is None
    again.allow(1, 5.0)
    assert again.after(1, "QUEUE_FULL", 0.0) is None
    again.settled(1)
    assert again.after(1, "NOT_FOUND", 0.0) is None
