"""A model from its configuration alone."""

from __future__ import annotations

from typing import Any

from draftmeter.roofline.config import Config, parse_config
from draftmeter.roofline.layout import layout, shape_of
from draftmeter.roofline.model import Model
from draftmeter.roofline.schemes import scheme_named, scheme_of_config, weigh


def from_config(raw: Any, name: str, weights: str | None = None) -> Model:
    """Parameters by formula, bytes by scheme: ``weights``, or what the configuration states.

    Raises:
        UsageError: An unknown architecture, scheme or quantisation, or a field out of bounds.
    """
    config = parse_config(raw)
    return _model(config, name, weights)


def _model(config: Config, name: str, weights: str | None) -> Model:
    notes = list(config.notes)
    stated = weights is None
    if weights is None:
        scheme, found = scheme_of_config(config.quantization, config.family)
        notes += found
    else:
        scheme = scheme_named(weights)
        kept = config.quantization and scheme.name not in {"bf16", "q4_k_m"}
        if kept:  # the stated exceptions hold for any scheme
            exceptions, _ = scheme_of_config(config.quantization, config.family)
            scheme = type(scheme)(scheme.name, scheme.bytes_per_weight, exceptions.keep)
    tensors = weigh(layout(config), scheme, len(config.layers), mtp_in_layers=config.mtp_in_layers)
    if not stated or config.quantization:
        notes.append(
            f"sizes follow from config.json and {scheme.name} by formula; a checkpoint's own "
            "recipe may differ: give the folder to read its tensors"
        )
    return Model(name, "config", scheme.name, tuple(tensors), shape_of(config), tuple(notes))
