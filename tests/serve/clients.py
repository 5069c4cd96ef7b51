#!/usr/bin/env python3
"""Real clients against a running server, each skipped with a sentence where its package is absent.

In: the address of a server whose model has a chat template. Out: a line for each client.
"""
import asyncio
import importlib
import json
import os
import pathlib
import sys
import tempfile

BASE = f"http://{sys.argv[1]}:{sys.argv[2]}"
os.environ.update(OPENAI_API_KEY="none", OPENAI_BASE_URL=BASE + "/v1", ANTHROPIC_API_KEY="none",
                  OPENAI_AGENTS_DISABLE_TRACING="1", LITELLM_LOCAL_MODEL_COST_MAP="True", TQDM_DISABLE="1", HF_DATASETS_DISABLE_PROGRESS_BARS="1")
HI = [{"role": "user", "content": "Say hello in one sentence."}]
PERSON = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer", "minimum": 0, "maximum": 99}},
          "required": ["name", "age"], "additionalProperties": False}
CLIENTS = []


def client(package):
    def take(act):
        CLIENTS.append((package, act))
        return act
    return take


def the_model():
    import urllib.request
    with urllib.request.urlopen(BASE + "/v1/models") as answer:
        return json.load(answer)["data"][0]["id"]


@client("openai")
def openai(model):
    import openai
    api = openai.OpenAI()
    assert [one.id for one in api.models.list()] and api.models.retrieve(model).id == model
    whole = api.chat.completions.create(model=model, messages=HI, max_tokens=8, temperature=0)
    chunks = api.chat.completions.create(model=model, messages=HI, max_tokens=8, temperature=0, stream=True)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert text == whole.choices[0].message.content, (text, whole)
    with api.chat.completions.stream(model=model, messages=HI, max_completion_tokens=8, temperature=0) as events:
        assert any(event.type == "content.delta" for event in events)
    answer = api.completions.create(model=model, prompt="The sea", max_tokens=4, logprobs=2, echo=True)
    assert answer.choices[0].logprobs.token_logprobs[0] is None
    tool = {"name": "store", "parameters": PERSON}
    answer = api.chat.completions.create(model=model, messages=HI, max_tokens=160, temperature=0, parallel_tool_calls=False,
                                         tools=[{"type": "function", "function": tool}], tool_choice="required")
    assert set(json.loads(answer.choices[0].message.tool_calls[0].function.arguments)) == {"name", "age"}
    answer = api.responses.create(model=model, input="Say hello.", max_output_tokens=8)
    assert answer.output_text
    with api.responses.stream(model=model, input="Say hello.", max_output_tokens=8) as events:
        assert [event.type for event in events][-1] in ("response.completed", "response.incomplete")
    answer = api.responses.create(model=model, input="A person.", max_output_tokens=160, text={"format": {
        "type": "json_schema", "name": "person", "schema": PERSON, "strict": True}})
    assert set(json.loads(answer.output_text)) == {"name", "age"}
    for wrong, kind in [({"temperature": -3}, openai.BadRequestError), ({"model": "none"}, openai.NotFoundError)]:
        try:
            api.chat.completions.create(**{"model": model, "messages": HI, **wrong})
            raise AssertionError(wrong)
        except kind:
            pass


@client("anthropic")
def anthropic(model):
    import anthropic
    api = anthropic.Anthropic(base_url=BASE)
    whole = api.messages.create(model=model, max_tokens=8, messages=HI)
    assert whole.content[0].type == "text" and whole.usage.output_tokens
    with api.messages.stream(model=model, max_tokens=8, messages=HI) as stream:
        text = "".join(stream.text_stream)
        assert text and stream.get_final_message().stop_reason in ("max_tokens", "end_turn")
    assert api.messages.count_tokens(model=model, messages=HI).input_tokens > 3
    tools = [{"name": "store", "input_schema": PERSON}]
    choice = {"type": "any", "disable_parallel_tool_use": True}
    with api.messages.stream(model=model, max_tokens=160, messages=HI, tools=tools, tool_choice=choice) as stream:
        last = stream.get_final_message()
    assert last.stop_reason == "tool_use" and set(last.content[-1].input) == {"name", "age"}, last


@client("ollama")
def ollama(model):
    import ollama
    api = ollama.Client(host=BASE)
    assert api.list().models[0].model == model and api.show(model).modelinfo and api.ps().models
    options = {"num_predict": 8, "temperature": 0}
    whole = api.chat(model=model, messages=HI, options=options)
    text = "".join(part.message.content for part in api.chat(model=model, messages=HI, options=options, stream=True))
    assert text == whole.message.content
    assert api.generate(model=model, prompt="Hi", options=options).done
    assert set(json.loads(api.chat(model=model, messages=HI, format=PERSON, options={"num_predict": 160}).message.content)) == {"name", "age"}


@client("litellm")
def litellm(model):
    import litellm
    litellm.suppress_debug_info = True
    for name, base in [(f"openai/{model}", BASE + "/v1"), (f"ollama_chat/{model}", BASE), (f"anthropic/{model}", BASE)]:
        asked = dict(model=name, api_base=base, api_key="none", messages=HI, max_tokens=8)
        assert litellm.completion(**asked).choices[0].message.content is not None
        text = "".join(chunk.choices[0].delta.content or "" for chunk in litellm.completion(**asked, stream=True))
        assert text, name
    try:
        litellm.completion(model=f"openai/{model}", api_base=BASE + "/v1", messages=[{"role": "user", "content": "word " * 100000}])
        raise AssertionError("a prompt that is too long was taken")
    except litellm.ContextWindowExceededError:
        pass


