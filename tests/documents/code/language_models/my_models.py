import torch

from inc_tb.frameworks.models import loaded


def fp32():
    return loaded("fp32_model")


def int8():
    return torch.ao.quantization.quantize_dynamic(fp32(), {torch.nn.Linear})
