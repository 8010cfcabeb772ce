"""What the embedded model is given where the command line says nothing."""

import pytest
from vllm.platforms import current_platform

import settings

pytestmark = pytest.mark.skipif(not current_platform.is_cpu(), reason="the embedded model's needs are those of a CPU")


@pytest.mark.parametrize(
    ("argv", "num_batched_tokens", "num_long_prefill_tokens"),
    [
        ([], 160, 64),
        (["--max-num-seqs", "200"], 200, 64),
        (["--max-num-batched-tokens", "64"], 64, 0),
        (["--long-prefill-token-threshold", "48"], 160, 48),
        (["--long-prefill-token-threshold", "0"], 160, 0),
        (["--max-model-len", "64"], 160, 64),
        (["--max-model-len", "63"], 160, 0),
        (["--max-model-len", "auto"], 160, 64),
    ],
)
def test_one_prompt_has_a_share_of_a_step(
    argv: list[str], num_batched_tokens: int, num_long_prefill_tokens: int
) -> None:
    args = settings.load(argv, {}).args
    assert args.max_num_batched_tokens == num_batched_tokens
    assert args.long_prefill_token_threshold == num_long_prefill_tokens


def test_a_model_of_ones_own_has_the_defaults_of_vllm() -> None:
    args = settings.load(["some/model"], {}).args
    assert args.max_num_batched_tokens is None
    assert args.long_prefill_token_threshold == 0


def test_what_is_asked_for_a_model_of_ones_own_is_had() -> None:
    args = settings.load(["some/model", "--long-prefill-token-threshold", "48"], {}).args
    assert args.long_prefill_token_threshold == 48
