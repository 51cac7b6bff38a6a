import pytest

from kit.errors import Code, ServiceError
from services.gateway.core.chat_template import ChatTemplate
from services.gateway.core.spec import ChatMessage

MESSAGES = [ChatMessage(role="system", content="Be brief."), ChatMessage(role="user", content="a < b & 你")]


def render(source, messages=MESSAGES, **tokens):
    return ChatTemplate(source, **tokens).render(messages)


def test_a_template_sees_messages_tokens_and_the_generation_prompt():
    turns = "{% for m in messages %}[{{ m.role }}:{{ m['content'] }}]{% endfor %}"
    source = "{{ bos_token }}" + turns + "{{ add_generation_prompt }}"
    assert render(source, bos_token="<s>") == "<s>[system:Be brief.][user:a < b & 你]True"


def test_blocks_leave_no_blank_lines_and_loops_can_be_left():
    leave = "  {% if loop.index > 1 %}\n  {% break %}\n  {% endif %}\n"
    source = "{% for m in messages %}\n" + leave + "{{ m.role }}{% endfor %}"
    assert render(source) == "system"


def test_tojson_writes_text_as_it_is():
    assert render("{{ messages[1] | tojson }}") == '{"role": "user", "content": "a < b & 你"}'


def test_a_template_may_refuse_and_say_why():
    with pytest.raises(ServiceError) as caught:
        render("{{ raise_exception('roles must alternate' + 'x' * 900) }}")
    error = caught.value
    assert (error.code, error.field) == (Code.INVALID_ARGUMENT, "messages")
    assert "roles must alternate" in error.message
    assert len(error.message) < 300


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages.__class__.__mro__[1].__subclasses__() }}",
        "{{ ''.__class__.__bases__ }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update(role='x') }}",
        "{{ raise_exception.__globals__['json'] }}",
        "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
        "{% include '/etc/passwd' %}",
        "{{ range(10**9) | list }}",
        "{{ missing.attribute }}",
        "{{ 1 // 0 }}",
        "{{ messages[0] + 1 }}",
    ],
)
def test_what_the_sandbox_forbids_or_the_template_breaks_refuses_messages(source):
    with pytest.raises(ServiceError) as caught:
        render(source)
    assert (caught.value.code, caught.value.field) == (Code.INVALID_ARGUMENT, "messages")
    assert "Be brief" not in caught.value.message


def test_a_message_is_data_and_never_a_template():
    assert (
        render("{{ messages[0].content }}", [ChatMessage(role="user", content="{{ 7 * 7 }}")])
        == "{{ 7 * 7 }}"
    )


def test_a_template_that_is_no_jinja_is_refused_at_once():
    with pytest.raises(ValueError, match="line 1"):
        ChatTemplate("{% for %}")