@client("langchain_openai")
def langchain(model):
    from langchain_openai import ChatOpenAI
    chat = ChatOpenAI(model=model, max_tokens=8, temperature=0, base_url=BASE + "/v1")
    whole = chat.invoke("Say hello.").content
    assert "".join(part.content for part in chat.stream("Say hello.")) == whole
    value = ChatOpenAI(model=model, max_tokens=160, base_url=BASE + "/v1").with_structured_output(
        {"title": "person", **PERSON}, method="json_schema").invoke("A person.")
    assert set(value) == {"name", "age"}, value


@client("instructor")
def instructor(model):
    import instructor
    import openai
    from pydantic import BaseModel, ConfigDict, Field

    class Person(BaseModel):
        model_config = ConfigDict(extra="forbid")
        name: str = Field(max_length=8)
        age: int = Field(ge=0, le=99)
    for mode in [instructor.Mode.TOOLS, instructor.Mode.JSON_SCHEMA]:
        api = instructor.from_openai(openai.OpenAI(), mode=mode)
        assert isinstance(api.chat.completions.create(model=model, messages=HI, max_tokens=200, response_model=Person), Person)


@client("agents")
def agents(model):
    from agents import Agent, Runner
    agent = Agent(name="helper", instructions="Be brief.", model=model)
    answer = asyncio.run(Runner.run(agent, "Say hello."))
    assert isinstance(answer.final_output, str)


@client("llm")
def llm(model):
    with tempfile.TemporaryDirectory() as folder:
        os.environ["LLM_USER_PATH"] = folder
        entry = {"model_id": "served", "model_name": model, "api_base": BASE + "/v1", "supports_schema": True, "supports_tools": True}
        pathlib.Path(folder, "extra-openai-models.yaml").write_text(json.dumps([entry]))
        import llm
        chat = llm.get_model("served")
        whole = chat.prompt("Say hello.", max_tokens=8, temperature=0, stream=False).text()
        assert "".join(chat.prompt("Say hello.", max_tokens=8, temperature=0)) == whole
        value = json.loads(chat.prompt("A person.", schema=PERSON, max_tokens=200, stream=False).text())
        assert set(value) == {"name", "age"}, value


@client("lm_eval")
def lm_eval(model):
    """Scores and texts as `/v1/completions` gives them without the harness."""
    import lm_eval
    import openai
    from lm_eval.tasks import TaskManager
    api = openai.OpenAI()
    questions = [("Once upon a", [" time", " xylophone"]), ("The girl was very", [" of", " happy"]), ("They went to the", [" and", " park"])]

    def score(question, choice):
        told = api.completions.create(model=model, prompt=question + choice, max_tokens=0, logprobs=1, echo=True).choices[0].logprobs
        return sum(value for value, at in zip(told.token_logprobs, told.text_offset) if at >= len(question))

    def text(question):
        return api.completions.create(model=model, prompt=question, max_tokens=8, temperature=0, stop=["."]).choices[0].text
    best = [max(choices, key=lambda choice: score(question, choice)) for question, choices in questions]
    with tempfile.TemporaryDirectory() as folder:
        lines = [json.dumps({"question": question, "choices": choices, "answer": choices.index(one)})
                 for (question, choices), one in zip(questions, best)]
        pathlib.Path(folder, "words.jsonl").write_text("\n".join(lines))
        data = {"dataset_path": "json", "dataset_kwargs": {"data_files": {"test": folder + "/words.jsonl"}}, "test_split": "test",
                "doc_to_text": "{{question}}"}
        chosen = {"task": "words", **data, "output_type": "multiple_choice", "doc_to_choice": "{{choices}}", "doc_to_target": "{{answer}}",
                  "target_delimiter": "", "metric_list": [{"metric": "acc", "aggregation": "mean", "higher_is_better": True}]}
        written = {"task": "texts", **data, "output_type": "generate_until", "doc_to_target": "{{choices[answer]}}",
                   "generation_kwargs": {"until": ["."], "max_gen_toks": 8}, "metric_list": [{"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}]}
        for task in (chosen, written):
            pathlib.Path(folder, task["task"] + ".yaml").write_text(json.dumps(task))
        os.environ["HF_DATASETS_CACHE"] = folder + "/cache"
        found = lm_eval.simple_evaluate(
            model="local-completions", tasks=["words", "texts"], task_manager=TaskManager(include_path=folder, include_defaults=False),
            model_args={"model": model, "base_url": BASE + "/v1/completions", "tokenizer_backend": "remote", "num_concurrent": 2},
            log_samples=True, bootstrap_iters=0)
    assert found["results"]["words"]["acc,none"] == 1.0, found["results"]
    for sample in found["samples"]["texts"]:
        assert sample["resps"][0][0] == text(sample["doc"]["question"]), sample


failed = 0
name = the_model()
for package, act in CLIENTS:
    try:
        importlib.import_module(package)
    except ImportError:
        print(f"skipped: the Python package {package} is not installed here")
        continue
    try:
        act(name)
        print(f"{package}: all of its requests were answered")
    except Exception as error:
        failed += 1
        print(f"FAILED: {package}: {type(error).__name__}: {str(error)[:600]}")
sys.exit(bool(failed))
