"""LoRA adapters: small trained updates of a checkpoint's linears, in PEFT's format on disk."""

from jev.model.lora.adapter import PROJECTIONS, Adapter, LoraConfig, target_shapes
from jev.model.lora.checkpoint import checkpoint_name, merge_checkpoint
from jev.model.lora.files import AdapterFacts, adapter_facts, load_adapter, save_adapter
from jev.model.lora.live import active, adapter_of, attach, detach, install
from jev.model.lora.merge import merge

__all__ = [
    "PROJECTIONS",
    "Adapter",
    "AdapterFacts",
    "LoraConfig",
    "active",
    "adapter_facts",
    "adapter_of",
    "attach",
    "checkpoint_name",
    "detach",
    "install",
    "load_adapter",
    "merge",
    "merge_checkpoint",
    "save_adapter",
    "target_shapes",
]
