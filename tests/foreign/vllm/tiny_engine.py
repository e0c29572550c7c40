"""vLLM's engine on a Llama of two layers with random weights; each rank is a worker of it."""

import json
import os
import tempfile
from pathlib import Path

MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 256,
    "intermediate_size": 256,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 32,
    "num_hidden_layers": 2,
    "vocab_size": 320,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "torch_dtype": "float32",
    "bos_token_id": 1,
    "eos_token_id": 2,
}
PROMPTS = [[5, 9, 77], [11, 12]]
# On processes: random weights are drawn by the sizes of their parts.
EXPECTED = {n: [[58, 77] * 4, [24 if n == 4 else 122, 12] * 4] for n in (1, 2, 4)}


def main():
    from vllm import LLM, SamplingParams

    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(MODEL))
        model = LLM(
            model=folder,
            skip_tokenizer_init=True,
            load_format="dummy",
            dtype="float32",
            enforce_eager=True,
            tensor_parallel_size=int(os.environ["WORLD_SIZE"]),
            distributed_executor_backend="external_launcher",
            seed=3,
            max_model_len=64,
            max_num_seqs=4,
        )
        settings = SamplingParams(temperature=0, max_tokens=8, detokenize=False, ignore_eos=True)
        prompts = [{"prompt_token_ids": each} for each in PROMPTS]
        found = [list(each.outputs[0].token_ids) for each in model.generate(prompts, settings)]
    assert found == EXPECTED[int(os.environ["WORLD_SIZE"])], found


main()
