"""Which version a name routes to when the registry starts."""

from __future__ import annotations

from services.registry.core.routing import choose_routes, deployed_versions


def test_a_name_without_a_route_gets_its_newest_version() -> None:
    assert choose_routes({}, {"a": ["a@1", "a@2"], "b": ["b@1"]}, []) == {"a": "a@2", "b": "b@1"}


def test_a_route_that_was_set_stays_although_a_newer_version_arrived() -> None:
    assert choose_routes({"a": "a@1"}, {"a": ["a@1", "a@2"]}, []) == {"a": "a@1"}


def test_only_served_names_get_a_new_route_and_old_routes_stay() -> None:
    versions = {"a": ["a@1"], "b": ["b@1"], "c": ["c@1"]}
    assert choose_routes({"c": "c@1"}, versions, ["a"]) == {"a": "a@1", "c": "c@1"}


def test_a_route_to_a_refused_version_falls_back_to_the_newest_sound_one() -> None:
    assert choose_routes({"a": "a@3"}, {"a": ["a@1", "a@2"]}, ["b"]) == {"a": "a@2"}


def test_a_route_without_any_sound_version_is_withdrawn() -> None:
    assert choose_routes({"a": "a@1", "b": "b@1"}, {"b": ["b@1"]}, []) == {"b": "b@1"}


def test_served_names_are_deployed_in_the_order_asked_for() -> None:
    routes = {"a": "a@1", "b": "b@1", "c": "c@1"}
    assert deployed_versions(routes, ["c", "missing", "a"]) == ["c@1", "a@1"]
    assert deployed_versions(routes, []) == ["a@1", "b@1", "c@1"]


def test_a_worker_kept_for_one_name_holds_no_other() -> None:
    routes = {"a": "a@1", "b": "b@1", "ab": "ab@1"}
    assert deployed_versions(routes, ["a", "b"], "b") == ["b@1"]
    assert deployed_versions(routes, [], "a") == ["a@1"]
    assert deployed_versions(routes, ["a"], "b") == []
