"""`midstream prepare`: the model in place, so that the first start is as quick as every other."""

from __future__ import annotations

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from engine.model.loader import ModelError, prepare_model
from engine.settings import EngineSettings

console = Console(highlight=False, soft_wrap=True)


def prepare() -> int:
    """Downloads or converts `MIDSTREAM_MODEL` unless that was done before. The exit code is 1 when it cannot be had."""
    settings = EngineSettings()
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    try:
        with Progress(*columns, console=console, transient=True) as bar:
            task = bar.add_task(f"model {settings.model}", total=1.0)
            folder = prepare_model(
                settings.model,
                settings.model_cache,
                lambda stage, fraction: bar.update(task, description=stage, completed=fraction),
            )
    except ModelError as error:
        console.print(f"The model is not usable: {error}", style="bold red", markup=False)
        return 1
    console.print(f"Model ready: {folder}", markup=False)
    return 0
