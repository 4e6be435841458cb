"""The models of timm for benchmarks/capture.py: a small one of each of its files, that is of each family, at a small
image size."""

from __future__ import annotations

import torch
from _capture_common import Built
from _compare import import_timm

# file of timm/models: (its smallest model that is quick to build, height and width of the images)
FAMILIES = {
    "beit": ("beit_base_patch16_224", 64),
    "byoanet": ("halonet26t", 256),
    "byoanet, bottleneck attention": ("botnet26t_256", 128),
    "byoanet, lambda layers": ("lambda_resnet26t", 128),
    "byobnet": ("gernet_s", 64),
    "cait": ("cait_xxs24_224", 64),
    "coat": ("coat_lite_tiny", 64),
    "convit": ("convit_tiny", 64),
    "convmixer": ("convmixer_768_32", 64),
    "convnext": ("convnext_atto", 64),
    "cpubone": ("cpubone_nano", 64),
    "crossvit": ("crossvit_tiny_240", 240),
    "csatv2": ("csatv2", 128),
    "cspnet": ("cs3darknet_focus_s", 64),
    "cspnext": ("cspnext_tiny", 64),
    "davit": ("davit_tiny", 64),
    "deepseek_vit": ("deepseek_vit_412m", 56),
    "deit": ("deit_tiny_distilled_patch16_224", 64),
    "densenet": ("densenet121", 64),
    "dla": ("dla46_c", 64),
    "dpn": ("dpn48b", 64),
    "edgenext": ("edgenext_xx_small", 64),
    "efficientformer": ("efficientformer_l1", 224),
    "efficientformer_v2": ("efficientformerv2_s0", 64),
    "efficientnet": ("efficientnet_b0", 64),
    "efficientvim": ("efficientvim_m1", 64),
    "efficientvit_mit": ("efficientvit_b0", 64),
    "efficientvit_msra": ("efficientvit_m0", 64),
    "eva": ("eva02_tiny_patch14_224", 56),
    "fasternet": ("fasternet_t0", 64),
    "fastvit": ("fastvit_t8", 64),
    "focalnet": ("focalnet_tiny_srf", 64),
    "gcvit": ("gcvit_xxtiny", 224),
    "gemma4_vit": ("gemma4_vit_167m", 64),
    "ghostnet": ("ghostnet_050", 64),
    "hardcorenas": ("hardcorenas_a", 64),
    "hgnet": ("hgnetv2_b0", 64),
    "hiera": ("hiera_tiny_224", 224),
    "hieradet_sam2": ("sam2_hiera_tiny", 128),
    "hrnet": ("hrnet_w18_small", 64),
    "iformer": ("iformer_t", 64),
    "inception_next": ("inception_next_atto", 64),
    "inception_resnet_v2": ("inception_resnet_v2", 96),
    "inception_v3": ("inception_v3", 96),
    "inception_v4": ("inception_v4", 96),
    "lcnetv2": ("lcnetv2_small", 64),
    "levit": ("levit_128s", 224),
    "lowformer": ("lowformer_b0", 64),
    "mambaout": ("mambaout_femto", 64),
    "maxxvit": ("coatnet_pico_rw_224", 224),
    "metaformer": ("poolformer_s12", 64),
    "mlp_mixer": ("mixer_s32_224", 224),
    "mobilenetv3": ("mobilenetv3_small_050", 64),
    "mobilenetv5": ("mobilenetv5_base", 128),
    "mobilevit": ("mobilevit_xxs", 64),
    "mvitv2": ("mvitv2_tiny", 64),
    "naflexvit": ("naflexvit_base_patch16_gap", 64),
    "nasnet": ("nasnetalarge", 96),
    "nest": ("nest_tiny", 224),
    "nextvit": ("nextvit_small", 64),
    "nfnet": ("nf_resnet26", 64),
    "pit": ("pit_ti_224", 224),
    "pnasnet": ("pnasnet5large", 96),
    "pvt_v2": ("pvt_v2_b0", 64),
    "qwen3_vit": ("qwen3_vit_88m", 64),
    "rdnet": ("rdnet_tiny", 64),
    "regnet": ("regnetx_002", 64),
    "repghost": ("repghostnet_050", 64),
    "repvit": ("repvit_m0_9", 64),
    "res2net": ("res2net50_14w_8s", 64),
    "resnest": ("resnest14d", 64),
    "resnet": ("resnet18", 64),
    "resnetv2": ("resnetv2_50d_gn", 64),
    "rexnet": ("rexnet_100", 64),
    "selecsls": ("selecsls42b", 64),
    "senet": ("legacy_seresnet18", 64),
    "sequencer": ("sequencer2d_s", 224),
    "shvit": ("shvit_s1", 64),
    "sknet": ("skresnet18", 64),
    "starnet": ("starnet_s050", 64),
    "swiftformer": ("swiftformer_xs", 64),
    "swin_transformer": ("swin_tiny_patch4_window7_224", 224),
    "swin_transformer_v2": ("swinv2_tiny_window8_256", 256),
    "swin_transformer_v2_cr": ("swinv2_cr_tiny_224", 224),
    "tiny_vit": ("tiny_vit_5m_224", 224),
    "tnt": ("tnt_s_patch16_224", 224),
    "tresnet": ("tresnet_m", 64),
    "twins": ("twins_svt_small", 64),
    "vgg": ("vgg11_bn", 64),
    "visformer": ("visformer_tiny", 224),
    "vision_transformer": ("vit_tiny_patch16_224", 64),
    "vision_transformer_hybrid": ("vit_tiny_r_s16_p8_224", 224),
    "vision_transformer_relpos": ("vit_relpos_small_patch16_224", 64),
    "vision_transformer_sam": ("samvit_base_patch16_224", 64),
    "vitamin": ("vitamin_small_224", 224),
    "volo": ("volo_d1_224", 224),
    "vovnet": ("ese_vovnet19b_slim_dw", 64),
    "xception": ("legacy_xception", 96),
    "xception_aligned": ("xception41", 96),
    "xcit": ("xcit_nano_12_p16_224", 64),
}

# Large models, of which two blocks are enough.
CHANGES = {name: {"depth": 2} for name in ("deepseek_vit_412m", "gemma4_vit_167m",
                                           "samvit_base_patch16_224", "beit_base_patch16_224")}


def names() -> list[str]:
    known = import_timm().list_modules()
    return [model for family, (model, _) in FAMILIES.items() if family.split(",")[0] in known]


def build(name) -> Built:
    timm = import_timm()
    torch.manual_seed(0)
    size = dict(FAMILIES.values())[name]
    changes = {"pretrained": False, **CHANGES.get(name, {})}
    try:
        model = timm.create_model(name, img_size=size, **changes)
    except TypeError:  # a network of convolutions takes images of any size
        model = timm.create_model(name, **changes)
    return Built(model.eval(), (torch.randn(2, 3, size, size),))
