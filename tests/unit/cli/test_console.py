"""What the operator reads."""

from __future__ import annotations

import io

from tokenloom.up.console import Console


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_each_line_says_who_speaks():
    stream = io.StringIO()
    console = Console(stream)
    console.event("starting")
    console.output("gateway-1", "ready")
    assert stream.getvalue() == "up         | starting\ngateway-1  | ready\n"


def test_colours_are_for_terminals_that_want_them(monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    stream = Terminal()
    Console(stream).event("hello")
    assert stream.getvalue().endswith("\x1b[0m hello\n")
    monkeypatch.setenv("NO_COLOR", "1")
    plain = Terminal()
    Console(plain).event("hello")
    assert "\x1b" not in plain.getvalue()


def test_services_can_speak_elsewhere():
    own, services = io.StringIO(), io.StringIO()
    Console(own, services=services).output("usage", "row")
    assert (own.getvalue(), services.getvalue()) == ("", "usage      | row\n")
