"""The architectures of transformers for benchmarks/capture.py, built from their configuration classes alone.

A configuration is shrunk by the names of its attributes: every width is divided by one factor (so that what has to be
equal, a multiple or a sum stays so), layers, experts, tokens of the vocabulary and positions become few. Inputs are
made from the names of forward's parameters. The first of a ladder of sizes and of sets of inputs with which the model
runs in eager is taken.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import re
import warnings

import torch
from _capture_common import Built
from _compare import import_timm

VOCABULARY = 256
LARGEST = 120_000_000  # parameters; larger models are not tried
TOKENS, BATCH, GRID = 12, 2, 4  # the last: patches along a side of a picture, where models take them as rows
FACTORS = (8, 4, 2, 1)

# What an attribute means, by the first pattern that its name fits.
KINDS = (
    ("layers",
     r"(^|_)(num_layers|n_layers?|num_hidden_layers|layers|depths?|num_blocks|blocks|num_stages_layers)$"
     r"|_layers$|layers_per_|_depths?$|layer_count"),
    ("vocabulary", r"vocab_size|num_embeddings$|codebook_size"),
    ("token", r"token_id$|token_index$|token_ids$|_token_id_|_id$"),
    ("experts", r"num_(local_|routed_)?experts$|n_routed_experts|moe_num_experts|num_experts_per_layer"),
    ("few", r"experts_per_tok|top_?k$|moe_k|n_group$|topk_group|num_shared_experts|n_shared_experts"),
    ("positions",
     r"max_position_embeddings|n_positions|max_(source|target|text)_positions|context_length$|max_seq_len|seq_length$"),
    ("queries", r"num_queries|num_object_queries|num_proposals|num_latents|num_query_tokens"),
    ("count",
     r"num_channels$|in_channels$|in_chans$|groups?$|patch|kernel|stride|num_attention_heads|num_heads|n_heads?$"
     r"|rank_ratio|input_channels|dilation|image_size|window"),
    ("width",
     r"hidden_sizes?$|d_model|n_embd|n_inner|(^|_)dims?($|_)|_dim$|_dims$|intermediate_size|ffn|d_ff|d_kv|_rank$"
     r"|width|channels|hidden|embed|inner|bottleneck_size|filters|mrope_section|_size$"),
)
NOT_PASSED = re.compile(
    r"^(id2label|label2id|architectures|transformers_version|_name_or_path|stage_names|torch_dtype|dtype)$")


def kind_of(name):
    return next((kind for kind, pattern in KINDS if re.search(pattern, name)), None)


class Shrinker:
    """Makes the dict of a configuration small. ``factor`` divides widths; ``layers`` says whether stacks of layers are
    cut."""

    def __init__(self, factor, layers=True):
        self.factor, self.layers = factor, layers
        self.tokens = {}

    def width(self, value):
        return value // self.factor if value >= 16 and value % self.factor == 0 else value

    def token(self, value):
        return value if value < VOCABULARY // 2 else self.tokens.setdefault(value,
            VOCABULARY - 1 - len(self.tokens) % (VOCABULARY // 2))

    def number(self, name, value, kind, stages):
        if kind == "width":
            return self.width(value)
        if kind == "layers":
            return min(value, 2) if self.layers and value not in stages else value
        if kind == "vocabulary":
            return min(value, VOCABULARY)
        if kind == "token":
            return self.token(value)
        if kind == "experts":
            return min(value, 4)
        if kind == "few":
            return min(value, 2)
        if kind == "positions":
            return min(value, 128)
        if kind == "queries":
            return min(value, 10)
        return value

    def shrink(self, values: dict, inner=False) -> dict:
        """A new dict; keys that the constructor works out for itself are left out. ``inner``: of a configuration inside
        another."""
        depth = next((values[k] for k in ("num_hidden_layers", "num_layers",
                                          "n_layer", "n_layers") if isinstance(values.get(k), int)), None)
        stages = {len(v) for k, v in values.items() if isinstance(v, (list, tuple))
                  and v and all(isinstance(x, int) for x in v) and kind_of(k) in ("layers", "width")}
        small = {}
        for name, value in values.items():
            if NOT_PASSED.match(name) or name == "model_type" and not inner:
                continue
            kind = kind_of(name)
            if isinstance(value, dict):
                small[name] = self.shrink(value, True) if all(isinstance(k, str) for k in value) else value
            elif isinstance(value, bool) or value is None:
                small[name] = value
            elif isinstance(value, int):
                small[name] = self.number(name, value, kind, stages)
            elif isinstance(value, (list, tuple)) and value:
                small[name] = self.sequence(name, list(value), kind, depth, stages)
            else:
                small[name] = value
        return small

    def sequence(self, name, values, kind, depth, stages):
        if self.layers and len(values) == depth and depth > 2 and depth not in stages:
            kinds = list(dict.fromkeys(map(str, values)))
            first = [next(v for v in values if str(v) == k) for k in kinds][-2:]
            return first if len(first) == 2 else values[:2]
        if all(type(v) is int for v in values):
            return [self.number(name, v, kind, ()) for v in values]
        return values


@functools.cache
def table() -> dict[str, tuple]:
    """{architecture: (configuration class, model class)} of the installed transformers; architectures with a class of
    their own each."""
    try:
        import_timm()  # which some models build on
    except ImportError:
        pass
    from transformers.models.auto import configuration_auto, modeling_auto

    mappings = [modeling_auto.MODEL_MAPPING_NAMES] + [v for k, v in sorted(vars(modeling_auto).items())
                                                      if k.endswith("_MAPPING_NAMES") and k.startswith("MODEL_FOR_")]
    found = {}
    for name, config_name in configuration_auto.CONFIG_MAPPING_NAMES.items():
        model = next((m[name] for m in mappings if name in m), None)
        found[name] = (config_name, model[0] if isinstance(model, (tuple, list)) else model)
    return found


def names() -> list[str]:
    seen, kept = set(), []
    for name, classes in table().items():
        if classes not in seen:
            seen.add(classes)
            kept.append(name)
    return sorted(kept)


def classes(name):
    """The configuration class and the model class; a configuration in no mapping stands for the first model of its file
    that takes it."""
    import transformers
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    config_class, (_, model_name) = CONFIG_MAPPING[name], table()[name]
    model_class = getattr(transformers, model_name, None) if model_name else None
    if model_class is None:
        module = importlib.import_module(config_class.__module__.replace("configuration_", "modeling_"))
        takers = [c for c in vars(module).values() if inspect.isclass(c) and issubclass(c, transformers.PreTrainedModel)
                  and getattr(c, "config_class", None) is config_class and "forward" in vars(c)]
        if not takers:
            raise LookupError(f"no model class takes {config_class.__name__}")
        model_class = takers[0]
    return config_class, model_class


def find(config, *wanted):
    """The first attribute with one of these names in a configuration or in those inside it; None when there is none."""
    for name in wanted:
        value = getattr(config, name, None)
        if value is not None:
            return value
    for inner in vars(config).values():
        if hasattr(inner, "to_dict") and (value := find(inner, *wanted)) is not None:
            return value
    return None


def image_shape(config):
    """(channels, height, width) of the pictures of a configuration."""
    size = find(config, "image_size", "input_size", "img_size")
    if isinstance(size, dict):
        size = [size.get("height", 64), size.get("width", 64)]
    if isinstance(size, int):
        size = [size, size]
    if not isinstance(size, (list, tuple)) or len(size) < 2 or not all(isinstance(x, int) for x in size):
        size = [64, 64]
    return find(config, "num_channels", "in_channels", "in_chans", "image_channels") or 3, *size[-2:]


def make_input(name, config):
    """A value for forward's parameter of this name; None when nothing is known of it."""
    vocabulary = find(config, "vocab_size") or VOCABULARY
    vocabulary = vocabulary if isinstance(vocabulary, int) else VOCABULARY
    if name.endswith("input_ids"):
        return torch.randint(3, min(vocabulary, VOCABULARY) // 2, (BATCH, TOKENS))
    if name in ("attention_mask", "decoder_attention_mask", "encoder_attention_mask"):
        mask = torch.ones(BATCH, TOKENS, dtype=torch.long)
        mask[-1, -2:] = 0  # models leave out a mask of ones, but not while they are captured
        return mask
    if name == "pixel_values":
        return torch.randn(BATCH, *image_shape(config))
    if name in ("pixel_values_videos", "videos"):
        return torch.randn(BATCH, find(config, "num_frames", "frames") or 8, *image_shape(config))
    if name in ("input_features", "audio_features", "input_spectrogram", "spectrogram"):
        bins = find(config, "num_mel_bins", "mel_bins", "input_feat_per_channel",
                    "feature_size", "n_mels", "model_in_dim", "mel_dim", "num_mel_filters", "feature_dim") or 80
        frames = 2 * (find(config, "max_source_positions") or 50)
        return (torch.randn(BATCH, bins, frames) if find(config, "max_source_positions")
                else torch.randn(BATCH, 100, bins))
    if name in ("input_values", "audio_values", "waveform"):
        return torch.randn(BATCH, 4000)
    if name in ("inputs_embeds", "hidden_states", "encoder_hidden_states", "inputs"):
        width = find(config, "hidden_size", "d_model", "embed_dim", "dim")
        return torch.randn(BATCH, TOKENS, width) if isinstance(width, int) else None
    if name == "bbox":
        corner = torch.randint(0, 50, (BATCH, TOKENS, 2))
        return torch.cat([corner, corner + 20], -1)
    if name == "position_ids":
        return torch.arange(TOKENS).expand(BATCH, TOKENS).clone()
    if name == "token_type_ids":
        return torch.zeros(BATCH, TOKENS, dtype=torch.long)
    if name == "past_values":
        return torch.randn(BATCH, find(config, "context_length") or TOKENS,
                           find(config, "num_input_channels", "input_size") or 1)
    if name in ("past_observed_mask", "observed_mask"):
        return torch.ones(BATCH, find(config, "context_length") or TOKENS,
                          find(config, "num_input_channels", "input_size") or 1)
    if name in ("grid_thw", "image_grid_thw"):
        return torch.tensor([[1, GRID, GRID]]).repeat(BATCH, 1)
    if name == "spatial_shapes":
        return torch.tensor([[GRID, GRID]]).repeat(BATCH, 1)
    if name == "input_features_mask":
        return torch.ones(BATCH, make_input("input_features", config).shape[1], dtype=torch.long)
    if name == "pixel_mask":
        return torch.ones(BATCH, *image_shape(config)[1:], dtype=torch.long)
    return None


def patches(config):
    """The pictures of a grid of patches, a row for each patch, for models that take them so."""
    side, (channels, _, _) = find(config, "patch_size") or 16, image_shape(config)
    return torch.randn(BATCH * GRID * GRID, channels * (find(config, "temporal_patch_size") or 1) * side * side
                       if isinstance(side, int) else 768)


def input_sets(model, config):
    """Sets of keyword arguments worth trying, the fullest first."""
    parameters = {k: p for k, p in inspect.signature(model.forward).parameters.items()
                  if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    made = {}

    for name in ("pixel_values", "hidden_states"):
        if {"grid_thw", "image_grid_thw"} & set(parameters) and name in parameters:
            made[name] = patches(config)

    def values(wanted):
        out = {}
        for k in wanted:
            if k not in made:
                made[k] = make_input(k, config)
            if made[k] is not None:
                out[k] = made[k]
        return out

    required = [k for k, p in parameters.items() if p.default is p.empty]
    main = getattr(model, "main_input_name", "input_ids")
    main = [main] if main in parameters else []
    tokens = [k for k in ("input_ids", "attention_mask") if k in parameters and "input_ids" in parameters]
    decoder = [k for k in ("decoder_input_ids",) if k in parameters]
    modal = [k for k in ("pixel_values", "input_values", "input_features",
                         "bbox", "past_values", "past_observed_mask") if k in parameters]
    sets = [values(dict.fromkeys(required + main + decoder + tokens + modal)),
            values(dict.fromkeys(required + main + decoder + tokens)),
            values(dict.fromkeys(required + main + decoder)), values(dict.fromkeys(required + main)),
            values(dict.fromkeys(required + tokens[:1] + decoder)),
            values(dict.fromkeys(required + modal)), values(required)]
    kept = []
    for s in sets:
        if s and all(list(s) != list(k) for k in kept):
            kept.append(s)
    return kept


def tidy(model):
    """Parameters that are left as they were in memory, or constant, are given values: a result of zeros or nan would
    show nothing."""
    with torch.no_grad():
        for tensor in model.parameters():
            if tensor.is_floating_point() and tensor.numel() and (not torch.isfinite(tensor).all()
                                                                  or tensor.abs().max() > 1e4 or not tensor.any()):
                tensor.normal_(0, 0.02)
        for tensor in model.buffers():
            if tensor.is_floating_point() and tensor.numel() and torch.isnan(tensor).any():
                tensor.zero_()
    return model


def image_tokens(error, keywords, config):
    """Token ids with as many image tokens as a model's error message asks for; None when it asks for none."""
    asked = re.search(r"tokens:?\s*(\d+),?.*features:?\s*\[?(\d+)", str(error).replace("\n", " "))
    token = find(config, "image_token_id", "image_token_index", "video_token_id", "audio_token_id", "audio_token_index")
    if not asked or not isinstance(token, int) or "input_ids" not in keywords:
        return None
    each = -(-int(asked[2]) // BATCH)
    if not 0 < each < 2000:
        return None
    text = keywords["input_ids"]
    ids = torch.cat([text[:, :4], torch.full((BATCH, each), token), text[:, 4:]], 1)
    return {**keywords, "input_ids": ids, **({"attention_mask": torch.cat([torch.ones_like(ids[:, TOKENS:]),
        keywords["attention_mask"]], 1)} if "attention_mask" in keywords else {})}


# What a model says of an input of the wrong size: (the size that it has, the size wanted), in the order of the groups.
_SIZES = ((r"mat1 and mat2 shapes cannot be multiplied \(\d+x(\d+) and (\d+)x\d+\)", False),
          (r"to have (\d+) channels, but got (\d+) channels", True),
          (r"normalized_shape=\[(\d+)\], .* input of size ?\[.*?(\d+)\]", True))


def resized(error, keywords):
    """Inputs with the size that a model's error message asks for; None when it asks for none, or no input has the size
    it complains of."""
    for pattern, wanted_first in _SIZES:
        found = re.search(pattern, str(error).replace("\n", " "))
        if found is None:
            continue
        has, wanted = (int(found[2]), int(found[1])) if wanted_first else (int(found[1]), int(found[2]))
        new = {}
        for name, value in keywords.items():
            if value.is_floating_point() and has in value.shape and wanted < 10000:
                at = value.dim() - 1 - list(value.shape)[::-1].index(has)
                new[name] = torch.randn(*value.shape[:at], wanted, *value.shape[at + 1:])
        return {**keywords, **new} if new else None
    return None


def fit_sections(config):
    """The parts into which rotary positions are divided have to sum to half the rotated width of a head, which has
    become smaller."""
    for inner in [config, *(v for v in vars(config).values() if hasattr(v, "to_dict"))]:
        rope, width, heads = (getattr(inner, k, None) for k in ("rope_parameters",
                                                                "hidden_size", "num_attention_heads"))
        if (not isinstance(rope, dict) or not isinstance(width, int) or not isinstance(heads, int)
            or not rope.get("mrope_section")):
            continue
        head = getattr(inner, "head_dim", None) or width // heads
        parts, total = rope["mrope_section"], int(head * (rope.get("partial_rotary_factor") or 1)) // 2
        small = [total * n // sum(parts) for n in parts]
        rope["mrope_section"] = [total - sum(small[1:]), *small[1:]]
    return config


def build(name) -> Built:
    """The first size and inputs that run in eager. Raises the error of the first attempt."""
    config_class, model_class = classes(name)
    problem = None
    for layers in (True, False):
        for factor in FACTORS:
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    config = fit_sections(config_class(**Shrinker(factor, layers).shrink(config_class().to_dict())))
                    with torch.device("meta"):
                        size = sum(p.numel() for p in model_class(config).parameters())
                    if size > LARGEST:
                        raise MemoryError(f"{size / 1e6:.0f} million parameters at the size tried")
                    torch.manual_seed(0)
                    model = tidy(model_class(config).eval())
            except Exception as error:
                problem = problem or error
                continue
            for keywords in input_sets(model, config):
                for _ in range(4):
                    built = Built(model, (), keywords)
                    try:
                        torch.manual_seed(0)
                        with torch.no_grad():
                            model(*built.args(), **built.kwargs())
                        return built
                    except Exception as error:
                        problem = problem or error
                        keywords = image_tokens(error, keywords, config) or resized(error, keywords)
                        if keywords is None:
                            break
    raise problem or RuntimeError("no attempt")
