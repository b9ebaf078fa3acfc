"""One model over several devices: transformers' tensor parallel plan, one process per device, started by torchrun.

Rank 0 is the engine: it plans, samples and talks to the host. It sends each step's batch to the other ranks, which
compute the same forward pass in lockstep, each with its share of the heads and of their KV.
"""

from __future__ import annotations

import os
import pickle
from dataclasses import replace
from datetime import timedelta

import torch
import torch.distributed as dist

from engine.kv.planes import Planes
from engine.model.batch import Batch
from engine.model.loader import ModelError
from engine.model.runner_transformers import TransformersRunner

# The ranks wait for steps as long as nobody says anything. One that dies is noticed at once by its closed connection.
_IDLE = timedelta(days=365)


def is_started() -> bool:
    """Whether torchrun has started this process as one of several."""
    return "RANK" in os.environ


def is_follower() -> bool:
    """Whether this process computes for another rank."""
    return int(os.environ.get("RANK", "0")) > 0


def join(size: int, device: torch.device) -> torch.device:
    """Joins the ranks that torchrun has started; returns this rank's device. Raises `ModelError`."""
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if world != size:
        raise ModelError(f"tensor_parallel is {size}, but torchrun has started {world} processes")
    if device.type == "cuda":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo", timeout=_IDLE)
    return device


def agree(value: int) -> int:
    """The smallest of what all ranks say."""
    device = "cuda" if dist.get_backend() == "nccl" else "cpu"
    tensor = torch.tensor(value, device=device)
    dist.all_reduce(tensor, dist.ReduceOp.MIN)
    return int(tensor)


class TensorParallelRunner:
    """The `Runner` of rank 0; `follow` is the loop of the others. All ranks make one with the same sizes."""

    name = "transformers"

    def __init__(self, shard: TransformersRunner) -> None:
        self._shard = shard
        # Batches travel on a CPU group of their own, so that a GPU is not kept busy by waiting for them.
        self._batches = dist.new_group(backend="gloo", timeout=_IDLE)
        self.weights = shard.weights
        self.vocab_size = shard.vocab_size
        self.max_positions = shard.max_positions
        self.bytes_per_token = shard.bytes_per_token
        self.block_size = shard.block_size
        self.kv_blocks = shard.kv_blocks
        # Each rank has its part of a block; only rank 0 could move its own.
        self.kv_planes: Planes = []

    def run(self, batch: Batch) -> torch.Tensor:
        """See `Runner.run`. Ends the process when the step fails: the other ranks may be in the middle of it, where no
        later step must meet them."""
        try:
            if batch.sampled is not None:
                batch = replace(batch, sampled=batch.sampled.cpu())
            self._send(batch)
            return self._shard.run(batch)
        except Exception as error:
            raise SystemExit(f"error: a step failed on one of several devices: {error}") from error

    def close(self) -> None:
        """Lets the other ranks end."""
        self._send(None)
        dist.destroy_process_group()

    def follow(self) -> None:
        """Computes what rank 0 computes until it closes. Raises `RuntimeError` when it is gone."""
        while (batch := self._receive()) is not None:
            self._shard.run(batch)
        dist.destroy_process_group()

    def _send(self, batch: Batch | None) -> None:
        payload = torch.frombuffer(bytearray(pickle.dumps(batch)), dtype=torch.uint8)
        dist.broadcast(torch.tensor([len(payload)]), 0, group=self._batches)
        dist.broadcast(payload, 0, group=self._batches)

    def _receive(self) -> Batch | None:
        length = torch.zeros(1, dtype=torch.int64)
        dist.broadcast(length, 0, group=self._batches)
        payload = torch.empty(int(length), dtype=torch.uint8)
        dist.broadcast(payload, 0, group=self._batches)
        # From rank 0 of this very engine, over a connection that torchrun has set up.
        batch: Batch | None = pickle.loads(payload.numpy().tobytes())
        return batch
