"""A model that no memory can hold is refused before anything is done for it."""

import pytest
from conftest import tiny_config

from transformer_mt.errors import DeviceError
from transformer_mt.model.transformer import Transformer
from transformer_mt.training.run import count_layer_parameters, train


@pytest.mark.parametrize(
    ("key", "value"),
    [("d_model", 10**6), ("d_ff", 4 * 10**9), ("encoder_layers", 10**9), ("decoder_layers", 10**9)],
)
def test_a_model_larger_than_the_memory_is_refused_at_once(corpus_dir, tmp_path, key, value):
    """Its sizes and both amounts of memory are named; nothing is prepared or allocated."""
    config = tiny_config(corpus_dir, **{f"model__{key}": value})
    pattern = rf"model.{key} = {value}.* needs at least [\d,]+ GB .* device has \d+ GB"
    with pytest.raises(DeviceError, match=pattern):
        train(config, tmp_path / "run")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("attention_bias", [True, False])
def test_parameters_are_counted_without_a_model(corpus_dir, attention_bias):
    """As many as the layers of the model have."""
    sizes = {"encoder_layers": 2, "decoder_layers": 3, "attention_bias": attention_bias}
    config = tiny_config(corpus_dir, **{f"model__{key}": size for key, size in sizes.items()})
    model = Transformer(config.model, 10, 10, 0)
    layers = [*model.encoder.parameters(), *model.decoder.parameters()]
    assert count_layer_parameters(config.model) == sum(p.numel() for p in layers)
