"""The gateway's pure core: what a request means and what its tokens become. No transport, no clock.

In the order a request meets them:

- `spec`, `validation`   one model of a generation; `parse_generation` is the only validator
- `openai_request`       OpenAI bodies -> the same spec; `openai_response` its answers
- `tokenizing`           `ModelTokenizer`: prompt and chat -> token ids, by `chat_template` and `forgery`
- `limits`               `prepare(spec, tokenizer)` -> ids, output limit, stop tokens; priority
- `ids`                  public ids
- `order`, `lane_messages`  what is asked for, and what travels to the scheduler and back
- `lane_book`            `LaneBook`: every request of a gateway over one stream after the other; `lease`
- `owner`, `life`        `Owner`: one request, owned or followed, to its end; `effects` is what it asks for
- `account`              what it is billed; `output` its choices and readers; `reader` one of these
- `choice`               `ChoiceAssembler`: token ids -> text and stop strings; `Cursor`: a reader's place
- `outcome`              finish reasons, billing, terminal records, failures
- `detokenize`, `stops`, `vocabulary`   what `choice` and `tokenizing` stand on
"""
