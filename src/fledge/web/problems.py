"""One form for every problem: a status, and a sentence that says what is wrong and where, in the request's words."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from typing import Any, NamedTuple

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from fledge.errors import FledgeError
from fledge.web.library import NotFound
from fledge.web.streams import Gone
from fledge.web.worker import Busy

# What says that a value is of another kind, rather than of the right kind and out of bounds.
STRANGE = ("missing", "extra_forbidden", "value_error")
REWORDED = {"missing": "is missing", "extra_forbidden": "is not a field of this request"}
NO_OBJECT = "The body of the request should be a JSON object, sent as application/json."


def handle_problems(app: FastAPI) -> None:
    """Every problem has the same form, whatever found it."""

    @app.exception_handler(FledgeError)
    async def mistake(request: Request, error: FledgeError) -> Response:
        if isinstance(error, NotFound):
            return problem(404, str(error), "not_found")
        if isinstance(error, Busy):
            return problem(503, str(error), "busy", {"retry-after": "2"})
        return problem(400, str(error), "invalid_request_error")

    @app.exception_handler(RequestValidationError)
    async def form(request: Request, error: RequestValidationError) -> Response:
        return problem(422, problem_sentence(error.errors(), error.body), "invalid_request_error")

    @app.exception_handler(HTTPException)
    async def status(request: Request, error: HTTPException) -> Response:
        return problem(error.status_code, str(error.detail), "http", dict(error.headers or {}))

    @app.exception_handler(Gone)
    async def gone(request: Request, error: Gone) -> Response:
        return Response(status_code=499)  # nobody reads it

    @app.exception_handler(OSError)
    async def unreadable(request: Request, error: OSError) -> Response:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return problem(507, "The disk is full: nothing was kept of it. Free some space and try again.", "full")
        return problem(404, f"The files could not be read: {error.strerror or 'they changed meanwhile'}.", "not_found")

    @app.exception_handler(Exception)
    async def mistake_of_ours(request: Request, error: Exception) -> Response:
        return problem(500, "Something went wrong in the server; its terminal says what.", "server_error")


def problem(status: int, message: str, kind: str, headers: dict[str, str] | None = None) -> JSONResponse:
    return JSONResponse({"error": {"message": message, "type": kind, "param": None, "code": None}}, status, headers)


class Fault(NamedTuple):
    """One thing that does not fit: `place` leads to it in the request, by way of the forms in `branch` (the first of
    which was chosen at `fork`) where a value may have several."""

    place: tuple[str | int, ...]
    branch: tuple[str | int, ...]
    fork: int
    kind: str
    message: str

    @property
    def strange(self) -> bool:
        return self.kind in STRANGE or self.kind.endswith("_type")


def problem_sentence(errors: Sequence[dict[str, Any]], body: Any) -> str:
    """The first thing that does not fit, by its place; of a value with several forms, told of the one meant."""
    if errors[0]["type"] == "json_invalid":
        return f"The body is not valid JSON: {errors[0]['ctx']['error']} at character {errors[0]['loc'][-1]}."
    faults = [locate(error, body) for error in errors]
    first = faults[0]
    if first.branch:
        trunk = first.place[: first.fork]
        forms: dict[str | int, list[Fault]] = {}
        for fault in faults:
            if fault.branch and fault.place[: fault.fork] == trunk:
                forms.setdefault(fault.branch[0], []).append(fault)
        least = min(map(distance, forms.values()))
        meant = [form[0] for form in forms.values() if distance(form) == least]
        first = meant[0]
        if least[0] and len(meant) > 1:
            return f"{dotted(trunk)}: a value of this kind does not fit." if trunk else NO_OBJECT
        if first.kind == "missing":  # any of the forms would do
            names = " or ".join(dict.fromkeys(dotted(fault.place) for fault in meant))
            return f"{names} is missing."
    if not first.place:
        return f"The body of the request: {first.message}." if first.kind.startswith("bytes_") else NO_OBJECT
    return f"{dotted(first.place)}{' ' if first.kind in REWORDED else ': '}{first.message}."


def locate(error: dict[str, Any], body: Any) -> Fault:
    """An error's place in what was sent: parts of it that are not there are names of our types, and not shown."""
    parts, kind = error["loc"], error["type"]
    text = str(error["msg"]).removeprefix("Value error, ")
    message = REWORDED.get(kind, text[:1].lower() + text[1:])
    if parts[0] != "body":
        return Fault(tuple(parts[1:]), (), 0, kind, message)
    place: list[str | int] = []
    branch: list[str | int] = []
    fork, value = 0, body
    for number, part in enumerate(parts[1:], 2):
        known: Any = value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
        if part in known:
            place, value = [*place, part], value[part]
        elif kind == "missing" and number == len(parts):
            place = [*place, part]
        else:
            fork = fork if branch else len(place)
            branch.append(part)
    return Fault(tuple(place), tuple(branch), fork, kind, message)


def distance(form: list[Fault]) -> tuple[Any, ...]:
    """How far a value is from one of its forms: another kind of thing altogether, other fields, other parts; and
    among equals, how soon it departs."""
    departures = [[part for part in fault.place if isinstance(part, int)] for fault in form if fault.strange]
    return (
        any(fault.strange and fault.kind not in REWORDED and len(fault.place) == fault.fork for fault in form),
        sum(fault.kind in REWORDED for fault in form),
        len(departures) > 0,
        [-part for part in min(departures, default=[])],
    )


def dotted(place: Sequence[str | int]) -> str:
    return ".".join(map(str, place))
