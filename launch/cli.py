"""The `midstream` command. Each command imports its module when it runs, so that none waits for another's libraries."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import ValidationError
from rich.console import Console

from bench.cli import app as bench
from bench.eval.cli import evaluate
from bench.interception.cli import simulate
from bench.profile_cli import profile
from engine.settings import EngineSettings
from launch.children import Role
from launch.settings import LaunchSettings
from realtime.settings import RealtimeSettings
from web.settings import WebSettings
from workers.settings import WorkerSettings

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help=("A self-hosted chat server that starts working before you press Enter."),
)

Host = Annotated[str | None, typer.Option(help="Address to listen on.")]
Port = Annotated[int | None, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes a free one.")]
Data = Annotated[Path | None, typer.Option(help="Folder for everything that is kept.")]


class Check(StrEnum):
    """What `midstream doctor --only` can name; the checks are in `launch.doctor`."""

    PYTHON = "python"
    TORCH = "torch"
    MODEL = "model"
    DISK = "disk"
    REDIS = "redis"
    SERVER = "server"
    WORKER = "worker"


@app.command()
def serve(
    role: Annotated[Role, typer.Option(help="Everything, or one part of a server on several machines.")] = Role.ALL,
    host: Host = None,
    port: Port = None,
    data: Data = None,
) -> None:
    """Start the server and keep it running until Ctrl-C."""
    from launch.serve import serve as run

    raise typer.Exit(run(role, _settings(host, port, data)))


@app.command()
def prepare() -> None:
    """Download or convert the model, so that the first start is quick."""
    from launch.prepare import prepare as run

    _settings(None, None, None)
    raise typer.Exit(run())


@app.command()
def doctor(
    host: Host = None,
    port: Port = None,
    data: Data = None,
    only: Annotated[list[Check] | None, typer.Option(help="Do this check only; may be repeated.")] = None,
) -> None:
    """Check this machine and a running server, and say what to do."""
    from launch.doctor import doctor as run

    raise typer.Exit(run(_settings(host, port, data), list(only or [])))


@app.command()
def chat(
    url: Annotated[str, typer.Option(help="The server.")] = "http://127.0.0.1:8080",
    key: Annotated[str, typer.Option(envvar="MIDSTREAM_API_KEY", help="API key, if the server wants one.")] = "",
    strategy: Annotated[str, typer.Option(help="off, prefill, draft or notes; empty leaves it to the server.")] = "",
    tool: Annotated[list[str] | None, typer.Option(help="A server tool the model may call; may be repeated.")] = None,
) -> None:
    """Chat in the terminal; what you type is streamed to the server while you type it."""
    from launch.chat import chat as run

    raise typer.Exit(run(url, key, strategy, tool or []))


app.command()(simulate)
app.command()(profile)
app.command("eval")(evaluate)
app.add_typer(bench, name="bench")


def _settings(host: str | None, port: int | None, data: Path | None) -> LaunchSettings:
    """Checks those of every other package too, so that a wrong one is named before anything has started."""
    given = {"host": host, "port": port, "data": data}
    chosen: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    try:
        for package in (EngineSettings, RealtimeSettings, WorkerSettings, WebSettings):
            package(**chosen)
        return LaunchSettings(**chosen)
    except ValidationError as error:
        for problem in error.errors():
            name = "_".join(str(part) for part in problem["loc"]).upper()
            Console(stderr=True).print(f"MIDSTREAM_{name}: {problem['msg']}", style="bold red", markup=False)
        raise typer.Exit(2) from None


def main() -> None:
    app()
