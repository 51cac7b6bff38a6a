"""The gateway's pure core: what a request means and what its tokens become. No transport, no clock.

In the order a request meets them:

- `spec`, `validation`   one model of a generation; `parse_generation` is the only validator
- `openai_request`       OpenAI bodies -> the same spec; `openai_response` its answers
- `tokenizing`           `ModelTokenizer`: prompt and chat -> token ids, by `chat_template` and `forgery`
- `limits`               `prepare(spec, tokenizer)` -> ids, output limit, stop tokens; priority
- `ids`                  public ids
- `lease`                until when the owner may deliver
- `choice`               `ChoiceAssembler`: token ids -> text, stop strings, deliverable pieces
- `outcome`              finish reasons, billing, terminal records, failures
- `detokenize`, `stops`, `vocabulary`   what `choice` and `tokenizing` stand on
"""
