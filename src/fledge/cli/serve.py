"""`fledge serve`: the workshop, a local page to see tokens, runs and models."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Annotated

import typer

from fledge.errors import FledgeError
from fledge.extras import install_command

SHORTEST_TOKEN = 16


def serve(
    runs: Annotated[
        list[Path] | None,
        typer.Argument(
            help="Folders of runs, single runs or bundles, or tokenizer files. Default: runs.", show_default=False
        ),
    ] = None,
    host: Annotated[
        str, typer.Option(help="The address to listen on; all except loopback need --token.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port; 0 chooses a free one.")] = 8765,
    token: Annotated[
        str | None, typer.Option(help="A secret that every request must send; `new` generates one.", show_default=False)
    ] = None,
    device: Annotated[
        str, typer.Option(help="Where models run: cpu, cuda, xpu or mps; auto chooses the fastest.")
    ] = "cpu",
    open_page: Annotated[bool, typer.Option("--open/--no-open", help="Open the page in the browser.")] = True,
) -> None:
    """Open a local page to see tokens, watch runs, generate text and account for models. Nothing leaves
    the machine."""
    try:
        from fledge.web.server import start
    except ModuleNotFoundError as error:
        if error.name not in ("fastapi", "uvicorn", "starlette"):
            raise
        raise FledgeError(f"The page needs two more packages: {install_command('web')}") from None

    if token == "new":
        token = secrets.token_urlsafe(24)
    if token is not None and len(token) < SHORTEST_TOKEN:
        raise FledgeError(
            f"--token needs at least {SHORTEST_TOKEN} characters, so that nobody guesses it; `new` makes one."
        )
    start(
        runs or [Path("runs")], host=host, port=port, token=token, device=device, open_page=open_page, waiting=not runs
    )
