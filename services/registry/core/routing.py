"""Which version a name routes to."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence


def choose_routes(
    routed: Mapping[str, str], versions: Mapping[str, Sequence[str]], served: Collection[str]
) -> dict[str, str]:
    """The routes that ought to hold: each name's present one where its version is sound, else the newest.

    `versions` lists each name's sound versions, oldest first. Names outside `served` get no new route; an
    empty `served` means every name. A route whose name has no sound version left is not in the result.
    """
    chosen = {}
    for name, known in versions.items():
        if routed.get(name) in known:
            chosen[name] = routed[name]
        elif known and (name in routed or not served or name in served):
            chosen[name] = known[-1]
    return chosen


def deployed_versions(routes: Mapping[str, str], served: Sequence[str], only: str = "") -> list[str]:
    """The versions that workers hold: the route of each served name, in the order they were asked for.

    `only`, where it is not empty, leaves out every other name.
    """
    names = served or sorted(routes)
    return [routes[name] for name in names if name in routes and only in {"", name}]
