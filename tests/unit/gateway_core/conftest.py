"""A gateway's side of the lane, new and with a request."""

import pytest

from tests.unit.gateway_core.lane_scene import Scene


@pytest.fixture
def scene():
    return Scene()


@pytest.fixture
def running(scene):
    """A request with two tokens."""
    scene.submit()
    scene.accept()
    scene.token(300, 301)
    return scene
